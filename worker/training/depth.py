"""How many steps of a worker overlap: by need, or as --pipeline-depth says.

A row that is pulled ahead lacks the worker's own last pushes. Where updates are few or large that
costs learning, and where a step takes far longer than its pulls and pushes it buys no speed. By
need, a worker therefore begins with none ahead, measures, and overlaps as many steps as its calls
to servers are worth. It does not go back: a pipeline's own stages slow one another down, and their
times do not tell what a step alone would take.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from shoal.worker.progress import Progress

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
        self.by_need = given == BY_NEED
        self.most = DEEPEST if self.by_need else given
        self._progress = progress
        self._version = version
        self._begun: Counter[str] | None = None
        self._steps = 0
        why = f"the job's first {FIRST_UPDATES} updates" if self.by_need else ""
        self.now, self.why = 0 if self.by_need else given, why
        progress.pipeline = self.now, self.why

    def pushed(self) -> bool:
        """Another push is acknowledged; whether the depth is another one from now on."""
        if not self.by_need or self.now == self.most or self._version() < FIRST_UPDATES:
            return False
        spent = Counter(self._progress.done().stage_seconds)
        if self._begun is None:  # after the step that compiles the model
            self._begun, self._steps = spent, 0
            return False
        self._steps += 1
        if self._steps < STEPS:
            return False
        share = _share(spent, self._begun)
        self._begun = None
        return self._set(share)

    def _set(self, share: float) -> bool:
        before = self.now
        wanted = next((depth for least, depth in WORTH if share >= least), 0)
        why = f"pulls and pushes take {share:.0%} of the time that a step computes"
        self.now, self.why = max(before, wanted), why
        self._progress.pipeline = self.now, self.why
        if self.now > before:
            logger.info("up to %d steps overlap from now on: %s", self.now, why)
        return self.now > before


def _share(spent: Counter[str], begun: Counter[str]) -> float:
    ids, pull, step, push = (spent[name] - begun[name] for name in ("ids", "pull", "step", "push"))
    return (ids + pull + push) / max(step, 1e-9)
