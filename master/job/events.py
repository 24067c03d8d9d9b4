"""The events of a job, as values: all that changes it, but for news that will come again.

`Job.on` takes them. The journal writes them down by the names of their classes and fields, and
doing those of a journal again, in order, on a new job of the same configuration makes the same job.
So a field has a value that journal/events.py can write. The launcher's events, `Exited` and
`Waiting`, are in launcher.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform

from shoal.master.job.instructions import FenceWorker, Finished, Wait
from shoal.master.job.updates import Gradient
from shoal.master.work import outcomes
from shoal.master.work.accounts.applied import AppliedPush, LastPush
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.master.work.units import Task
from shoal.proto import shoal_pb2 as pb

if TYPE_CHECKING:
    from shoal.master.job.job import Job

Result = TypeVar("Result", covariant=True)


@dataclass_transform(frozen_default=True)
class Event(Generic[Result]):
    """One change of a job, which answers with a `Result`. Subclasses are frozen dataclasses."""

    kinds: ClassVar[dict[str, type[Event[Any]]]] = {}
    """Every event there is, by its name in the journal."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)
        Event.kinds[cls.__name__] = cls

    def __call__(self, job: Job, now: float) -> Result:
        """Let it happen; so an event is a change as `SharedJob.apply` takes it."""
        return job.on(self, now)


class OfServer(Event[Result]):
    """An event of a server's incarnation."""

    server: ServerId
    incarnation: int


class OfWorker(Event[Result]):
    """An event of a worker's incarnation."""

    worker: WorkerId
    incarnation: int


# ---------------------------------------------------------------- the job


class JobBegun(Event[None]):
    """All servers and workers start at once; workers wait for the servers."""


class MasterRestarted(Event[None]):
    """A new master goes on with this job: its processes are found again."""


class Resumed(Event[None]):
    """A job that was stopped, failed or killed goes on, with new processes.

    token: of this resumption. changes: of the configuration, by field. restored: the checkpoint
    that the servers restore. given_up: others, by number, that nobody is to restore. in_model: the
    training records in the one restored. log: why the log of updates was not used, or not to its
    end. shards: of the one restored, the last push of each worker in each server's shard; none with
    --sync.
    """

    token: str
    changes: dict[str, Any]
    restored: Taken | None
    given_up: Sequence[int]
    in_model: Sequence[Interval]
    log: str = ""
    shards: Sequence[Sequence[LastPush]] = ()


class Noted(Event[None]):
    """Something happened around the job that its user is to read."""

    text: str


class JobFailed(Event[None]):
    """The job ends as failed, unless it has ended before."""

    failure: Failure


class JobStopped(Event[None]):
    """The job ends as stopped, unless it has ended before."""

    reason: str


class WorkersWanted(Event[None]):
    """So many workers are wanted from now on; those beyond are asked to end."""

    workers: int


class Autoscaled(Event[None]):
    """The job has decided on its number of workers. state: of the search, after that."""

    workers: int
    why: str
    state: dict[str, Any]


class ServersWanted(Event[None]):
    """So many servers are wanted from now on, which `Job.check_servers` has found possible."""

    servers: int
    why: str = ""


class VersionSeen(Event[None]):
    """A worker has seen this model version, at which a round of evaluation begins."""

    version: int


# ---------------------------------------------------------------- moves of slots


class TableWanted(Event[None]):
    """Slots are to be where this table has them."""

    table: pb.RoutingTable
    why: str


class MoveBegun(Event[int]):
    """Rows begin to move to where this table has them; answers the number of this attempt."""

    table: pb.RoutingTable


class MoveCommitted(Event[None]):
    """All rows are where they are to be: from now on the new table holds."""


class MoveEnded(Event[None]):
    """All servers know that the move is over, and have only their own rows.

    slots: -1 of a move that an earlier master decided. size: bytes that moved. paused: seconds for
    which no push was taken.
    """

    slots: int = -1
    rows: int = 0
    size: int = 0
    seconds: float = 0.0
    paused: float = 0.0


class MoveFailed(Event[None]):
    """A move was given up, and all servers know it: the table stays."""

    why: str


# ---------------------------------------------------------------- checkpoints


class CheckpointBegun(Event[None]):
    """The servers are about to be asked to fix what they hold."""


class CheckpointFixed(Event[None]):
    """All servers have fixed what they hold. Told for the journal."""


@dataclass(frozen=True)
class Taken:
    """A checkpoint that is complete.

    bytes: of all its files. seconds: it took. nonce: of the attempt to take it, which tells
    it from another of the same number.
    """

    number: int
    version: int
    bytes: int
    seconds: float
    nonce: str = ""


class CheckpointTaken(Event[None]):
    """A checkpoint is complete. final: that of the end of training."""

    taken: Taken
    final: bool


class CheckpointFailed(Event[None]):
    """A checkpoint could not be taken; the job goes on without it."""

    reason: str
    final: bool


class CheckpointsFound(Event[None]):
    """The checkpoints that a new master finds, oldest first; events may tell of others."""

    there: Sequence[Taken]


class CheckpointRecovered(Event[None]):
    """A checkpoint was made of checkpoint `base` (0: of the beginning) and the log after it.

    replayed: pushes that were done again for it. The job is about to be resumed from it.
    """

    taken: Taken
    base: int
    replayed: int


class CheckpointRefused(OfServer[None]):
    """A server finds its shard of the checkpoint that the job was resumed from damaged.

    No server has been pushed to since: all processes end, and the job is resumed once more, from
    another one (`Resumed`).
    """

    number: int
    why: str


@dataclass(frozen=True)
class Published:
    """A delta that is whole.

    bytes: of all its shares. seconds: of a processor, which the dearest of them took.
    """

    number: int
    base: bool
    bytes: int
    seconds: float


class DeltaPublished(Event[None]):
    """A delta is whole. course: as of `PublishDelta`."""

    delta: Published
    course: int | None = None


class DeltaFailed(Event[None]):
    """A delta could not be published. for_good: nor could any other."""

    why: str
    for_good: bool = False


class DeltaLeftOut(Event[None]):
    """The delta of the end of training is not to be published."""

    why: str


class PublishingHeld(Event[None]):
    """The user has nothing published from now on, or again."""

    held: bool


# ---------------------------------------------------------------- servers


class ServerRegistered(OfServer[list[FenceWorker]]):
    """A server listens at `address`. restored: what of a checkpoint and its log, in words.

    checkpoint: the one that it has restored, by number; 0 for none. replayed: pushes of its log
    that it has done again. has: the last push of each worker that it has. update, held: with
    --sync, the last update that it has, and the gradients that it holds. A server says so again if
    it got no answer, and such a call may come late, when it has served workers since: one
    incarnation counts once.

    Answers with the fences of the workers' incarnations that are over: no push of them is to be
    applied.
    """

    address: str
    restored: str = ""
    replayed: int = 0
    has: Sequence[LastPush] = ()
    checkpoint: int = 0
    update: int = 0
    held: Sequence[Gradient] = ()

    @classmethod
    def from_message(cls, message: pb.RegisterServerRequest) -> ServerRegistered:
        """The event of a server's call."""
        return cls(
            ServerId(message.server),
            message.incarnation,
            message.address,
            message.restored,
            message.replayed,
            tuple(map(LastPush.from_message, message.has)),
            message.checkpoint,
            message.update,
            tuple(Gradient(WorkerId(g.worker), g.incarnation, g.number) for g in message.held),
        )


class ServerHung(OfServer[None]):
    """A server has answered nothing for too long; its process is to end."""


class ServersConfirmed(Event[None]):
    """At the end, the last push of each worker that each server has.

    has: by server; None for one that did not answer.
    """

    has: Sequence[Sequence[LastPush] | None]


class WorkerMet(OfServer[None]):
    """A worker meets a server that was started again.

    told: its last push that an earlier incarnation of the server had acknowledged.
    """

    told: LastPush


class ProtectionChanged(Event[None]):
    """With --durability=log, a server's updates are not protected by its log, or are again.

    absences, seconds: of all its incarnations. why: they are not; "" if they are.
    """

    server: ServerId
    absences: int
    seconds: float
    why: str


class ProcessFailed(Event[None]):
    """A process said that it cannot go on."""

    start: Start
    failure: Failure


# ---------------------------------------------------------------- workers


class WorkerRegistered(OfWorker[pb.RegisterWorkerReply]):
    """A worker is ready. Raises WireError also as `ServerLifecycle.addresses` does."""


class WorkerReplaced(OfWorker[None]):
    """The job has decided that a worker is to end, and to be started again elsewhere."""

    why: str


class TakenForDead(OfWorker[None]):
    """A worker has been silent for too long."""

    cause: str


class WorkerFenced(OfWorker[None]):
    """The servers take no more pushes of this worker.

    pushes: the last one that each server has; None for one that could not be asked.
    """

    pushes: Sequence[AppliedPush | None]


class TaskWanted(OfWorker[Task | Wait | Finished]):
    """A worker asks for work. It is an event if there is a task."""


class TaskAheadWanted(OfWorker[Task | Finished]):
    """A worker at training task `held` asks for the one after it; Finished: none yet.

    None either if `held` is not at work, but itself leased ahead or over.
    """

    held: int


class TaskReported(OfWorker[None]):
    """A worker is through with its task, well or badly.

    trained: of a TRAIN task that failed, the part that was trained. acknowledged: the worker's last
    push that all servers have, by sequence.

    Raises WireError also with UNKNOWN_TASK if it does not hold the task, and with BAD_REQUEST if
    the outcome is not one of such a task.
    """

    task_id: int
    outcome: outcomes.Outcome
    version: int
    trained: outcomes.Trained = outcomes.NOTHING_TRAINED
    acknowledged: int = 0

    @classmethod
    def from_message(cls, message: pb.ReportTaskRequest) -> TaskReported:
        """The event of a worker's call. Raises WireError if it has no outcome."""
        outcome, trained = outcomes.of_report(message), outcomes.NOTHING_TRAINED
        if isinstance(outcome, Failure):
            trained = outcomes.Trained(message.records_done, message.records_touched)
        who = WorkerId(message.worker), message.incarnation
        return cls(*who, message.task, outcome, message.version, trained, message.acknowledged)


class TrainingAllowed(Event[None]):
    """Training can begin: as many workers as --min-workers asks for are there."""


class WorkerGivenBack(Event[None]):
    """There is nothing left for a worker to do, and others are enough for what is."""

    worker: WorkerId


class WorkersCalledBack(Event[None]):
    """The workers that were given back are needed again."""


class GradientsLeftOut(OfWorker[None]):
    """A worker has left out so many minibatches in all, of so many records."""

    minibatches: int
    records: int
    why: str


class PipelineDeepened(Event[None]):
    """A worker is the first in which so many steps overlap."""

    worker: WorkerId
    depth: int
    why: str


class WorkerWaits(OfWorker[None]):
    """A worker waits for what is out of its hands, such as storage; "" for nothing more."""

    what: str


class GradientOffered(Event[bool]):
    """With --sync, all servers hold a gradient for `update`; answers whether it will be applied."""

    gradient: Gradient
    update: int
    task_id: int
    records_done: int


class UpdateApplied(Event[None]):
    """All servers have applied an update, and are at this version."""

    number: int
    version: int
