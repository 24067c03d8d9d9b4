"""The job changes its number of workers itself, --autoscale. No I/O, no clock.

Owns what counts as a measurement: a window of time in which the same workers trained, none of them
about to come or to go, and how fast they did. What follows from it is worker_search.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config.options import JobOptions
from shoal.master.job.events import Autoscaled, Event, Noted
from shoal.master.job.heard import hears
from shoal.master.job.members.members import ProcessState, WorkerMember
from shoal.master.job.members.membership import Membership
from shoal.master.job.scaling.worker_search import Proposal, WorkerSearch

LEAST_STEPS = 5
"""Of a worker before it is measured: its first step compiles the model."""

IN_TRAINING = 0.5
"""Of a window that a worker must have spent in training, to count as one that trains."""

ROOM_SECONDS = 60.0
"""For which a worker may wait for room on the cluster: then the job goes on without it, and gets no
more as long as it waits."""

WORTH_IT = 4.0
"""Windows for which the job must last, at least, before it gets more workers: one goes by until
they train, and another until that is measured."""


@dataclass(frozen=True)
class _Trained:
    """The work of one worker so far: steps, and the seconds of its training."""

    steps: int
    seconds: float


SCALE_SECONDS = 20.0
"""Of a measurement, between two changes of the numbers."""


@dataclass
class _Window:
    began: float
    workers: dict[tuple[int, int], _Trained]


@hears("_window", "_said")
class Autoscaler:
    """Decides for one job. wants: whether it is to decide at all. seconds: of a measurement."""

    def __init__(self, options: JobOptions, seconds: float) -> None:
        self.wants = options.scales_workers
        self.acts = options.autoscale == "on"
        self._seconds = seconds
        self._evaluating = options.evaluation_workers
        self._least, self._most = options.worker_range
        self.search = WorkerSearch(self._least, self._most, options.scale_efficiency)
        self._window: _Window | None = None
        self._said: int | None = None

    def is_news(self, found: Proposal) -> bool:
        """True if the job has not said so already, where it only says what it would do."""
        said, self._said = self._said, found.workers
        return said != found.workers

    def due(
        self,
        members: Membership,
        steps_left: Callable[[], float | None],
        now: float,
        allowed: int | None,
    ) -> Iterator[Event[None]]:
        """The event of a proposal of `look` that is to be followed, or told."""
        wanted, found = members.workers_wanted, self.look(members, steps_left, now, allowed)
        if found is None or found.workers == wanted:
            return
        if self.acts:
            yield Autoscaled(found.workers, found.why, self.search.state())
        elif self.is_news(found):
            change = f"from {wanted} to {found.workers}"
            yield Noted(f"the number of workers would go {change}: {found.why}")

    def restart(self) -> None:
        """The number of workers was changed by the user."""
        self._window = None
        self.search.restart()

    def decided(self, state: Mapping[str, Any]) -> None:
        """A proposal was followed, which left the search in this state."""
        self._window = None
        self.search.restore(state)

    def look(
        self,
        members: Membership,
        steps_left: Callable[[], float | None],
        now: float,
        allowed: int | None = None,
    ) -> Proposal | None:
        """The change to make now, if any. To be asked while the job trains.

        allowed: the most workers that may be requested; None: as many as the range has.
        steps_left: tells how many steps of training are left; None if that is not known. It is
        asked at the end of a window.
        """
        if allowed is not None:
            self.search.limit(max(self._least, min(self._most, allowed)))
        workers = _in_training(members, now, self._evaluating)
        window = self._window
        if workers is None:
            self._window = None
        elif window is None or window.workers.keys() != workers.keys():
            self._window = _Window(now, workers)
        elif now - window.began >= self._seconds:
            self._window = _Window(now, workers)
            speed = self._speed(window, workers, now)
            if speed is not None:
                left = steps_left()
                worth_it = left is None or left / speed >= WORTH_IT * self._seconds
                room = len(workers) == members.workers_wanted
                return self.search.measured(len(workers), speed, grows=worth_it and room)
        return None

    def _speed(
        self, window: _Window, workers: Mapping[tuple[int, int], _Trained], now: float
    ) -> float | None:
        """Steps a second of all workers while they trained; None if too few did for long enough."""
        training, speed = 0, 0.0
        for worker, then in window.workers.items():
            seconds = workers[worker].seconds - then.seconds
            if seconds >= IN_TRAINING * (now - window.began):
                training += 1
                speed += (workers[worker].steps - then.steps) / seconds
        enough = training >= max(1, len(workers) - self._evaluating)
        return speed if enough and speed > 0 else None


def _in_training(
    members: Membership, now: float, evaluating: int
) -> dict[tuple[int, int], _Trained] | None:
    """All wanted workers, by index and incarnation; None while any is about to come or to go.

    Without those that wait for room. evaluating: so many, the first ones, may never train.
    """
    found = {}
    for worker in members.workers.values():
        if worker.id.index < members.workers_wanted:
            if _waits_for_room(worker, now):
                continue
            least = LEAST_STEPS if worker.id.index >= evaluating else 0
            if not trains(worker, least):
                return None
            done = _Trained(worker.steps_done, worker.stage_seconds.get("training", 0.0))
            found[worker.id.index, worker.incarnation] = done
        elif worker.state == ProcessState.ALIVE:
            return None
    return found or None


def _waits_for_room(worker: WorkerMember, now: float) -> bool:
    waits = worker.state == ProcessState.STARTING and not worker.running
    return waits and now - worker.last_seen >= ROOM_SECONDS


def trains(worker: WorkerMember, least: int = LEAST_STEPS) -> bool:
    """True if a worker is there, is to stay, and is past its first steps, at least so many."""
    here = worker.state == ProcessState.ALIVE and not worker.draining
    return here and worker.steps_done >= least
