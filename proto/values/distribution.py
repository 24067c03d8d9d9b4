"""Distributions of measured values: exact count, sum and maximum, and a histogram.

What servers measure and the master adds up. The mean comes from the sum, never from
the buckets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.proto import shoal_pb2 as pb

BUCKETS = 64


class Distribution:
    """Values of at least 0, in buckets that double in width.

    unit: bucket i counts the values whose whole number of units has i binary digits:
        0, 1, 2-3, 4-7, ... units.

    Not guarded against threads.
    """

    def __init__(self, unit: float = 1.0) -> None:
        self._unit = unit
        self._buckets = [0] * BUCKETS
        self.count = 0
        self.sum = 0.0
        self.maximum = 0.0

    def add(self, value: float) -> None:
        """Count a value; one below 0 counts as 0."""
        value = max(0.0, value)
        self._buckets[min(int(value / self._unit).bit_length(), BUCKETS - 1)] += 1
        self.count += 1
        self.sum += value
        self.maximum = max(self.maximum, value)

    @classmethod
    def of(cls, buckets: list[int], count: int, total: float, maximum: float) -> Distribution:
        """One whose values were added elsewhere. buckets: BUCKETS counts."""
        made = cls()
        made._buckets, made.count, made.sum, made.maximum = buckets, count, total, maximum
        return made

    @property
    def mean(self) -> float:
        """The mean; 0 if there is no value."""
        return self.sum / self.count if self.count else 0.0

    @property
    def histogram(self) -> list[int]:
        """Counts by bucket, as long as it need be: the last is not 0."""
        length = max((i + 1 for i, count in enumerate(self._buckets) if count), default=0)
        return self._buckets[:length]

    def to_message(self) -> pb.Distribution:
        """The same for the wire."""
        return pb.Distribution(
            buckets=self.histogram, count=self.count, sum=self.sum, maximum=self.maximum
        )

    @classmethod
    def merged(cls, messages: Iterable[pb.Distribution]) -> Distribution:
        """All values of several distributions of one unit."""
        total = cls()
        for message in messages:
            for i, count in enumerate(message.buckets[:BUCKETS]):
                total._buckets[i] += count
            total.count += message.count
            total.sum += message.sum
            total.maximum = max(total.maximum, message.maximum)
        return total

    def to_json(self) -> dict[str, Any]:
        """The same for result.json."""
        return {"mean": self.mean, "maximum": self.maximum, "histogram": self.histogram}
