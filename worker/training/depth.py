"""The number of a worker's steps that overlap: by need, or as --pipeline-depth says.

A row that is pulled ahead lacks the worker's own last pushes, which costs learning. By need, a
worker therefore begins with none ahead, and tries one more where its pulls and pushes take long
beside computing. It stays with that only if its steps become much faster: where worker and servers
share the processors, overlapping buys little, however long the calls take. The time from step to
step tells; the times of a pipeline's own stages do not, as they slow one another down.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable

from shoal.worker.reports.progress import Progress

logger = logging.getLogger(__name__)

BY_NEED = -1

DEEPEST = 2
"""By need. More only helps where servers are far away."""

FIRST_UPDATES = 200
"""Updates of a job during which no worker pulls ahead by need: its largest gradients."""

STEPS = 64
"""Of a worker, over which the times of their parts are measured."""

TOGETHER = 8
"""Steps whose times are added up: in a pipeline, a push does not end when its step does."""

GAIN = 1.2
"""One step more under way stays so if a worker's steps take 1 / GAIN of the time with it, or less.
It costs 0.0016 of AUC in docs/notes/training.md."""

PATIENCE = 16
"""Measurements from one try that brought too little to the next: servers may have moved away."""

_CALLS, _STEP, _WAIT = ("ids", "pull", "push"), "step", "wait for pull"


class PipelineDepth:
    """The depth of one worker's pipeline; one thread tells of pushes.

    now: steps that may overlap. Progress is told of it and the reason in words, but not while one
    more is tried; the reason is "" for a number that the user gave.
    """

    def __init__(self, given: int, progress: Progress, version: Callable[[], int]) -> None:
        """given: a number of steps, or BY_NEED. version: of the servers, as last seen."""
        self.most = DEEPEST if given == BY_NEED else given
        self.now = 0 if given == BY_NEED else given
        self._progress = progress
        self._version = version
        self._last: dict[str, float] | None = None
        self._took: list[tuple[float, float, float]] = []
        # Seconds of as many steps without the one more that is tried, then with it.
        self._tried: list[float] = []
        self._patience = 0
        self._tell("" if given != BY_NEED else f"the job's first {FIRST_UPDATES} updates")

    def begin(self) -> None:
        """Steps follow: what the worker has done since its last push was no part of one."""
        self._last = None

    def pushed(self) -> bool:
        """Another push is acknowledged; whether the depth is another one from now on."""
        if (self.now == self.most and not self._tried) or self._version() < FIRST_UPDATES:
            return False
        # From one push to the next: so the step that compiles the model is left out.
        last, self._last = self._last, self._progress.done().stage_seconds
        if last is None:
            return False
        took = {name: seconds - last.get(name, 0.0) for name, seconds in self._last.items()}
        step = took.get(_STEP, 0.0)
        calls = sum(took.get(name, 0.0) for name in _CALLS)
        self._took.append((calls, step, took.get(_WAIT, 0.0) + step))
        if len(self._took) < STEPS:
            return False
        # Usual steps: calls that once wait for a server or a move are no reason.
        calls, step, whole = (
            statistics.median(sum(times[at : at + TOGETHER]) for at in range(0, STEPS, TOGETHER))
            for times in zip(*self._took, strict=True)
        )
        self._took.clear()
        before = self.now
        if self._tried:
            self._judge(whole)
        elif self._patience:
            self._patience -= 1
        else:
            self._consider(calls, step, whole)
        return self.now != before

    def _consider(self, calls: float, step: float, whole: float) -> None:
        """Try one more step ahead if it can be worth it: the seconds of usual steps."""
        least = max(step, calls / 2, (calls + step) / (self.now + 2))
        if whole >= GAIN * least:
            self._tried = [whole]
            self.now += 1
        elif not self.now:
            self._tell(f"pulls and pushes take {calls / max(step, 1e-9):.0%} of the time of a step")

    def _judge(self, whole: float) -> None:
        """Stay with the step that is tried or go back, after the seconds of usual steps.

        It is compared with those before it and after it: a checkpoint, or another program, may
        have slowed down either.
        """
        self._tried.append(whole)
        if len(self._tried) == 2:
            self.now -= 1
            if self._tried[0] >= GAIN * whole:
                return
        before, tried, *after = self._tried
        gain = min([before, *after]) / max(tried, 1e-9)
        self._tried = []
        why = f"with {self.now + 2} it is {gain:.2f} times as fast as with {self.now + 1}"
        if gain < GAIN:
            self._patience = PATIENCE
            self._tell(f"{why}: rows that lack one more push are worth {GAIN:g} times")
            return
        self.now += 1
        self._tell(why)
        logger.info("up to %d steps are under way from now on: %s", self.now + 1, why)

    def _tell(self, why: str) -> None:
        self._progress.pipeline = self.now, why
