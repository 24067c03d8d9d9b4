"""Which acknowledged pushes a server has lost by its deaths, each counted once.

Owns the sum over a server's incarnations. Each of them says of every worker that it meets
which pushes lie between what it has restored and what the worker was told. Two incarnations
that restore the same checkpoint name the same pushes again, so these are kept as ranges of
sequence numbers, whose union is the loss. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.master.work.ids import WorkerId

Range = tuple[int, int]
"""Pushes of an incarnation of a worker: after the first number, up to the second."""


@dataclass(frozen=True)
class LostPushes:
    """Pushes of a worker's incarnation, numbered from `after`, which is there, up to `upto`."""

    worker: WorkerId
    incarnation: int
    after: int
    upto: int


@dataclass
class LostOfServer:
    """What all incarnations of one server have lost."""

    _ranges: dict[tuple[WorkerId, int], list[Range]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many pushes."""
        return sum(_length(ranges) for ranges in self._ranges.values())

    def new(self, lost: Iterable[LostPushes]) -> int:
        """How many of these are not counted yet."""
        with_them = LostOfServer(dict(self._ranges))
        return with_them.add(lost)

    def add(self, lost: Iterable[LostPushes]) -> int:
        """Count these; returns how many were not counted before."""
        before = self.count
        for each in lost:
            key = each.worker, each.incarnation
            self._ranges[key] = _union([*self._ranges.get(key, ()), (each.after, each.upto)])
        return self.count - before


def _union(ranges: Iterable[Range]) -> list[Range]:
    joined: list[Range] = []
    for after, upto in sorted(ranges):
        if joined and after <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(upto, joined[-1][1])
        elif upto > after:
            joined.append((after, upto))
    return joined


def _length(ranges: Iterable[Range]) -> int:
    return sum(upto - after for after, upto in ranges)
