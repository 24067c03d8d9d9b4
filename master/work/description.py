"""Which sources of the job's data are described, and the tasks that describe the others.

A worker lists all sources and describes the first of them, so that training can begin; the others
are described by tasks, by all workers, a part of the data after the other. A part counts once it is
described whole and all parts before it are, so that the order of training does not depend on who
was faster. Parts grow, so that few of them make most of the data. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.base.shuffling import by_numbers
from shoal.master.work.arrivals import Arrivals
from shoal.master.work.units import FoundSource, Requester, Source, Task, TaskIds, TaskQueue
from shoal.proto import shoal_pb2 as pb

ARRIVING = "training"
"""The kind of data of which more may come."""

TASK_WEIGHT = 16.0
"""Of the sources of one task: a second or a few of a worker's time."""

FIRST_PART = 4
"""Tasks of the first part that tasks describe."""

GROWTH = 4
"""How much larger a part is than the one before."""

LARGEST_PART = 64
"""Tasks of a part at most: what is shuffled in the first epoch."""


@dataclass
class _Part:
    """tasks: how many are not done. sources: of those that are."""

    data: str
    tasks: int = 0
    sources: list[Source] = field(default_factory=list)


class Description:
    """The sources that wait to be described.

    arrivals: of more of training. complete: whether all of each kind of data are described.
    """

    def __init__(self, next_id: TaskIds, arrivals: Arrivals | None = None) -> None:
        self._next_id = next_id
        self.arrivals = arrivals or Arrivals(0.0, 0.0, 0.0, next_id)
        self._tasks = TaskQueue([], next_id)
        self._parts: list[_Part] = []  # not taken by `ready`
        self._part_of: dict[str, _Part] = {}  # by data and the first source of a task
        self.found = self.described = 0

    def add(self, found: Mapping[str, Sequence[FoundSource]]) -> None:
        """There are these sources, too, by the kind of data; those of the first kind come first."""
        tasks = []
        for data, sources in found.items():
            groups = list(_groups(sources))
            size = FIRST_PART
            while groups:
                part = _Part(data)
                self._parts.append(part)
                for group in groups[:size]:
                    task = Task(self._next_id(), pb.DESCRIBE_SOURCES, data=data, sources=group)
                    tasks.append(task)
                    self._part_of[f"{data}/{group[0]}"] = part
                    part.tasks += 1
                del groups[:size]
                size = min(size * GROWTH, LARGEST_PART)
            self.found += len(sources)
        self._tasks.add(tasks)

    @property
    def complete(self) -> bool:
        """True if no source waits to be described."""
        return not self._parts

    @property
    def under_way(self) -> int:
        """The number of workers that describe a source."""
        return self._tasks.left - self._tasks.waiting

    @property
    def waiting(self) -> bool:
        """True if a worker can take a task."""
        return self._tasks.waiting > 0

    @property
    def tasks(self) -> tuple[int, int]:
        """Tasks done, and in all."""
        return self._tasks.tasks_done, self._tasks.tasks_total

    def awaits(self, data: str) -> bool:
        """True if sources of this kind of data wait to be described, or more of them may come."""
        comes = data == ARRIVING and self.arrivals.open
        return comes or any(part.data == data for part in self._parts)

    def names(self, data: str) -> set[str]:
        """The sources of this kind of data that do not count yet."""
        waiting = {name for task in self._tasks.all for name in task.sources if task.data == data}
        parts = (part for part in self._parts if part.data == data)
        return waiting | {source.name for part in parts for source in part.sources}

    def take(self, requester: Requester) -> Task | None:
        """Lease the next task; None while there is none."""
        return self._tasks.take(requester)

    def give_back(self, task: Task) -> None:
        """Take a leased task from a worker that will not finish it."""
        self._tasks.give_back(task.id)

    def done(self, task: Task, sources: Sequence[Source]) -> None:
        """A leased task is done: these are its sources, described."""
        self._tasks.complete(task.id)
        part = self._part_of.pop(f"{task.data}/{task.sources[0]}")
        part.sources += sources
        part.tasks -= 1
        self.described += len(task.sources)

    def ready(self) -> Iterator[tuple[str, tuple[Source, ...]]]:
        """The parts that count from now on, with the kind of data of each."""
        waits: set[str] = set()
        for part in list(self._parts):
            if part.tasks or part.data in waits:
                waits.add(part.data)
                continue
            self._parts.remove(part)
            yield part.data, tuple(sorted(part.sources, key=lambda source: by_numbers(source.name)))

    def drop(self, data: str) -> None:
        """Describe no more of this kind of data; what is leased may still be reported."""
        if data == ARRIVING:
            self.arrivals.open = False
        self._parts = [part for part in self._parts if part.data != data]
        self._tasks.drop(lambda task: task.data == data)

    def resume(self) -> None:
        """The job begins again: nobody describes anything now."""
        self.arrivals.resume()
        self._tasks.take_back_all()


def _groups(found: Sequence[FoundSource]) -> Iterator[tuple[str, ...]]:
    """The names of sources, by task."""
    group: list[str] = []
    weight = 0.0
    for source in found:
        if group and weight + source.weight > TASK_WEIGHT:
            yield tuple(group)
            group, weight = [], 0.0
        group.append(source.name)
        weight += source.weight
    if group:
        yield tuple(group)
