"""Units of work: spans of records, tasks, and a queue of tasks done whole or not at all.

The queue serves everything but training: a task whose worker died is simply given
out again from its beginning. Training, where the part done counts, is tasks.py's.
No I/O.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.proto import shoal_pb2 as pb


@dataclass
class TaskIds:
    """Yields the job's next task id with every call; ids are never used twice."""

    next: int = 1

    def __call__(self) -> int:
        """The next id."""
        return self.reserve(1)

    def reserve(self, count: int) -> int:
        """The first of so many ids that follow one another."""
        first = self.next
        self.next += count
        return first


@dataclass(frozen=True)
class Source:
    """One source of records and how many it has.

    units: pieces that are decoded as a whole, from its first record on, as pairs: records of one,
        and how many such follow one another. None where any range costs its own records only.
    """

    name: str
    records: int
    units: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_message(cls, message: pb.Source) -> Source:
        """The source that a message describes, without units that do not hold its records."""
        units = tuple(zip(message.units[::2], message.units[1::2], strict=False))
        if sum(each * times for each, times in units) != message.records:
            units = ()
        return cls(message.name, message.records, units)


@dataclass(frozen=True)
class FoundSource:
    """A source that was found and not described yet.

    weight: what describing it costs. stamp: its state, for Arrivals.
    """

    name: str
    weight: float
    stamp: str = ""

    @classmethod
    def from_message(cls, message: pb.FoundSource) -> FoundSource:
        """The source that a message names."""
        return cls(message.name, message.weight, message.stamp)


@dataclass(frozen=True, slots=True)
class Span:
    """Records [start, end) of a source."""

    source: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def pieces(self, length: int) -> list[Span]:
        """The same records as spans of at most `length`, in order."""
        return [
            Span(self.source, start, min(start + length, self.end))
            for start in range(self.start, self.end, length)
        ]

    def __str__(self) -> str:
        if len(self) == 1:
            return f"record {self.start} of {self.source}"
        return f"records {self.start} to {self.end - 1} of {self.source}"

    def to_message(self) -> pb.Range:
        """The same for the wire."""
        return pb.Range(source=self.source, start=self.start, end=self.end)


@dataclass(frozen=True)
class Task:
    """Something that one worker is to do.

    span: the records of TRAIN, EVALUATE and PREDICT.
    trained_before: TRAIN: length of the head of the span whose records an earlier
        lease had trained, at least in part.
    states: FINISH_EVALUATION: the merged metric states.
    position: PREDICT: records of the whole input before the span. FINISH_PREDICTION: all
        records of the input.
    failures, crashes: of earlier leases at just this span. failed_on: index of the worker
        that failed last, -1 for none. suspect: cut out of a span that failed (poison.py).
    waited: how often in a row the storage did not give just this span to a worker.
    skipped: FINISH_PREDICTION: positions in the whole input of records given up.
    again: TRAIN: its records were trained, and a server has lost their gradients.
    windows: TRAIN: edges of those windows that the span's positions are in (windows.py).
    data: DESCRIBE_SOURCES, EVALUATE, FINISH_EVALUATION: the data that it is about. sources:
        DESCRIBE_SOURCES: names of sources. token: LIST_SOURCES: of the listing before.
    """

    id: int
    kind: pb.TaskKind
    span: Span | None = None
    epoch: int = 0
    evaluation: int = 0
    trained_before: int = 0
    states: pb.MetricStates | None = None
    position: int = 0
    failures: int = 0
    crashes: int = 0
    failed_on: int = -1
    suspect: bool = False
    waited: int = 0
    skipped: tuple[int, ...] = ()
    again: bool = False
    data: str = ""
    sources: tuple[str, ...] = ()
    windows: tuple[int, ...] = ()
    token: str = ""

    @property
    def records(self) -> int:
        """Length of the span, 0 without one."""
        return 0 if self.span is None else len(self.span)

    def to_message(self) -> pb.Task:
        """The same for the wire."""
        message = pb.Task(
            id=self.id,
            kind=self.kind,
            epoch=self.epoch,
            evaluation=self.evaluation,
            position=self.position,
            skipped=self.skipped,
            data=self.data,
            sources=self.sources,
            windows=self.windows,
            token=self.token,
        )
        if self.span is not None:
            message.range.CopyFrom(self.span.to_message())
        if self.states is not None:
            message.states.CopyFrom(self.states)
        return message


class Duty(enum.Enum):
    """The duty of a worker while training goes on, with --evaluation-workers."""

    ALL = "all"  # whatever is to be done
    TRAINING = "training"  # not evaluations: others do them
    EVALUATION = "evaluation"  # not training: others do it


@dataclass(frozen=True)
class Requester:
    """A worker's incarnation that asks for a task, and whether others are at work and will ask.

    exports: whether it may get an export, during which no rows may move between servers.
    """

    worker: int = -1
    incarnation: int = 0
    others: bool = False
    duty: Duty = Duty.ALL
    exports: bool = True


ANYBODY = Requester()


def pick(queue: deque[Task], requester: Requester) -> Task | None:
    """Take the first task that did not fail on the requester; one that did, if nobody else asks."""
    for position, task in enumerate(queue):
        if task.failed_on < 0 or task.failed_on != requester.worker:
            del queue[position]
            return task
    return queue.popleft() if queue and not requester.others else None


class TaskQueue:
    """Tasks given out in order; one that comes back is given out first, with a new id."""

    def __init__(self, tasks: Iterable[Task], next_id: TaskIds) -> None:
        self._next_id = next_id
        self._waiting: deque[Task] = deque()
        self._leased: dict[int, Task] = {}
        self.tasks_total = self.tasks_done = 0
        self.records_total = self.records_done = 0
        self.add(tasks)

    def add(self, tasks: Iterable[Task]) -> None:
        """There are these tasks, too, after the others."""
        for task in tasks:
            self._waiting.append(task)
            self.tasks_total += 1
            self.records_total += task.records

    @property
    def finished(self) -> bool:
        """True if every task has been completed."""
        return not self._waiting and not self._leased

    @property
    def waiting(self) -> int:
        """Tasks that are not given out."""
        return len(self._waiting)

    @property
    def left(self) -> int:
        """Tasks that are not done."""
        return len(self._waiting) + len(self._leased)

    @property
    def under_way(self) -> bool:
        """True if a worker holds one of the tasks."""
        return bool(self._leased)

    @property
    def all(self) -> list[Task]:
        """Return the tasks that are not done."""
        return [*self._leased.values(), *self._waiting]

    def leases(self, task_id: int) -> bool:
        """True if the task is one of these and given out."""
        return task_id in self._leased

    def take(self, requester: Requester = ANYBODY) -> Task | None:
        """Lease the next task; None while there is none."""
        task = pick(self._waiting, requester)
        if task is not None:
            self._leased[task.id] = task
        return task

    def complete(self, task_id: int) -> Task:
        """Record that a leased task is done, and return it. Raises KeyError if not leased."""
        task = self._leased.pop(task_id)
        self.tasks_done += 1
        self.records_done += task.records
        return task

    def give_back(self, task_id: int) -> None:
        """Take the task from a worker that will not finish it. Raises KeyError if not leased."""
        self.retry(task_id, [self._leased[task_id]])

    def take_back_all(self) -> None:
        """Take all leased tasks from their workers."""
        for task_id in list(self._leased):
            self.give_back(task_id)

    def drop(self, unwanted: Callable[[Task], bool]) -> None:
        """Give out none of the tasks that are not wanted any more."""
        kept = [task for task in self._waiting if not unwanted(task)]
        gone = len(self._waiting) - len(kept)
        self.tasks_total -= gone
        self.records_total -= sum(task.records for task in self._waiting if unwanted(task))
        self._waiting = deque(kept)

    def retry(self, task_id: int, pieces: Sequence[Task]) -> None:
        """Give out these pieces of a leased task, first of all. Raises KeyError if not leased."""
        del self._leased[task_id]
        tasks = [replace(each, id=self._next_id()) for each in pieces]
        self._waiting.extendleft(reversed(tasks))
        self.tasks_total += len(tasks) - 1

    def give_up(self, task_id: int) -> None:
        """Give up a leased task. Raises KeyError if not leased."""
        task = self._leased.pop(task_id)
        self.tasks_done += 1
        self.records_total -= task.records
