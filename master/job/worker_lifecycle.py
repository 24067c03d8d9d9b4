"""The lives of workers: their start, death, fencing, and the start of a successor.

A worker taken for dead is fenced: no server takes its pushes any more. Only then is it
known what of its task is trained, the rest goes to others, and a successor may start.
Owns that order. Who is a member is membership.py's, whether a dead worker is started
again supervisor.py's, what becomes of its task phase_machine.py's. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.config.job import JobConfig
from shoal.master.job import supervisor
from shoal.master.job.clocks import Clocks
from shoal.master.job.instructions import (
    AdoptProcess,
    FenceWorker,
    Instruction,
    KillProcess,
    StartProcess,
    TerminateProcess,
)
from shoal.master.job.launcher import Exited
from shoal.master.job.leases import Leases
from shoal.master.job.membership import Membership, ProcessState, WorkerSlot
from shoal.master.job.phase_machine import PhaseMachine
from shoal.master.job.restarts import RelaunchLimit
from shoal.master.job.server_lifecycle import ServerLifecycle
from shoal.master.job.updates import Updates
from shoal.master.work.applied import AppliedPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import FIRST_INCARNATION, ServerId, Start, WorkerId
from shoal.master.work.range_failures import FailureCause
from shoal.master.work.record import JobRecord
from shoal.master.work.workload import Workload
from shoal.proto import shoal_pb2 as pb


class WorkerLifecycle:
    """The workers of a job. What is to be done is appended to `instructions`."""

    def __init__(
        self,
        config: JobConfig,
        phases: PhaseMachine,
        work: Workload,
        record: JobRecord,
        members: Membership,
        servers: ServerLifecycle,
        updates: Updates,
        clocks: Clocks,
        leases: Leases,
        instructions: list[Instruction],
    ) -> None:
        self._relaunch_limit = RelaunchLimit.of(config)
        self._phases = phases
        self._work = work
        self._record = record
        self._members = members
        self._servers = servers
        self._updates = updates
        self._clocks = clocks
        self._leases = leases
        self._instructions = instructions

    def resumed(self, config: JobConfig) -> None:
        """The job goes on with this configuration."""
        self._relaunch_limit = RelaunchLimit.of(config)

    def start_all(self, now: float) -> None:
        """Start all workers."""
        for slot in self._members.workers.values():
            self._start(slot, now)
        self._tell_of_few(now)

    def _start(self, slot: WorkerSlot, now: float) -> None:
        self._instructions.append(StartProcess(Start(slot.id, slot.start(now))))

    def _tell_of_few(self, now: float) -> None:
        workers = sum(each.state != ProcessState.DEAD for each in self._members.workers.values())
        if text := self._updates.few_workers(workers):
            self._record.note(now, text)

    def adopt_all(self, now: float) -> None:
        """Have those that another master started be found again."""
        for slot in self._members.workers.values():
            # Nobody could be heard meanwhile: its silence begins now.
            slot.last_seen = now
            start = Start(slot.id, slot.incarnation)
            if slot.exited is None and slot.incarnation >= FIRST_INCARNATION:
                self._instructions.append(AdoptProcess(start))
            if slot.state == ProcessState.DEAD and not self._phases.phase.ended:
                if slot.exited is None:
                    self._instructions.append(KillProcess(start))
                if not slot.fenced:
                    self._fence(slot)

    def scale(self, workers: int, now: float) -> None:
        """From now on so many workers are wanted; those beyond are asked to end."""
        self._record.note(now, f"{self._members.workers_wanted} workers become {workers}")
        new, again, draining = self._members.want_workers(workers)
        for slot in new:
            self._start(slot, now)
        for slot in again:
            self._relaunch(slot, now)
        for slot in draining:
            self._instructions.append(TerminateProcess(Start(slot.id, slot.incarnation)))

    def give_back(self, slot: WorkerSlot, now: float) -> None:
        """There is nothing left for a worker to do, which will end when it hears so."""
        slot.draining = slot.given_back = True
        self._record.note(now, f"{slot.id} is given back: there is nothing left for it to do")

    def call_back(self, now: float) -> None:
        """Those that were given back are needed again."""
        for slot in self._members.workers.values():
            if slot.given_back:
                slot.given_back = False
                self._relaunch(slot, now)

    def exited(self, worker: WorkerId, exited: Exited, now: float) -> None:
        """A worker's process is gone."""
        slot = self._members.workers[worker]
        if slot.incarnation != exited.start.incarnation:
            return
        if self._phases.phase.ended:
            self._rest(slot)
            return
        died_of = None
        if exited.crashed and not slot.draining:
            died_of = supervisor.death_at_records(slot, exited)
        self._mark_dead(slot, exited.cause, now, died_of, kill=False)
        slot.exited = exited
        slot.excused |= slot.draining or not exited.counted
        self._relaunch(slot, now)

    def taken_for_dead(self, worker: WorkerId, incarnation: int, cause: str, now: float) -> None:
        """A worker has been silent for too long."""
        slot = self._members.workers[worker]
        if slot.incarnation == incarnation:
            self._mark_dead(slot, cause, now, kill=True)

    def failed(self, slot: WorkerSlot, failure: Failure, now: float) -> None:
        """A worker said that it cannot go on."""
        storage = failure.kind == pb.STORAGE
        if failure.another_tries or (storage and self._phases.data_known):
            self.crashed(slot, failure, now)
        elif storage:
            # Nothing of the data was ever read: it is more likely not as the user means it.
            self._phases.fail(replace(failure, kind=pb.USER_ERROR), now)
        else:
            self._phases.give_up(failure, now)

    def crashed(self, slot: WorkerSlot, failure: Failure, now: float) -> None:
        """A worker met an error of ours, or did not reach a server."""
        # Its process is in an unknown state, so it is replaced like one that died.
        slot.failure = failure
        slot.excused |= failure.kind in (pb.SERVER_AWAY, pb.STORAGE)
        if not self._phases.phase.ended:
            # Only what is about records is held against them.
            died_of = failure if failure.span is not None else None
            self._mark_dead(slot, failure.message, now, died_of, kill=True)
            if failure.server is not None:
                self._servers.missed(ServerId(failure.server), slot.id, now)

    def _rest(self, slot: WorkerSlot) -> None:
        slot.state = ProcessState.DEAD
        slot.waits_for = slot.slow_at = ""
        self._record.keep_stages(slot.stage_seconds)
        slot.stage_seconds = {}

    def _mark_dead(
        self,
        slot: WorkerSlot,
        cause: str,
        now: float,
        died_of: Failure | None = None,
        *,
        kill: bool,
    ) -> None:
        """Take a worker for dead: it is not heard any more, its task goes to others.

        died_of: of what it died, if its task may be at fault.
        """
        if slot.state == ProcessState.DEAD:
            return
        self._rest(slot)
        slot.died_of = died_of
        self._clocks.forget(slot.id)
        if slot.draining:
            if not slot.given_back:
                self._record.note(now, f"{slot.id} left")
        else:
            slot.deaths += 1
            self._record.note(now, f"{slot.id} died ({cause})")
        if kill:
            self._instructions.append(KillProcess(Start(slot.id, slot.incarnation)))
        if not slot.given_back:
            self._tell_of_few(now)
        self._updates.leave(slot.id)
        # Also where it holds no task: a push under way must not arrive later.
        self._fence(slot)
        task = self._leases.held(slot.id)
        if task is not None and task.kind != pb.TRAIN:
            self._leases.end(slot.id)
            slot.excused |= self._phases.give_back(task, _failure_cause(slot), now)

    def _fence(self, slot: WorkerSlot) -> None:
        kept = self._updates.kept(slot.id, slot.incarnation)
        self._instructions.append(FenceWorker(slot.id, slot.incarnation, kept))

    def fenced(
        self,
        worker: WorkerId,
        incarnation: int,
        pushes: Sequence[AppliedPush | None],
        now: float,
    ) -> None:
        """As `Job.fenced`."""
        slot = self._members.workers[worker]
        if slot.incarnation != incarnation or slot.fenced:
            return
        slot.fenced = True
        pushes = self._updates.counted(worker, pushes)
        self._phases.fenced(worker, incarnation, pushes, now)
        self._updates.forget(worker)
        task, ahead = self._leases.take_back(worker)
        if task is not None:
            repeated = self._phases.give_back_training(task, pushes, _failure_cause(slot), now)
            slot.excused |= repeated
        if ahead is not None:
            self._phases.give_back_training(ahead, (), None, now)
        self._relaunch(slot, now)

    def _relaunch(self, slot: WorkerSlot, now: float) -> None:
        # Not before the fence has answered: a server tells what the dead incarnation
        # did only as long as no later one has pushed.
        ended = self._phases.phase.ended
        if ended or slot.exited is None or not slot.fenced or not self._members.wanted(slot):
            return
        decision = supervisor.after_worker_death(slot, slot.exited, self._relaunch_limit, now)
        if isinstance(decision, supervisor.GiveUp):
            self._phases.give_up(decision.failure, now)
            return
        incarnation = slot.start(now)
        pause = f", after a pause of {decision.pause:g} s" if decision.pause else ""
        self._record.note(now, f"{slot.id} was started again, restart {slot.starts - 1}{pause}")
        self._instructions.append(StartProcess(Start(slot.id, incarnation), decision.pause))


def _failure_cause(slot: WorkerSlot) -> FailureCause | None:
    """Of what a worker died, if its task may be at fault."""
    if slot.died_of is None:
        return None
    return FailureCause(slot.died_of, crash=True, worker=slot.id)
