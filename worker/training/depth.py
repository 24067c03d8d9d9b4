"""The number of a worker's steps that overlap: by need, or as --pipeline-depth says.

A row that is pulled ahead lacks the worker's own last pushes. Where updates are few or large that
costs learning, and where a step takes far longer than its pulls and pushes it buys no speed. By
need, a worker therefore begins with none ahead, measures, and overlaps as many steps as its calls
to servers are worth. It does not go back: a pipeline's own stages slow one another down, and their
times do not tell what a step alone would take.
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

STEPS = 32
"""Of a worker, over which the times of their parts are measured."""

WORTH = ((0.5, 2), (0.1, 1))
"""Time of pulls and pushes, as a share of the time that a step computes, from which on so many
steps overlap. One step hides calls that take half of its time; jitter asks for room beyond that."""


class PipelineDepth:
    """The depth of one worker's pipeline; one thread tells of pushes.

    now: steps that may overlap. why: the reason in words; "" for a number that the user gave.
    """

    def __init__(self, given: int, progress: Progress, version: Callable[[], int]) -> None:
        """given: a number of steps, or BY_NEED. version: of the servers, as last seen."""
        self.most = DEEPEST if given == BY_NEED else given
        self._progress = progress
        self._version = version
        self._last: dict[str, float] | None = None
        self._took: list[tuple[float, float]] = []
        if given == BY_NEED:
            self._set(0, f"the job's first {FIRST_UPDATES} updates")
        else:
            self._set(given, "")

    def begin(self) -> None:
        """Steps follow: what the worker has done since its last push was no part of one."""
        self._last = None

    def pushed(self) -> bool:
        """Another push is acknowledged; whether the depth is another one from now on."""
        if self.now == self.most or self._version() < FIRST_UPDATES:
            return False
        # From one push to the next: so the step that compiles the model is left out.
        last, self._last = self._last, self._progress.done().stage_seconds
        if last is None:
            return False
        ids, pull, step, push = (
            self._last.get(name, 0.0) - last.get(name, 0.0)
            for name in ("ids", "pull", "step", "push")
        )
        self._took.append((ids + pull + push, step))
        if len(self._took) < STEPS:
            return False
        # The usual step: calls that once wait for a server or a move are no reason.
        calls, computing = map(statistics.median, zip(*self._took, strict=True))
        self._took.clear()
        share = calls / max(computing, 1e-9)
        before = self.now
        wanted = next((depth for least, depth in WORTH if share >= least), 0)
        why = f"pulls and pushes take {share:.0%} of the time that a step computes"
        self._set(max(before, wanted), why)
        if self.now > before:
            logger.info("up to %d steps are under way from now on: %s", self.now + 1, why)
        return self.now > before

    def _set(self, now: int, why: str) -> None:
        self.now, self.why = self._progress.pipeline = now, why
