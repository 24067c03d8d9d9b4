"""Chunks of columns cut, joined and taken apart by records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shoal.data.columns import Column, ListColumn, records_in


def minibatches(chunks: Iterator[dict[str, Column]], size: int) -> Iterator[dict[str, Column]]:
    """Cut chunks anew: `size` records each, the last one what is left.

    A piece of a single chunk is a view of it; only those across two are copied.
    """
    held: list[dict[str, Column]] = []
    count = 0
    for chunk in chunks:
        held.append(chunk)
        count += records_in(chunk)
        if count < size:
            continue
        whole = joined(held)
        for first in range(0, count - size + 1, size):
            yield part(whole, first, first + size)
        rest = count % size
        held = [part(whole, count - rest, count)] if rest else []
        count = rest
    if count:
        yield joined(held)


def joined(chunks: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """Chunks of the same columns, of which there is at least one, as one."""
    if len(chunks) == 1:
        return chunks[0]
    return {name: _joined_column([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _joined_column(columns: Sequence[Column]) -> Column:
    if isinstance(columns[0], ListColumn):
        lists = cast(Sequence[ListColumn], columns)
        return ListColumn(
            _joined_column([each.values for each in lists]),
            np.concatenate([each.row_lengths for each in lists]),
        )
    return np.concatenate(cast(Sequence[npt.NDArray[Any]], columns))


def part(chunk: Mapping[str, Column], start: int, end: int) -> dict[str, Column]:
    """The records [start, end) of a chunk, counted from its first; a view."""
    return {name: _part_of(column, start, end) for name, column in chunk.items()}


def _part_of(column: Column, start: int, end: int) -> Column:
    if not isinstance(column, ListColumn):
        return column[start:end]
    before = int(column.row_lengths[:start].sum())
    lengths = column.row_lengths[start:end]
    return ListColumn(_part_of(column.values, before, before + int(lengths.sum())), lengths)


def copied(column: Column) -> Column:
    """A column that shares no memory with another one."""
    if isinstance(column, ListColumn):
        return ListColumn(copied(column.values), column.row_lengths.copy())
    return column.copy()


def taken(chunk: dict[str, Column], records: npt.NDArray[np.int64]) -> dict[str, Column]:
    """These records of a chunk, int64 [n], in this order; copied."""
    return {name: _taken_of(column, records) for name, column in chunk.items()}


def _taken_of(column: Column, records: npt.NDArray[np.int64]) -> Column:
    if not isinstance(column, ListColumn):
        return column[records]
    begins = np.cumsum(column.row_lengths) - column.row_lengths
    lengths = column.row_lengths[records]
    # Each list's elements, one after the other: its beginning, and on from there.
    before = np.cumsum(lengths) - lengths
    elements = np.repeat(begins[records] - before, lengths) + np.arange(int(lengths.sum()))
    return ListColumn(_taken_of(column.values, elements), lengths)
