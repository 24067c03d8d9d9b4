"""A histogram of durations that costs little to add to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
"""Seconds. A pull of a small batch takes less than a millisecond, a checkpoint many seconds."""


class Durations:
    """Counts durations by length. Not guarded against threads."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def copy(self) -> Durations:
        """The same counts."""
        made = Durations()
        made.include(self._counts, self.sum)
        return made

    def include(self, counts: Sequence[int], seconds: float) -> int:
        """Add what was counted elsewhere by BOUNDS; returns how many durations these are."""
        self._counts = [own + other for own, other in zip(self._counts, counts, strict=True)]
        self.sum += seconds
        return sum(counts)

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets, as HistogramMetricFamily takes them."""
        total, buckets = 0, []
        for bound, number in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            total += number
            buckets.append((bound, float(total)))
        return buckets
