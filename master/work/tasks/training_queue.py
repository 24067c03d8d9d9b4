"""Training tasks that were never given out, in order, in a few bytes each. No I/O, no clock.

A block of them, ranges of one unit of the data (cutting.py), is given to one worker, task by task.
When no other is left, a worker that asks takes the second half of what another has left of its.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from shoal.master.work.tasks.epochs import Order, Spans
from shoal.master.work.units import ANYBODY, Requester, Task
from shoal.proto import shoal_pb2 as pb


class _Batch:
    """Spans of one epoch as tasks, whose numbers begin with `first_id` at the place `begin`.

    next: the place from which on no block was given to a worker.
    cut: by place, the tasks that stand there instead of the whole span.
    """

    def __init__(self, epoch: int, first_id: int, spans: Order | Spans, begin: int) -> None:
        self.epoch = epoch
        self.first_id = first_id - begin
        self.spans = spans
        self.next = begin
        self.cut: dict[int, Sequence[Task]] = {}

    def at(self, place: int) -> Sequence[Task]:
        if place in self.cut:
            return self.cut[place]
        span, before = self.spans[place]
        number = self.first_id + place
        return (Task(number, pb.TRAIN, span, self.epoch, trained_before=before),)

    def count(self, begin: int, end: int) -> int:
        extra = sum(len(tasks) - 1 for place, tasks in self.cut.items() if begin <= place < end)
        return end - begin + extra

    def records(self, begin: int, end: int) -> int:
        less = sum(
            len(self.spans[place][0]) - sum(task.records for task in tasks)
            for place, tasks in self.cut.items()
            if begin <= place < end
        )
        return self.spans.records(begin, end) - less


@dataclass
class _Opened:
    """The rest of a block, the places [begin, end) of a batch, which a worker does by and by."""

    batch: _Batch
    begin: int
    end: int
    worker: int


class TrainingQueue:
    """The tasks, to be taken from the front."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()  # of which some block was not begun
        self._opened: list[_Opened] = []
        self._front: deque[Task] = deque()  # of a place with several tasks

    def _left(self) -> Iterator[tuple[_Batch, int, int]]:
        """The places that are left, but for `_front`, as (batch, begin, end)."""
        yield from ((each.batch, each.begin, each.end) for each in self._opened)
        yield from ((each, each.next, len(each.spans)) for each in self._batches)

    def __len__(self) -> int:
        return len(self._front) + sum(batch.count(*part) for batch, *part in self._left())

    def __iter__(self) -> Iterator[Task]:
        yield from self._front
        for batch, begin, end in self._left():
            for place in range(begin, end):
                yield from batch.at(place)

    @property
    def records(self) -> int:
        """The number of records in all tasks."""
        waiting = sum(task.records for task in self._front)
        return waiting + sum(batch.records(*part) for batch, *part in self._left())

    def clear(self) -> None:
        """Take all tasks out."""
        self._batches.clear()
        self._opened.clear()
        self._front.clear()

    def extend(self, epoch: int, first_id: int, spans: Order | Spans, begin: int = 0) -> None:
        """Append the spans of an epoch from a place on, as tasks with ids from this one on."""
        if len(spans) > begin:
            self._batches.append(_Batch(epoch, first_id, spans, begin))

    def join(self, other: TrainingQueue) -> None:
        """Append all tasks of another queue, of which none was taken."""
        self._batches.extend(other._batches)

    def take(self, requester: Requester = ANYBODY) -> Task | None:
        """The requester's next task; None if there is none."""
        while not self._front and (block := self._block(requester.worker)) is not None:
            self._front.extend(block.batch.at(block.begin))
            block.batch.cut.pop(block.begin, None)
            block.begin += 1
            if block.begin == block.end:
                self._opened.remove(block)
        return self._front.popleft() if self._front else None

    def _block(self, worker: int) -> _Opened | None:
        """The block that a worker goes on with, else the next one, else a part of another's."""
        for each in self._opened:
            if each.worker == worker:
                return each
        if self._batches:
            batch = self._batches[0]
            end = batch.spans.block_end(batch.next)
            block = _Opened(batch, batch.next, end, worker)
            batch.next = end
            if batch.next == len(batch.spans):
                self._batches.popleft()
        elif self._opened:
            largest = max(self._opened, key=lambda each: each.end - each.begin)
            middle = (largest.begin + largest.end) // 2
            block = _Opened(largest.batch, middle, largest.end, worker)
            largest.end = middle
            if largest.begin == largest.end:
                self._opened.remove(largest)
        else:
            return None
        self._opened.append(block)
        return block

    def replace(
        self,
        source: str,
        positions: Callable[[int], Iterable[int]],
        by: Callable[[Sequence[Task]], Sequence[Task]],
    ) -> None:
        """Put others in the place of the tasks of each span that has one of some records.

        positions: gives their places in the order of an epoch.
        """
        front = list(by(tuple(self._front)))
        self._front = deque(front)
        for batch, begin, end in self._left():
            found = {batch.spans.find(source, each) for each in positions(batch.epoch)}
            for place in found:
                if place is not None and begin <= place < end:
                    batch.cut[place] = by(batch.at(place))

    def waits(self, task_id: int) -> bool:
        """True if the task of this id was never given out."""
        if any(task.id == task_id for task in self._front):
            return True
        for batch, begin, end in self._left():
            place = task_id - batch.first_id
            if begin <= place < end and place not in batch.cut:
                return True
            # Those in the place of others have ids of their own.
            cut = (tasks for at, tasks in batch.cut.items() if begin <= at < end)
            if any(task.id == task_id for tasks in cut for task in tasks):
                return True
        return False
