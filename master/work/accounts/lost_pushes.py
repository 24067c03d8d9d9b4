"""Which acknowledged pushes a server has lost by its deaths, each counted once.

Owns the sum over a server's incarnations. Each of them says of every worker that it meets
which pushes lie between what it has restored and what the worker was told. Two incarnations
that restore the same checkpoint name the same pushes again, so these are kept as ranges of
sequence numbers, whose union is the loss. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from shoal.master.work.accounts.ranges import Ranges, length, union
from shoal.master.work.ids import WorkerId

Incarnation = tuple[WorkerId, int]
"""One start of a worker; its pushes are numbered from 1."""

SUM = -1
"""In an incarnation's place: all that are told apart no more, whose pushes are numbered through."""


@dataclass(frozen=True)
class LostPushes:
    """Pushes of a worker's incarnation, numbered from `after`, which is there, up to `upto`."""

    worker: WorkerId
    incarnation: int
    after: int
    upto: int


@dataclass
class LostOfServer:
    """The pushes that all incarnations of one server have lost."""

    _ranges: dict[Incarnation, Ranges] = field(default_factory=dict)  # as `after` and `upto`
    _closed: int = 0  # of incarnations that nobody can name again

    @property
    def count(self) -> int:
        """Count the lost pushes."""
        return self._closed + sum(length(ranges) for ranges in self._ranges.values())

    def has(self, of: Incarnation) -> bool:
        """True if the server has lost any push of this incarnation."""
        return of in self._ranges

    def sum_up(self, of: Incarnation, pushes: int) -> int:
        """Tell an incarnation, of which it has had so many, from the sum no more.

        Returns by how many the sum grows: all of them, and what it had lost beyond.
        """
        ranges = self._ranges.pop(of, ())
        if lost := length(ranges):
            key = of[0], SUM
            self._ranges[key] = ((0, length(self._ranges.get(key, ())) + lost),)
        return length(union(ranges, [(0, pushes)]))

    def close(self, known: Container[Incarnation]) -> None:
        """Only these may be named from now on; of all others the number is kept."""
        for of in [each for each in self._ranges if each not in known]:
            self._closed += length(self._ranges.pop(of))

    def add(self, lost: Iterable[LostPushes]) -> int:
        """Count these; returns how many were not counted before."""
        before = self.count
        for each in lost:
            key = each.worker, each.incarnation
            self._ranges[key] = union(self._ranges.get(key, ()), [(each.after, each.upto)])
        return self.count - before
