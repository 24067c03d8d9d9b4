"""The cutting of sources into the ranges of tasks, and the order of these ranges. No I/O.

A range is `records_per_task` long. Some sources have units, pieces that are decoded as a whole,
such as the row groups of a Parquet file. Their ranges end at the end of a unit if few minibatches
are left short by that. Ranges that share a unit make a block: one worker should do them in their
order, so that the unit is read once. In other sources each range is a block by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.base.shuffling import unit_edges
from shoal.master.work.units import Source, Span

Numbers = npt.NDArray[np.int64]

SHORT = 1 / 16
"""Of a block's records, so many may be missing from its last minibatch: the block ends with a unit
if no more are."""

CANDIDATES = 64
"""Ends of units that are tried for the end of a range."""


@lru_cache(maxsize=1024)
def cut_units(
    records: int, units: tuple[tuple[int, int], ...], length: int, batch_size: int
) -> tuple[Numbers, Numbers]:
    """Cut a source with units into ranges and blocks.

    units: pairs (records, number of such units in a row) from the first record on.
    Returns the record behind each range, and the number of ranges up to the end of each block.

    Raises ValueError if the units do not hold these records.
    """
    edges = unit_edges(units)
    if not len(edges) or edges[-1] != records:
        raise ValueError(f"units of {edges[-1] if len(edges) else 0} records for {records}")
    ends: list[int] = []
    blocks: list[int] = []
    position = block = 0
    while position < records:
        end, closes = _next_end(edges, position, block, length, batch_size)
        ends.append(end)
        if closes:
            blocks.append(len(ends))
            block = end
        position = end
    made = np.array(ends, np.int64), np.array(blocks, np.int64)
    for each in made:
        each.flags.writeable = False  # they are kept for the next source like this one
    return made


def _next_end(
    edges: Numbers, position: int, block: int, length: int, batch_size: int
) -> tuple[int, bool]:
    """The end of the range that begins at `position`, and whether its block ends there."""
    records = int(edges[-1])
    goal = min(position + length, records)
    if goal == records:
        return records, True
    first = int(np.searchsorted(edges, position, "right"))
    last = int(np.searchsorted(edges, goal, "right"))
    for place in range(last - 1, max(first, last - CANDIDATES) - 1, -1):
        end = int(edges[place])
        missing = (position - end) % batch_size
        if missing > SHORT * (end - block):
            continue
        # A short range is worth it before a unit that would not fit in the range anyway.
        if 2 * (end - position) >= length or int(edges[place + 1]) - end >= length:
            return end, True
    return goal, last > first and int(edges[last - 1]) == goal


class Ranges:
    """The ranges of all sources, numbered through them; and the blocks, numbered likewise.

    length: of a range. batch_size: what ranges are divided into.
    """

    def __init__(self, sources: Sequence[Source], length: int, batch_size: int) -> None:
        self.names = tuple(source.name for source in sources)
        self._place = {name: place for place, name in enumerate(self.names)}
        self._length = length
        self._records = np.array([source.records for source in sources], np.int64)
        count = -(-self._records // length)
        blocks = count.copy()
        # Where in `_ends` and `_block_ends` those of a source begin; -1: all its ranges are whole.
        self._at = np.full(len(sources), -1, np.int64)
        self._block_at = np.full(len(sources), -1, np.int64)
        ends: list[Numbers] = []
        block_ends: list[Numbers] = []
        known: dict[Any, tuple[int, int, int, int]] = {}
        at = block_at = 0
        for place, source in enumerate(sources):
            if not source.units or not source.records:
                continue
            shape = source.records, source.units
            if shape not in known:
                of_ranges, of_blocks = cut_units(*shape, length, batch_size)
                known[shape] = at, block_at, len(of_ranges), len(of_blocks)
                ends.append(of_ranges)
                block_ends.append(of_blocks)
                at += len(of_ranges)
                block_at += len(of_blocks)
            found = known[shape]
            self._at[place], self._block_at[place], count[place], blocks[place] = found
        none = np.zeros(0, np.int64)
        self._ends = np.concatenate([none, *ends])
        self._block_ends = np.concatenate([none, *block_ends])
        self._count, self._block_count = count, blocks
        self._first = np.cumsum(count) - count
        self._first_block = np.cumsum(blocks) - blocks
        self.count = int(count.sum(dtype=np.int64))
        self.blocks = int(blocks.sum(dtype=np.int64))
        self.records = int(self._records.sum(dtype=np.int64))

    def blocks_before(self, source: int) -> int:
        """Blocks of the sources before one, by its place."""
        return int(self._first_block[source]) if source < len(self.names) else self.blocks

    @property
    def single(self) -> bool:
        """True if each range is a block by itself."""
        return self.blocks == self.count

    def span(self, number: int) -> Span:
        """The range of a number."""
        source = int(np.searchsorted(self._first, number, "right")) - 1
        place, at = number - int(self._first[source]), int(self._at[source])
        if at < 0:
            start = place * self._length
            end = min(start + self._length, int(self._records[source]))
        else:
            start = int(self._ends[at + place - 1]) if place else 0
            end = int(self._ends[at + place])
        return Span(self.names[source], start, end)

    def number_of(self, source: str, record: int) -> int | None:
        """The number of the range that has a record; None if there is none."""
        place = self._place.get(source)
        if place is None or not 0 <= record < self._records[place]:
            return None
        if (at := int(self._at[place])) < 0:
            return int(self._first[place]) + record // self._length
        ends = self._ends[at : at + int(self._count[place])]
        return int(self._first[place] + np.searchsorted(ends, record, "right"))

    def lengths(self, numbers: npt.NDArray[Any]) -> Numbers:
        """Records of the ranges of these numbers."""
        numbers = numbers.astype(np.int64)
        sources = np.searchsorted(self._first, numbers, "right") - 1
        places = numbers - self._first[sources]
        whole = np.minimum(self._length, self._records[sources] - places * self._length)
        if not len(self._ends):
            return np.asarray(whole, np.int64)
        at = np.maximum(self._at[sources], 0) + places
        at = np.minimum(at, len(self._ends) - 1)
        before = np.where(places > 0, self._ends[np.maximum(at - 1, 0)], 0)
        return np.asarray(np.where(self._at[sources] < 0, whole, self._ends[at] - before), np.int64)

    def of_blocks(self, numbers: npt.NDArray[Any]) -> tuple[Numbers, Numbers]:
        """The number of the first range of each of these blocks, and that behind its last."""
        numbers = numbers.astype(np.int64)
        if self.single:
            return numbers, numbers + 1
        sources = np.searchsorted(self._first_block, numbers, "right") - 1
        places = numbers - self._first_block[sources]
        first, at = self._first[sources], self._block_at[sources]
        alone = at < 0
        at = np.minimum(np.maximum(at, 0) + places, len(self._block_ends) - 1)
        before = np.where(places > 0, self._block_ends[np.maximum(at - 1, 0)], 0)
        begins = first + np.where(alone, places, before)
        ends = first + np.where(alone, places + 1, self._block_ends[at])
        return begins, ends

    def block_of(self, number: int) -> int:
        """The number of the block that has a range."""
        if self.single:
            return number
        source = int(np.searchsorted(self._first, number, "right")) - 1
        place, at = number - int(self._first[source]), int(self._block_at[source])
        first = int(self._first_block[source])
        if at < 0:
            return first + place
        ends = self._block_ends[at : at + int(self._block_count[source])]
        return first + int(np.searchsorted(ends, place, "right"))

    def pieces(self, span: Span) -> list[tuple[Span, int]]:
        """The records of a span, cut where the ranges end; with the number of each one's block."""
        pieces = []
        start = span.start
        while start < span.end:
            number = self.number_of(span.source, start)
            assert number is not None
            end = min(self.span(number).end, span.end)
            pieces.append((Span(span.source, start, end), self.block_of(number)))
            start = end
        return pieces


def cut(sources: Sequence[Source], length: int, batch_size: int) -> list[Span]:
    """All ranges, in order."""
    ranges = Ranges(sources, length, batch_size)
    return [ranges.span(number) for number in range(ranges.count)]
