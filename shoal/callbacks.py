"""What a user's `callbacks()` may return beside Keras's own: decided at one place of a job.

Each acts the same however many workers there are. The numbers here are handed to the
master, which has the count of steps and the evaluations; a schedule is called by the workers
with a number that all of them agree on. worker/callbacks.py reads these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MODES = ("auto", "min", "max")
UNITS = ("version", "epoch")


@dataclass(frozen=True)
class MaxSteps:
    """End the training after this many minibatches, counted over all workers.

    The tasks of the job are cut to that length beforehand, so it is exact. Minibatches of
    records that a dead worker left are trained again and not counted twice.
    """

    steps: int

    def __post_init__(self) -> None:
        """Raises ValueError for a number below 1."""
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"MaxSteps: steps must be a positive integer, not {self.steps!r}")


@dataclass(frozen=True)
class EarlyStopping:
    """End the training when a metric of the evaluations has stopped improving.

    monitor: name of the metric, as the report gives it.
    patience: evaluations without an improvement after which training ends; as in Keras, 0
        ends it at the first one.
    min_delta: by how much a value must be better to count as an improvement.
    mode: "max" or "min"; "auto" tells from the name.
    baseline: a value that must be reached for patience to begin anew; None for none.
    start_from_epoch: evaluations of earlier epochs do not count.
    """

    monitor: str = "loss"
    patience: int = 0
    min_delta: float = 0.0
    mode: str = "auto"
    baseline: float | None = None
    start_from_epoch: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown mode or a negative patience."""
        if self.mode not in MODES:
            raise ValueError(f"EarlyStopping: mode must be one of {MODES}, not {self.mode!r}")
        if self.patience < 0:
            raise ValueError(f"EarlyStopping: patience must be at least 0, not {self.patience}")


@dataclass(frozen=True)
class LearningRateScheduler:
    """The learning rate as a function of the model version or of the epoch.

    schedule: takes a number, and gives the rate.
    by: "version" (pushes that the servers have applied) or "epoch" (from 0, of the task
        that is trained).
    """

    schedule: Callable[[int], float]
    by: str = "version"

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown unit or a schedule that is no function."""
        if self.by not in UNITS:
            raise ValueError(f"LearningRateScheduler: by must be one of {UNITS}, not {self.by!r}")
        if not callable(self.schedule):
            raise ValueError("LearningRateScheduler: schedule must be a function")
