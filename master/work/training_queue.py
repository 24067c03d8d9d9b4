"""Training tasks that were never given out, in order, in a few bytes each. No I/O, no clock."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from shoal.master.work.epochs import Order, Spans
from shoal.master.work.units import Span, Task
from shoal.proto import shoal_pb2 as pb


class _Batch:
    """Spans of one epoch as tasks with numbers from `first_id` on.

    cut: by place, the tasks that stand there instead of the whole span.
    """

    def __init__(self, epoch: int, first_id: int, spans: Order | Spans) -> None:
        self.epoch = epoch
        self.first_id = first_id
        self.spans = spans
        self.next = 0
        self.cut: dict[int, Sequence[Task]] = {}

    def __len__(self) -> int:
        extra = sum(len(tasks) - 1 for tasks in self.cut.values())
        return len(self.spans) - self.next + extra

    def at(self, place: int) -> Sequence[Task]:
        if place in self.cut:
            return self.cut[place]
        span, before = self.spans[place]
        number = self.first_id + place
        return (Task(number, pb.TRAIN, span, self.epoch, trained_before=before),)

    def records(self) -> int:
        less = sum(
            len(self.spans[place][0]) - sum(task.records for task in tasks)
            for place, tasks in self.cut.items()
        )
        return self.spans.records(self.next) - less


class TrainingQueue:
    """The tasks, to be taken from the front."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()
        self._front: deque[Task] = deque()  # of a place with several tasks

    def __len__(self) -> int:
        return len(self._front) + sum(map(len, self._batches))

    def __iter__(self) -> Iterator[Task]:
        yield from self._front
        for batch in self._batches:
            for place in range(batch.next, len(batch.spans)):
                yield from batch.at(place)

    @property
    def records(self) -> int:
        """Of all tasks."""
        waiting = sum(task.records for task in self._front)
        return waiting + sum(batch.records() for batch in self._batches)

    def clear(self) -> None:
        """Take all tasks out."""
        self._batches.clear()
        self._front.clear()

    def extend(self, epoch: int, first_id: int, spans: Order | Spans) -> None:
        """Append the spans of an epoch, as tasks with these ids."""
        if len(spans):
            self._batches.append(_Batch(epoch, first_id, spans))

    def join(self, other: TrainingQueue) -> None:
        """Append all tasks of another queue."""
        self._batches.extend(other._batches)

    def take(self) -> Task | None:
        """The first task; None if there is none."""
        while not self._front and self._batches:
            batch = self._batches[0]
            self._front.extend(batch.at(batch.next))
            batch.cut.pop(batch.next, None)
            batch.next += 1
            if batch.next == len(batch.spans):
                self._batches.popleft()
        return self._front.popleft() if self._front else None

    def replace(
        self, source: str, record: int, by: Callable[[Sequence[Task]], Sequence[Task]]
    ) -> None:
        """Put others in the place of the tasks of each span that has a record."""
        front = list(by(tuple(self._front)))
        self._front = deque(front)
        for batch in self._batches:
            place = batch.spans.find(source, record)
            if place is not None and place >= batch.next:
                batch.cut[place] = by(batch.at(place))

    def waits(self, task_id: int) -> bool:
        """Whether the task of this id was never given out."""
        if any(task.id == task_id for task in self._front):
            return True
        for batch in self._batches:
            place = task_id - batch.first_id
            if batch.next <= place < len(batch.spans) and place not in batch.cut:
                return True
            if any(task.id == task_id for tasks in batch.cut.values() for task in tasks):
                return True
        return False


def aligned(span: Span, length: int) -> list[tuple[int, int]]:
    """A span cut at the multiples of a length: [start, end) of each piece."""
    edges = [span.start, *range((span.start // length + 1) * length, span.end, length), span.end]
    return list(itertools.pairwise(edges))
