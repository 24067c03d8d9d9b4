"""The windows within which --shuffle buffer:N shuffles records, as the tasks see them. No I/O.

Tasks have positions in the shuffled order, records given up have numbers in their source: this is
where one becomes the other. The order itself is shoal.base.shuffling's, for the workers as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shoal.base.shuffling import Int64, unit_edges, window_edges, window_order
from shoal.master.work.units import Source, Span


class Windows:
    """The windows of sources. size: records in one at most; 0 for none."""

    def __init__(self, sources: Sequence[Source], size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._sources = {source.name: source for source in sources} if size else {}

    def of(self, span: Span) -> tuple[int, ...]:
        """The edges of the windows that hold positions of a span; nothing without windows."""
        if not self._size or not len(span):
            return ()
        edges = self._edges(span.source)
        first = int(np.searchsorted(edges, span.start, "right")) - 1
        last = int(np.searchsorted(edges, span.end, "left"))
        return tuple(map(int, edges[first : last + 1]))

    def record(self, epoch: int, source: str, position: int) -> int:
        """The number of the record at a position of the order of an epoch."""
        if not self._size:
            return position
        first, order = self._order(epoch, source, position)
        return first + int(order[position - first])

    def position(self, epoch: int, source: str, record: int) -> int:
        """The position of a record in the order of an epoch."""
        if not self._size:
            return record
        first, order = self._order(epoch, source, record)
        return first + int(np.flatnonzero(order == record - first)[0])

    def _order(self, epoch: int, source: str, inside: int) -> tuple[int, Int64]:
        first, end = self.of(Span(source, inside, inside + 1))
        return first, window_order(self._seed, epoch, source, first, end - first)

    def _edges(self, source: str) -> Int64:
        found = self._sources[source]
        return window_edges(found.records, found.units, self._size)


def with_windows(source: Source, size: int) -> Source:
    """A source whose units are pieces that hold both units and windows whole.

    So a worker that has the tasks of such a piece reads each unit and each window once.
    """
    if not size or not source.records:
        return source
    return replace(source, units=_common(source.records, source.units, size))


@lru_cache(maxsize=1024)
def _common(
    records: int, units: tuple[tuple[int, int], ...], size: int
) -> tuple[tuple[int, int], ...]:
    edges = window_edges(records, units, size)[1:]
    if units:
        edges = np.intersect1d(edges, unit_edges(units))
    lengths = np.diff(edges, prepend=0)
    begins = np.flatnonzero(np.diff(lengths, prepend=-1))
    times = np.diff(np.append(begins, len(lengths)))
    return tuple((int(lengths[at]), int(n)) for at, n in zip(begins, times, strict=True))
