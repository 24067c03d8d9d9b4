"""Signs in a job's result that it learned less than it could. Draws nothing, asks no process."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from shoal.client.show.course import larger_is_better
from shoal.result import JobResult

FEW_UPDATES, MUCH_STALENESS = 500, 2.0
"""Of a job, and of its pushes on average: with both, a model may learn less than in one process."""

LEAST_POINTS = 6
"""Of a course, before its noise can be told from a rise."""

CERTAIN, WORTH = 5.0, 0.005
"""Of a rise: in standard errors, which noise alone passes in one job of a hundred; and by the
lowest value, as less is not worth a word."""

OF_NORMAL = 0.6745 * 6**0.5
"""The median of the second differences' sizes, of normal noise with standard deviation 1."""


def few_updates(result: JobResult) -> str:
    """That a job had few updates for its staleness, and what helps; "" if it had not."""
    mean = result.staleness.get("mean", 0.0)
    updates = max(result.versions.values(), default=0)
    if mean <= MUCH_STALENESS or not 0 < updates < FEW_UPDATES:
        return ""
    return (
        f"{updates:,}, of gradients that are {mean:.1f} updates old on average: one process may "
        "learn more; try --sync, or fewer workers"
    )


def rise(values: Sequence[float]) -> tuple[float, float] | None:
    """The lowest and the last value of a course that ends clearly above its lowest; else None.

    Both are means over an eighth of the course. What is clear follows from the noise, which second
    differences show, as a steady slope has none.
    """
    if len(values) < LEAST_POINTS:
        return None
    bends = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    width = max(1, len(values) // 8)
    error = statistics.median(bends) / OF_NORMAL * (2 / width) ** 0.5
    means = [statistics.fmean(values[at : at + width]) for at in range(len(values) - width + 1)]
    lowest, last = min(means), means[-1]
    clear = last - lowest > max(CERTAIN * error, WORTH * abs(lowest))
    return (lowest, last) if clear else None


def rising_loss(result: JobResult) -> str:
    """That the loss rose over a job's end, or a metric got worse, and what helps; "" if not."""
    if found := rise(result.training_loss):
        stale = result.staleness.get("mean", 0.0) > MUCH_STALENESS
        better = "--sync, --staleness-bound or a lower" if stale else "a lower"
        return f"in training from {found[0]:.4f} to {found[1]:.4f}: try {better} learning rate"
    for column, values in result.history.items():
        name = column.removeprefix("val_")
        if name == column:
            continue
        larger = larger_is_better(name)
        known = [value for value in values if isinstance(value, float)]
        if larger is not None and (found := rise([-x if larger else x for x in known])):
            best, last = map(abs, found)
            return (
                f"{name} of the validation data went from {best:.4f} to {last:.4f}, and the loss "
                "in training did not rise: try fewer epochs, or export the best model with "
                "shoal.callbacks.ExportBest"
            )
    return ""
