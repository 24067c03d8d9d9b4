"""What a job says: instructions to whoever runs it, and answers to its workers.

Values only. When each is given is for the parts of job.py to decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.master.job.updates import Update
from shoal.master.work.ids import Start, WorkerId
from shoal.master.work.units import Task
from shoal.proto import shoal_pb2 as pb


@dataclass(frozen=True)
class StartProcess:
    """Start this process, after so many seconds."""

    start: Start
    pause: float = 0.0


@dataclass(frozen=True)
class KillProcess:
    """End this process at once; it was taken for dead."""

    start: Start


@dataclass(frozen=True)
class TerminateProcess:
    """Ask this process to end; it is no longer wanted."""

    start: Start


@dataclass(frozen=True)
class FenceWorker:
    """Have every server refuse this worker's pushes, then call `Job.fenced`.

    kept: numbers of its gradients that the servers are to hold on, with --sync.
    """

    worker: WorkerId
    incarnation: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class ApplyUpdate:
    """Have every server apply this update, one after another, then call `Job.update_applied`."""

    update: Update


@dataclass(frozen=True)
class AdoptProcess:
    """Find this process again, which an earlier master started or was about to start."""

    start: Start


@dataclass(frozen=True)
class TakeCheckpoint:
    """Take a checkpoint, then call `Job.checkpoint_taken` or `Job.checkpoint_failed`.

    final: it is that of the end of training, as these are to be told.
    """

    final: bool = False


@dataclass(frozen=True)
class ConfirmServers:
    """Ask all servers what they have, then call `Job.servers_confirmed`."""


@dataclass(frozen=True)
class MoveSlots:
    """Move rows to where this table has them.

    Then call `Job.move_begun`, `move_committed` and `move_ended`, or `move_failed`.
    """

    table: pb.RoutingTable


@dataclass(frozen=True)
class SettleServers:
    """Tell all servers which table holds, after another master's move.

    decided: that was completed. Then call `Job.move_ended`, else `Job.move_failed`.
    """

    decided: bool


@dataclass(frozen=True)
class RemoveCheckpoints:
    """Remove these checkpoints, by number."""

    numbers: tuple[int, ...]


Instruction = (
    StartProcess
    | AdoptProcess
    | TerminateProcess
    | KillProcess
    | FenceWorker
    | ApplyUpdate
    | TakeCheckpoint
    | ConfirmServers
    | MoveSlots
    | SettleServers
    | RemoveCheckpoints
)


@dataclass(frozen=True)
class Wait:
    """Nothing to do yet; ask again after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Finished:
    """Nothing more to do at all."""


@dataclass(frozen=True)
class Assignment:
    """A task for the worker that asked.

    clock: the worker's, with --staleness-bound. rate_reductions: how often the learning rate was
    reduced.
    """

    task: Task
    clock: int
    rate_reductions: int


@dataclass(frozen=True)
class WorkerWelcome:
    """servers: addresses by index. data_known: a worker has read the job's data before."""

    servers: list[str]
    data_known: bool


@dataclass(frozen=True)
class ClockAnswer:
    """slowest: least clock of the workers in training. next_told: at which to tell one's again."""

    slowest: int
    next_told: int


@dataclass(frozen=True)
class RestoreOffer:
    """What a server that is being started may restore.

    checkpoints: number and nonce of each, the newest first. again: an incarnation before it has
    run. replay: its log belongs to this course of the job. whole_job: all servers begin with the
    same checkpoint. holder: where its log is kept; "" for nowhere else. joins: it is new in a job
    that trains. routing: the table that holds.
    """

    again: bool
    replay: bool
    whole_job: bool
    checkpoints: tuple[tuple[int, str], ...]
    holder: str
    joins: bool
    routing: pb.RoutingTable


@dataclass(frozen=True)
class HeartbeatAnswer:
    """stop: the job has ended. abandon_task: the task is no longer the worker's.

    step_limit: seconds that one thing may take in a worker.
    """

    stop: bool
    abandon_task: bool
    step_limit: float
