"""Statistics of columns, in one pass over the data and in bounded memory.

Owns what is told of which type of column, and the form of the result. The summaries of
streams are sketches.py's; reading the result is shoal.preprocessing's.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from shoal.base.disk.wholefile import write_json
from shoal.data.columns import ListColumn, as_columns
from shoal.data.reader import CHUNK_ROWS, DataReader
from shoal.data.samples.sketches import DistinctCounter, FrequentValues, QuantileSketch, mixed
from shoal.errors import UserError

FORMAT = "shoal-statistics-1"

QUANTILES = 1000
"""Equal parts between two of the quantiles that are kept."""

HELD_PER_WORD = 10
"""Different values that are counted for each that the vocabulary may hold in the end."""


class Moments:
    """Count, mean and standard deviation of all values, joined chunk by chunk (Chan)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0
        self.least: float | int = math.inf
        self.most: float | int = -math.inf

    def add(self, values: Any) -> None:
        """Add numbers, none of them NaN, at least one."""
        self.least = min(self.least, values.min().item())
        self.most = max(self.most, values.max().item())
        numbers = values.astype(np.float64)
        total = self.count + numbers.size
        with np.errstate(invalid="ignore", over="ignore"):  # of infinities
            mean = numbers.mean()
            squares = np.square(numbers - mean).sum()
            apart = mean - self.mean
            squares += apart**2 * self.count * numbers.size / total
            self._squares += float(squares)
            self.mean += float(apart * numbers.size / total)
        self.count = total

    @property
    def stddev(self) -> float:
        """The standard deviation of the population."""
        return math.sqrt(self._squares / self.count)


class _Column:
    """The statistics of one column; for lists, those of their elements."""

    def __init__(self, name: str, kind: pa.DataType, max_vocabulary: int) -> None:
        self._name = name
        self._max_vocabulary = max_vocabulary
        self._lengths: Moments | None = None
        element = kind
        if pa.types.is_dictionary(element):
            element = element.value_type
        if _is_list(element):
            self._lengths = Moments()
            element = element.value_type
        self._type = str(kind)
        types = pa.types
        self._is_text = (
            types.is_string(element)
            or types.is_large_string(element)
            or types.is_binary(element)
            or types.is_large_binary(element)
        )
        self._is_integer = (
            types.is_integer(element) or types.is_boolean(element) or types.is_temporal(element)
        )
        floating = types.is_floating(element) or types.is_decimal(element)
        if not (self._is_text or self._is_integer or floating or pa.types.is_null(element)):
            raise UserError(
                f"column {name!r} is of type {kind}, of which there are no statistics; choose "
                "others with --columns"
            )
        self.values = self.missing = 0
        self._moments = Moments()
        self._quantiles = QuantileSketch(zlib.crc32(name.encode()))
        self._distinct = DistinctCounter()
        self._frequent = FrequentValues(max(max_vocabulary * HELD_PER_WORD, 1))

    def add(self, column: Any) -> None:
        """A chunk of the column."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if _is_list(column.type):
            self.missing += column.null_count
            lengths = pc.drop_null(pc.list_value_length(column))
            if self._lengths is not None and len(lengths):
                self._lengths.add(lengths.to_numpy(zero_copy_only=False))
            column = pc.list_flatten(column)
        self.missing += column.null_count
        column = pc.drop_null(column)
        if self._is_text:
            self._add_text(column)
        elif len(column):
            self._add_numbers(column)

    def _add_text(self, column: Any) -> None:
        self.values += len(column)
        counted = pc.value_counts(column.cast(pa.large_binary()))
        words = counted.field("values").to_pylist()
        hashes = np.fromiter((xxhash.xxh3_64_intdigest(word) for word in words), np.uint64)
        self._distinct.add(hashes)
        self._frequent.add(words, counted.field("counts").to_pylist())

    def _add_numbers(self, column: Any) -> None:
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        numbers = np.asarray(column.to_numpy(zero_copy_only=False))
        if numbers.dtype == bool:
            numbers = numbers.astype(np.int64)
        if numbers.dtype.kind == "f":
            there = ~np.isnan(numbers)
            self.missing += int((~there).sum())
            numbers = numbers[there] + 0.0  # no negative zero
        self.values += numbers.size
        if not numbers.size:
            return
        self._moments.add(numbers)
        self._quantiles.add(numbers.astype(np.float64))
        different, counts = np.unique(numbers, return_counts=True)
        if numbers.dtype.kind == "f":
            self._distinct.add(mixed(different.astype(np.float64).view(np.uint64)))
        else:
            self._distinct.add(mixed(different.astype(np.uint64)))
            self._frequent.add(different.tolist(), counts.tolist())

    def result(self) -> dict[str, Any]:
        """The statistics of the column, as the report holds them."""
        told: dict[str, Any] = {
            "type": self._type,
            "values": self.values,
            "missing": self.missing,
            "distinct": self._distinct.count(),
            "distinct_exact": self._distinct.exact,
        }
        if self._lengths is not None and self._lengths.count:
            lengths = self._lengths
            told["lengths"] = {"min": lengths.least, "max": lengths.most, "mean": lengths.mean}
        if self.values and not self._is_text:
            moments = self._moments
            told |= {"min": moments.least, "max": moments.most}
            told |= {"mean": moments.mean, "stddev": moments.stddev}
            ranks = np.linspace(0, 1, QUANTILES + 1)
            quantiles = self._quantiles.quantiles(ranks)
            # The ends are known exactly.
            quantiles[0], quantiles[-1] = moments.least, moments.most
            told |= {"quantiles": quantiles.tolist(), "quantiles_exact": self._quantiles.exact}
        if self._is_text or self._is_integer:
            most = self._frequent.most(self._max_vocabulary)
            told["vocabulary"] = {
                "values": [_text(value) if self._is_text else value for value, _ in most],
                "counts": [count for _, count in most],
                "complete": not self._frequent.error and len(self._frequent) == len(most),
                "count_error": self._frequent.error,
            }
        return told


def analyze(
    reader: DataReader,
    *,
    columns: Sequence[str] | None = None,
    max_vocabulary: int = 10_000,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """The statistics of all records of a reader, as they are saved.

    columns: only these. max_vocabulary: most frequent values that are kept of a column of
        text or integers. progress: called with the number of records read so far.

    Raises UserError as the reader does, for a column that is not there, and for types that
    have no statistics.
    """
    schema = reader.schema()
    names = list(schema.names if columns is None else columns)
    for name in names:
        if name not in schema.names:
            raise UserError(
                f"--columns: there is no column {name!r}; the columns are {', '.join(schema.names)}"
            )
    seen = {name: _Column(name, schema.field(name).type, max_vocabulary) for name in names}
    records = 0
    sources = reader.sources()
    for source in sources:
        for start in range(0, source.records, CHUNK_ROWS):
            end = min(start + CHUNK_ROWS, source.records)
            for chunk in arrow_columns(reader.read(source.name, start, end), source.name):
                for name, column in seen.items():
                    column.add(chunk[name])
            records += end - start
            if progress is not None:
                progress(records)
    return {
        "format": FORMAT,
        "records": records,
        "sources": [source.name for source in sources],
        "columns": {name: column.result() for name, column in seen.items()},
    }


def save_statistics(path: str | os.PathLike[str], statistics: Mapping[str, Any]) -> None:
    """Write what `analyze` gave, whole or not at all. Raises OSError."""
    # There may be infinities among the values.
    write_json(Path(path), statistics, allow_nan=True)


def arrow_columns(chunks: Iterator[Any], source: str) -> Iterator[Mapping[str, Any]]:
    """Chunks as columns of Arrow; those of a reader of the user's are converted."""
    for chunk in chunks:
        if isinstance(chunk, pa.RecordBatch | pa.Table):
            yield dict(zip(chunk.schema.names, chunk.columns, strict=True))
        else:
            yield {name: _as_arrow(column) for name, column in as_columns(chunk, source).items()}


def _as_arrow(column: Any) -> Any:
    if isinstance(column, ListColumn):
        offsets = np.concatenate([[0], np.cumsum(column.row_lengths)])
        return pa.LargeListArray.from_arrays(
            pa.array(offsets, pa.int64()), _as_arrow(column.values)
        )
    if column.ndim > 1:
        size = int(np.prod(column.shape[1:]))
        return pa.FixedSizeListArray.from_arrays(pa.array(column.ravel()), size)
    return pa.array(column)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _text(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")
