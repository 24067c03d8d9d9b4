"""Instructions of a job to the code that runs it, and its answers to workers.

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
    """Fence this worker at every server, then tell the job (`WorkerFenced`).

    kept: numbers of its gradients that the servers are to hold on, with --sync.
    """

    worker: WorkerId
    incarnation: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class ApplyUpdate:
    """Apply this update at every server, in order, then tell the job (`UpdateApplied`)."""

    update: Update


@dataclass(frozen=True)
class AdoptProcess:
    """Find this process again, which an earlier master started or was about to start."""

    start: Start


@dataclass(frozen=True)
class TakeCheckpoint:
    """Take a checkpoint, then tell the job (`CheckpointTaken` or `CheckpointFailed`).

    final: it is that of the end of training, as these are to be told.
    """

    final: bool = False


@dataclass(frozen=True)
class PublishDelta:
    """Publish what has changed, then tell the job (`DeltaPublished` or `DeltaFailed`).

    course: that of the end of training, after so many returns to training; None: not that.
    """

    course: int | None = None


@dataclass(frozen=True)
class ConfirmServers:
    """Ask all servers what they have, then tell the job (`ServersConfirmed`)."""


@dataclass(frozen=True)
class MoveSlots:
    """Move rows to where this table has them.

    Then tell the job (`MoveBegun`, `MoveCommitted` and `MoveEnded`, or `MoveFailed`).
    """

    table: pb.RoutingTable


@dataclass(frozen=True)
class SettleServers:
    """Tell all servers which table holds, after another master's move.

    decided: that was completed. Then tell the job (`MoveEnded`, else `MoveFailed`).
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
    | PublishDelta
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
