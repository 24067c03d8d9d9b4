"""Workers that --autoscale replaces, as they are far slower than the others. No I/O, no clock.

Owns for how long a worker must have been slow, and that each is replaced once: what is slow again
is so for another reason than its process or its machine. When a worker is slow is stage_times.py's
to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shoal.master.job.events import Event, Noted, WorkerReplaced
from shoal.master.job.heard import hears
from shoal.master.job.members.membership import Membership
from shoal.master.job.scaling.autoscaling import IN_TRAINING, trains
from shoal.master.job.scaling.stage_times import (
    WorkerTime,
    slowest,
    time_in_words,
    usual_step_seconds,
)
from shoal.master.work.ids import WorkerId

WINDOWS = 3
"""One after the other, in which a worker was slow until it is replaced."""

_Key = tuple[int, int]
"""A worker's index and incarnation."""


@dataclass(frozen=True)
class Straggler:
    """why: in words."""

    worker: WorkerId
    incarnation: int
    why: str


@hears("_began", "_before", "_slow")
class Stragglers:
    """Stragglers of one job. seconds: of a window."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = 0.0
        self._before: dict[_Key, WorkerTime] = {}
        self._slow: tuple[_Key, int] | None = None  # and in how many windows
        self._over: set[WorkerId] = set()

    def replaced(self, worker: WorkerId) -> None:
        """A worker was replaced, or the job has said that it would be: it is so once."""
        self._over.add(worker)

    def due(self, members: Membership, now: float, *, acts: bool) -> Iterator[Event[None]]:
        """The event of the worker to replace. acts: it is, and not only told."""
        found = self.look(members, now)
        if found is not None and acts:
            yield WorkerReplaced(found.worker, found.incarnation, found.why)
        elif found is not None:
            self.replaced(found.worker)
            yield Noted(f"{found.worker} would be replaced: {found.why}")

    def look(self, members: Membership, now: float) -> Straggler | None:
        """The worker to replace now, if any. To be asked while the job trains."""
        if self._before and now - self._began < self._seconds:
            return None
        before, after = self._before, _in_training(members)
        window, self._began, self._before = now - self._began, now, after
        times = {key: _between(before[key], after[key]) for key in after.keys() & before.keys()}
        # One that evaluated, or waited for room, says little of its speed.
        times = {key: each for key, each in times.items() if each.seconds >= IN_TRAINING * window}
        found = slowest(list(times.values()))
        if found is None:
            self._slow = None
            return None
        slow, others = found
        usual = time_in_words(usual_step_seconds(others))
        key = next(key for key, each in times.items() if each is slow)
        windows = self._slow[1] + 1 if self._slow is not None and self._slow[0] == key else 1
        self._slow = key, windows
        worker = WorkerId(key[0])
        if windows < WINDOWS or worker in self._over:
            return None
        self._slow = None
        return Straggler(
            worker,
            key[1],
            f"its step takes {time_in_words(slow.step_seconds)}, that of the others "
            f"{usual}, for {WINDOWS} times {self._seconds:g} s",
        )


def _in_training(members: Membership) -> dict[_Key, WorkerTime]:
    """The work of each worker so far, of those that are past their first steps."""
    return {
        (member.id.index, member.incarnation): WorkerTime(
            str(member.id), dict(member.stage_seconds), member.steps_done
        )
        for member in members.workers.values()
        if trains(member)
    }


def _between(before: WorkerTime, after: WorkerTime) -> WorkerTime:
    stages: Mapping[str, float] = {
        name: seconds - before.stages.get(name, 0.0) for name, seconds in after.stages.items()
    }
    return WorkerTime(after.name, stages, after.steps - before.steps)
