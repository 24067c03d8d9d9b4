"""The state of a job that the parts which decide share: one instance each, by name.

Who decides what is said by the parts themselves (job.py lists them); here is only what several of
them look at and change. The configuration is apart, as a resumption replaces it. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.config.job import JobConfig
from shoal.master.job.clocks import Clocks
from shoal.master.job.instructions import Instruction
from shoal.master.job.members.left_out import LeftOut
from shoal.master.job.members.membership import Membership
from shoal.master.job.moves.moves import Moves
from shoal.master.job.phase_machine import PhaseMachine
from shoal.master.job.updates import Updates, updates_of
from shoal.master.work.record import JobRecord
from shoal.master.work.workload import Workload


@dataclass(frozen=True)
class JobState:
    """The state of one job. Its fields stay the same objects for the job's whole life."""

    record: JobRecord
    """Messages, times, throughput and losses, for status and result. Nothing is decided by it."""

    work: Workload
    """Tasks of every kind, the ledger of records, evaluations, and what each server has."""

    updates: Updates
    """With --sync, which gradients make which update of the model; otherwise there are none."""

    left_out: LeftOut
    """Minibatches that are in no push, as their gradients were not finite."""

    phases: PhaseMachine
    """The phase of the job, and why it fails or stops."""

    members: Membership
    """Every worker and server, with its incarnation and the state of its process."""

    moves: Moves
    """Which server has which slots of the routing table, and moves of them."""

    clocks: Clocks = field(default_factory=Clocks)
    """How many steps of each worker in training are applied, for --staleness-bound."""

    instructions: list[Instruction] = field(default_factory=list)
    """What is to be done in the world, in order. Parts append; `Job.take_instructions` empties."""

    @classmethod
    def of(cls, config: JobConfig) -> JobState:
        """The state of a new job that `config` describes."""
        record, updates = JobRecord(), updates_of(config)
        work = Workload(config, record)
        left_out = LeftOut()
        phases = PhaseMachine(config, record, work, updates, left_out)
        members, instructions = Membership(config), list[Instruction]()
        moves = Moves(config, members, record, instructions)
        parts = record, work, updates, left_out, phases, members, moves
        return cls(*parts, instructions=instructions)
