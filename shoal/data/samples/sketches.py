"""Summaries of streams of values, in memory that does not grow with the stream.

Quantiles, the number of distinct values, and the most frequent ones. Each is exact while
little was seen, says so, and has an error that is known otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]

QUANTILE_CAPACITY = 4096
"""Values in a level of QuantileSketch: some 0.05 % of error in rank."""

REGISTER_BITS = 14
"""HyperLogLog's 2**14 registers: a standard error of 0.81 %."""

EXACT_DISTINCT = 8192
"""Distinct values that are counted one by one, before they are estimated."""


class QuantileSketch:
    """Quantiles of float64 values: buffers in which a value stands for 2**level values.

    A buffer that is full is sorted, and every second value, beginning with the first or
    the second by chance, goes one level up (Manku, Rajagopalan and Lindsay; KLL without
    shrinking buffers). With buffers of k values the standard error of a rank is about
    1.5 / k of all values.
    """

    def __init__(self, seed: int = 0, capacity: int = QUANTILE_CAPACITY) -> None:
        self._capacity = capacity
        self._chance = np.random.default_rng(seed)
        self._levels: list[list[Float64]] = [[]]
        self.exact = True

    def add(self, values: Float64) -> None:
        """Add values, none of them NaN."""
        self._levels[0].append(np.array(values, np.float64))
        level = 0
        while sum(each.size for each in self._levels[level]) >= 2 * self._capacity:
            ordered = np.sort(np.concatenate(self._levels[level]))
            # An odd one stays, so that the weights add up.
            self._levels[level] = [ordered[:1]] if ordered.size % 2 else []
            ordered = ordered[ordered.size % 2 :]
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(ordered[int(self._chance.integers(2)) :: 2])
            self.exact = False
            level += 1

    def quantiles(self, ranks: Float64) -> Float64:
        """The values at `ranks`, from 0 to 1. Raises ValueError if none was added."""
        parts = [(each, 2**level) for level, all_ in enumerate(self._levels) for each in all_]
        values = np.concatenate([np.zeros(0), *(each for each, _ in parts)])
        if not values.size:
            raise ValueError("no value was added")
        weights = np.concatenate([np.full(each.size, weight) for each, weight in parts])
        order = np.argsort(values, kind="stable")
        below = np.cumsum(weights[order])
        wanted = np.ceil(np.asarray(ranks) * below[-1])
        found: Float64 = values[order][np.searchsorted(below, np.maximum(wanted, 1))]
        return found


class DistinctCounter:
    """A counter of different hashes: exact up to EXACT_DISTINCT, then HyperLogLog."""

    def __init__(self) -> None:
        self._seen: set[int] | None = set()
        self._registers = np.zeros(1 << REGISTER_BITS, np.uint8)

    @property
    def exact(self) -> bool:
        """True if `count` is exact, but for hashes that two values share."""
        return self._seen is not None

    def add(self, hashes: UInt64) -> None:
        """Add the hashes of values."""
        if self._seen is not None:
            self._seen.update(hashes.tolist())
            if len(self._seen) > EXACT_DISTINCT:
                self._seen = None
        places = (hashes >> np.uint64(64 - REGISTER_BITS)).astype(np.int64)
        rest = hashes & np.uint64((1 << (64 - REGISTER_BITS)) - 1)
        # frexp's exponent is the number of binary digits; 50 of them are exact in a float.
        digits = np.frexp(rest.astype(np.float64))[1]
        np.maximum.at(self._registers, places, (65 - REGISTER_BITS - digits).astype(np.uint8))

    def count(self) -> int:
        """Exact, or the estimate."""
        if self._seen is not None:
            return len(self._seen)
        size = float(self._registers.size)
        harmonic = np.exp2(-self._registers.astype(np.float64)).sum()
        estimate = 0.7213 / (1 + 1.079 / size) * size**2 / harmonic
        empty = int((self._registers == 0).sum())
        if estimate <= 2.5 * size and empty:
            estimate = size * np.log(size / empty)
        return round(float(estimate))


class FrequentValues:
    """Values by frequency, at most `capacity` of them (Misra and Gries).

    Exact while there are no more different values. After that a count may be too low, by at
    most `error`, which is at most the number of all values by `capacity`; a value that came
    more often is always there.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: dict[Any, int] = {}
        self.error = 0

    def add(self, values: Iterable[Any], counts: Iterable[int]) -> None:
        """Add values that are all different, and how often each came."""
        held = self._counts
        for value, count in zip(values, counts, strict=True):
            held[value] = held.get(value, 0) + count
        if len(held) > 2 * self._capacity:
            self._shrink()

    def _shrink(self) -> None:
        if len(self._counts) <= self._capacity:
            return
        counts = np.fromiter(self._counts.values(), np.int64, len(self._counts))
        cut = int(np.partition(counts, -self._capacity - 1)[-self._capacity - 1])
        self._counts = {value: count - cut for value, count in self._counts.items() if count > cut}
        self.error += cut

    def most(self, limit: int) -> list[tuple[Any, int]]:
        """The most frequent values with their counts; of equal ones the smaller first."""
        self._shrink()
        order = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return order[:limit]

    def __len__(self) -> int:
        return len(self._counts)


def mixed(values: UInt64) -> UInt64:
    """Hashes of different integers that are different, with all bits well mixed."""
    with np.errstate(over="ignore"):
        x = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def boundaries_of(quantiles: Sequence[float], bins: int) -> list[float]:
    """Boundaries of bins of about as many values each, ascending: bins - 1 at most.

    quantiles: of ranks in equal steps from 0 to 1. bins: two at least. There are fewer boundaries
    where one value makes up more than a bin.
    """
    values = np.asarray(quantiles, np.float64)
    places = np.arange(1, bins) * (values.size - 1) / bins
    return [float(each) for each in np.unique(values[np.rint(places).astype(int)])]
