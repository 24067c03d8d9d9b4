"""The updates of --sync: which gradients are averaged into which update of the model.

The servers hold gradients; here is decided, once and for all servers alike, which of
them make the next update. Owns who may compute a gradient for it, which are admitted
and which came too late. No I/O, no clock.

A gradient is admitted when every server holds it, so what is admitted will be applied
whatever becomes of its worker; of a gradient that is not, nothing is applied anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from shoal.config.job import JobConfig
from shoal.master.job.heard import hears
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.ids import WorkerId
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError


@dataclass(frozen=True)
class Gradient:
    """A gradient by its worker and its number, which rises with each of an incarnation."""

    worker: WorkerId
    incarnation: int
    number: int


@dataclass(frozen=True)
class Update:
    """An update, decided: the average of `gradients`. dropped: held for nothing.

    after: the number of the one before; 0 for the first since the job began or was resumed.
    """

    number: int
    after: int
    gradients: tuple[Gradient, ...]
    dropped: tuple[Gradient, ...]


@dataclass
class Counts:
    """Counts of the gradients by their fate.

    updates: decided, `short` of them of fewer gradients than wanted. gradients: admitted,
    `folded` of them into a later update than they were computed for. dropped: too late.
    """

    updates: int = 0
    short: int = 0
    gradients: int = 0
    folded: int = 0
    dropped: int = 0


@hears("held_back")
class Updates:
    """The updates of a job.

    size: gradients in an update. fold: whether a late gradient counts for the update
    that is open when it comes; otherwise it is dropped. held_back: workers wait once the
    update that is open is applied.
    """

    def __init__(self, size: int, *, fold: bool) -> None:
        self.size = size
        self.counts = Counts()
        self._fold = fold
        self._open = 1
        self._begin()

    def _begin(self) -> None:
        # Numbers go on where a job is resumed: none is that of two updates.
        self.held_back = False
        self._first = self._open
        self._applied = self._open - 1
        self._training: set[WorkerId] = set()
        self._joined: dict[WorkerId, int] = {}  # for which update each computes a gradient
        self._admitted: list[Gradient] = []
        self._dropped: list[Gradient] = []
        self._decided: deque[Update] = deque()
        self._unapplied: deque[Update] = deque()
        self._answers: dict[WorkerId, tuple[Gradient, bool]] = {}
        self._last: dict[WorkerId, AppliedPush] = {}

    @property
    def idle(self) -> bool:
        """True if the servers have applied all that was admitted."""
        return not self._admitted and not self._unapplied

    @property
    def made(self) -> int:
        """The number of updates that the job has decided on since it began."""
        return self._open - 1

    @property
    def has_decided(self) -> bool:
        """True if `take_decided` would return any."""
        return bool(self._decided)

    def take_decided(self) -> list[Update]:
        """Updates that the servers are to be told of, in order, each given once."""
        taken = list(self._decided)
        self._decided.clear()
        return taken

    def few_workers(self, workers: int) -> str | None:
        """The message where there are fewer workers than gradients in an update; None elsewhere."""
        if workers >= self.size:
            return None
        return (
            f"--grads-to-wait {self.size} is above the number of workers, {workers}: "
            "each gives several gradients to an update"
        )

    def tell_again(self) -> None:
        """Another master goes on: it is not known which updates the servers were told of."""
        self._decided = deque(self._unapplied)
        self.held_back = False

    def join(self, worker: WorkerId) -> int | None:
        """Let a worker compute a gradient for the open update; None if it must wait.

        It waits until all servers have applied the update before, and where its gradient is to
        be for the next one.
        """
        if self._applied + 1 < self._open:
            return None
        joined = self.join_ahead(worker)
        if joined != self._open:
            self._joined.pop(worker, None)
            return None
        return joined

    def join_ahead(self, worker: WorkerId) -> int | None:
        """Let a worker compute a gradient, once all servers have applied the update before its own.

        Returns the number of its update; None if it must ask again. That is the open one. Once it
        has given one to that, it is the next one, as long as those to come from the others in
        training are enough: then the gradients of an update are of different workers, and where
        workers are fewer than gradients, each gives several. Where workers are held back, only an
        update goes on that has begun, with no more of them than it takes.
        """
        self._joined.pop(worker, None)
        computing = {each for each, update in self._joined.items() if update <= self._open}
        computed = len(self._admitted) + len(computing)
        if self.held_back and not 0 < computed < self.size:
            return None
        gave = {each.worker for each in self._admitted}
        if worker in gave:
            others = self._training - {worker}
            to_come = sum(each not in gave or each in computing for each in others)
            if len(self._admitted) + to_come >= self.size:
                if self.held_back:
                    return None
                self._joined[worker] = self._open + 1
                return self._open + 1
        self._joined[worker] = self._open
        return self._open

    def hold_back(self, held: bool) -> None:
        """Let workers wait once the update that is open is applied; or no more."""
        self.held_back = held

    @property
    def quiet(self) -> bool:
        """True if no worker computes a gradient, and none waits."""
        return self.idle and not self._joined

    @property
    def dropped(self) -> set[Gradient]:
        """Gradients that came too late, of which the servers were not told yet."""
        return set(self._dropped)

    def enter(self, worker: WorkerId) -> None:
        """A worker gets a training task: gradients of it will come."""
        self._training.add(worker)

    def leave(self, worker: WorkerId) -> None:
        """A worker has no training task, and gets none now."""
        self._training.discard(worker)
        self._joined.pop(worker, None)

    def offer(
        self, gradient: Gradient, joined: int, task: int, records_done: int, *, leased: bool
    ) -> bool:
        """A gradient for update `joined` that all servers hold; whether it is admitted.

        task, records_done: of its worker, with this gradient. leased: whether the worker
        holds the task; if not, its records are others' to train. The same gradient gets
        the same answer again.
        """
        worker = gradient.worker
        answered = self._answers.get(worker)
        if answered is not None and answered[0] == gradient:
            return answered[1]
        self._joined.pop(worker, None)
        late = joined != self._open
        admitted = leased and (self._fold or not late)
        self._answers[worker] = gradient, admitted
        if not admitted:
            self.counts.dropped += 1
            self._dropped.append(gradient)
            return False
        self.counts.gradients += 1
        self.counts.folded += late
        self._admitted.append(gradient)
        self._last[worker] = AppliedPush(gradient.number, task, records_done)
        if len(self._admitted) >= self.size:
            self._decide()
        return True

    def flush(self) -> None:
        """No more gradients will come: what there is makes the last update."""
        if self._admitted:
            self._decide()

    def _decide(self) -> None:
        self.counts.updates += 1
        self.counts.short += len(self._admitted) < self.size
        # Sorted, so that the sum does not depend on who came first.
        gradients = sorted(self._admitted, key=lambda each: (each.worker, each.number))
        after = self._open - 1 if self._open > self._first else 0
        update = Update(self._open, after, tuple(gradients), tuple(self._dropped))
        self._decided.append(update)
        self._unapplied.append(update)
        self._admitted, self._dropped = [], []
        self._open += 1

    def applied(self, number: int) -> None:
        """Every server has applied an update."""
        while self._unapplied and self._unapplied[0].number <= number:
            self._applied = self._unapplied.popleft().number

    def lacks(self, update: int, held: Collection[Gradient]) -> str:
        """The lack of a server that has applied up to `update` and holds these; "" for none."""
        if self._applied >= self._first and update < self._applied:
            return f"update {self._applied}"
        for each in self._unapplied:
            if each.number > update and not set(each.gradients) <= set(held):
                return f"a gradient of update {each.number}"
        if not set(self._admitted) <= set(held):
            return f"a gradient of update {self._open}"
        return ""

    def kept(self, worker: WorkerId, incarnation: int) -> tuple[int, ...]:
        """Numbers of a dead worker's gradients that are admitted and not yet applied.

        The servers are to hold no others of it.
        """
        waiting = [*self._admitted]
        for update in self._unapplied:
            waiting += update.gradients
        return tuple(
            each.number
            for each in waiting
            if each.worker == worker and each.incarnation == incarnation
        )

    def counted(
        self, worker: WorkerId, pushes: Sequence[AppliedPush | None]
    ) -> Sequence[AppliedPush | None]:
        """The one that counts of a worker's last pushes, one of each server.

        What the servers hold counts for nothing: only what was admitted is applied.
        """
        del pushes
        return [self._last.get(worker, AppliedPush(0, 0, 0))]

    def forget(self, worker: WorkerId) -> None:
        """A worker is dead and fenced."""
        self._answers.pop(worker, None)
        self._last.pop(worker, None)

    @property
    def applying(self) -> bool:
        """True if an update is decided that not all servers are known to have applied."""
        return bool(self._unapplied)

    def unapplied(self) -> set[Gradient]:
        """Admitted gradients that the servers have not all applied."""
        return {*self._admitted, *(each for update in self._unapplied for each in update.gradients)}

    def resumed(self) -> None:
        """The job goes on with new servers, which hold nothing.

        An update is of as many gradients as before, whatever the number of workers is now.
        """
        self._begin()

    def to_json(self) -> dict[str, int] | None:
        """The counts of gradients, as in result.json."""
        return asdict(self.counts)


class NoUpdates(Updates):
    """The updates of a job without --sync, whose servers apply each push as it comes: none."""

    def __init__(self) -> None:
        super().__init__(0, fold=False)

    def join_ahead(self, worker: WorkerId) -> int | None:
        """Raises WireError."""
        del worker
        raise _not_synchronous()

    def offer(
        self, gradient: Gradient, joined: int, task: int, records_done: int, *, leased: bool
    ) -> bool:
        """Raises WireError."""
        del gradient, joined, task, records_done, leased
        raise _not_synchronous()

    def applied(self, number: int) -> None:
        """Raises WireError."""
        del number
        raise _not_synchronous()

    def counted(
        self, worker: WorkerId, pushes: Sequence[AppliedPush | None]
    ) -> Sequence[AppliedPush | None]:
        """All of them."""
        del worker
        return pushes

    def to_json(self) -> None:
        """None: result.json has no counts of updates then."""
        return


def updates_of(config: JobConfig) -> Updates:
    """The updates of the job that `config` describes."""
    if not config.sync:
        return NoUpdates()
    return Updates(config.gradients_per_update, fold=config.sync_late == "fold")


def _not_synchronous() -> WireError:
    return WireError(pb.BAD_REQUEST, "the job does not train with --sync")
