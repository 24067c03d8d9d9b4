"""From what a reader yields to NumPy arrays, one per column.

Arrow batches are converted without Python per record. Chunks of a custom reader may
also be dicts of arrays, or single records (dicts or tuples), which are gathered.
Knows no TensorFlow; the worker makes tensors of the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.data.plain_types import plain
from shoal.data.reader import DataReader
from shoal.errors import UserError

GATHERED_RECORDS = 1024
"""Single Python records that are gathered to one chunk."""


WHOLE = 2.0**53
"""Below it, a float64 tells integers apart."""


@dataclass(frozen=True)
class ListColumn:
    """A column of lists of varying length.

    values: all lists' elements, one after the other: lists too, where lists are of lists.
    row_lengths: int64 [records], the length of each record's list.
    """

    values: npt.NDArray[Any] | ListColumn
    row_lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """The number of records."""
        return len(self.row_lengths)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The place in `values` at which each record's list begins, int64 [records]."""
        return np.cumsum(self.row_lengths) - self.row_lengths

    def padded(self, n: int, value: Any = None) -> npt.NDArray[Any]:
        """The lists as an array of one length, [records, n, ...], of the type of the values.

        Of a longer list, the first `n` elements are kept; a shorter one is filled up with `value`
        at its end. value: None for 0, or an empty text.

        Raises UserError for lists of lists, and for a value that the type does not have.
        """
        if isinstance(self.values, ListColumn):
            raise UserError(
                "padded() of a column whose lists are of lists: pad the inner ones first, as "
                "shoal.data.ListColumn(column.values.padded(m), column.row_lengths).padded(n)"
            )
        fill = _filling(value, self.values.dtype)
        made = np.full((len(self), n, *self.values.shape[1:]), fill, self.values.dtype)
        places = np.arange(n)
        there = places < self.row_lengths[:, None]
        made[there] = self.values[(self.offsets[:, None] + places)[there]]
        return made


def _filling(value: Any, dtype: np.dtype[Any]) -> Any:
    """A value to fill an array of a type with. Raises UserError if the type does not have it."""
    if dtype.kind == "O":  # texts
        made = "" if value is None else value
        made = made.encode() if isinstance(made, str) else made
        if isinstance(made, bytes):
            return made
    else:
        given = np.asarray(0 if value is None else value)
        if given.dtype.kind in "biuf" and given.ndim == 0:
            with np.errstate(all="ignore"):
                made = given.astype(dtype)
            if dtype.kind == "f" or np.array_equal(made, given):
                return made
    kind = "texts" if dtype.kind == "O" else dtype.name
    raise UserError(f"padded(n, {value!r}) of a column of {kind}: the value is none of these")


Column = npt.NDArray[Any] | ListColumn
"""Numbers and bools keep their dtype; strings are an object array of bytes (what
TensorFlow converts fastest); lists of one fixed length are a 2-D array."""


def read_columns(
    reader: DataReader,
    source: str,
    start: int,
    end: int,
    only: Collection[str] | None = None,
) -> Iterator[dict[str, Column]]:
    """Read the records [start, end) of a source as chunks of columns.

    only: these columns; what is in others does not matter. All of them where None.

    Raises UserError as the reader does, if a chunk cannot be converted, or if a
    custom reader yields another number of records than it was asked for.
    """
    seen = 0
    names: Collection[str] = ()
    for chunk in gathered(reader.read(source, start, end), reader):
        columns = as_columns(chunk, source, only, start + seen, advice=reader.fill_advice)
        if names and columns.keys() != names:
            raise UserError(
                f"{source}: the reader's chunks differ in column "
                f"{min(columns.keys() ^ names)!r}, which one of them lacks, from record "
                f"{start + seen} on: each must have the same columns"
            )
        names = columns.keys()
        seen += records_in(columns)
        yield columns
    if seen != end - start:
        raise UserError(
            f"{source}: the reader yielded {seen} records for the range {start} to {end}"
        )


def records_in(columns: Mapping[str, Column]) -> int:
    """The number of records in a chunk."""
    for column in columns.values():
        return _length(column)
    return 0


def _length(column: Column) -> int:
    return len(column)


def as_columns(
    chunk: Any,
    source: str = "",
    only: Collection[str] | None = None,
    first: int | None = None,
    *,
    advice: str = "",
) -> dict[str, Column]:
    """The columns of one chunk.

    chunk: a pyarrow RecordBatch or Table, or a mapping of column name to array or
        list (a list of lists is a list column).
    source: named in errors.
    only: these columns, if the chunk has them; all of them where None.
    first: the number of the chunk's first record, for errors. advice: how missing values of it are
        filled; by the flag where empty.

    Raises UserError naming source, column and row for missing values (only floats may
    miss: they are NaN), for types TensorFlow has no counterpart for, and for columns
    of different lengths.
    """
    arrow = isinstance(chunk, pa.RecordBatch | pa.Table)
    columns: dict[str, Column] = {}
    for name, column in columns_of(chunk, source).items():
        if only is None or name in only:
            place = _Place(source, name, first, advice)
            columns[name] = _from_arrow(column, place) if arrow else _from_python(column, place)
    lengths = {name: records_in({name: column}) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise UserError(f"{_Place(source)}columns of different lengths in one chunk: {told}")
    return columns


def columns_of(chunk: Any, source: str = "") -> dict[str, Any]:
    """The columns of a chunk, not converted. Raises UserError if it is none."""
    if isinstance(chunk, pa.RecordBatch | pa.Table):
        return dict(zip(chunk.schema.names, chunk.columns, strict=True))
    if isinstance(chunk, Mapping):
        return {str(name): column for name, column in chunk.items()}
    raise UserError(
        f"{_Place(source)}a reader must yield record batches, dicts of arrays or records "
        f"(dicts or tuples), not {type(chunk).__name__}"
    )


def rows_in(chunk: Any) -> int:
    """The number of records in a chunk that is not converted. Raises UserError if it is none."""
    if isinstance(chunk, pa.RecordBatch | pa.Table):
        return int(chunk.num_rows)
    return next((len(column) for column in columns_of(chunk).values()), 0)


def row_of(chunk: Any, row: int) -> Any:
    """A chunk of one record of a chunk that is not converted."""
    if isinstance(chunk, pa.RecordBatch | pa.Table):
        return chunk.slice(row, 1)
    return {name: column[row : row + 1] for name, column in columns_of(chunk).items()}


@dataclass(frozen=True)
class _Place:
    """The position of a column, as the beginning of an error message.

    first: its first record's number. advice: how missing values are filled; by the flag if empty.
    """

    source: str
    name: str = ""
    first: int | None = None
    advice: str = ""

    def __str__(self) -> str:
        parts = [self.source, f"column {self.name!r}" if self.name else ""]
        return "".join(f"{part}: " for part in parts if part)


def _from_arrow(column: pa.Array | pa.ChunkedArray, place: _Place) -> Column:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    column = plain(column)
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_fixed_size_list(kind):
        _refuse_nulls(column, place)
        values = _flat(column.flatten(), replace(place, first=None))
        return values.reshape(len(column), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _refuse_nulls(column, place)
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        elements = column.flatten()
        inner = elements.type
        nested = pa.types.is_list(inner) or pa.types.is_large_list(inner)
        within = replace(place, first=None)
        inside = _from_arrow(elements, within) if nested else _flat(elements, within)
        return ListColumn(inside, lengths.astype(np.int64))
    return _flat(column, place)


def _flat(column: pa.Array, place: _Place) -> npt.NDArray[Any]:
    """A column without structure as an array of its records."""
    kind = column.type
    types = pa.types
    if types.is_dictionary(kind):
        return _flat(column.dictionary_decode(), place)
    if types.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if types.is_decimal(kind) and kind.scale > 0:
        values = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
        if np.any(np.abs(values) >= WHOLE):
            raise UserError(
                f"{place}a value of type {kind} is 2**53 or more, where a float64 takes different "
                "ones for one: write the column as a string"
            )
        return values
    _refuse_nulls(column, place)
    if types.is_decimal(kind):  # often ids, of which a float64 would merge large ones
        try:
            return np.asarray(column.cast(pa.int64()))
        except pa.ArrowException as error:
            raise UserError(
                f"{place}a value of type {kind} is no int64 ({error}): write the column as a string"
            ) from error
    if types.is_null(kind):
        # Only empty lists in this chunk of a custom reader: no value tells the type.
        return np.empty(0, np.int64)
    if types.is_string(kind) or types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif (
        types.is_timestamp(kind)
        or types.is_duration(kind)
        or types.is_date64(kind)
        or types.is_time64(kind)
    ):
        column = column.cast(pa.int64())  # in the column's own unit
    elif types.is_date32(kind) or types.is_time32(kind):
        column = column.cast(pa.int32())  # days, or the column's own unit
    elif not (
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    ):
        raise _refused(kind, place)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def no_counterpart(kind: pa.DataType, source: str, name: str) -> UserError:
    """The error of a column whose type TensorFlow has not."""
    return _refused(kind, _Place(source, name))


def _refused(kind: pa.DataType, place: _Place) -> UserError:
    return UserError(
        f"{place}the type {kind} has no counterpart in TensorFlow; write the column as a number, a "
        "string, or a list of these"
    )


def _refuse_nulls(column: pa.Array, place: _Place) -> None:
    if column.null_count:
        where = "" if place.first is None else _first_null(column, place.first)
        raise UserError(
            f"{place}{column.null_count} missing values{where}; only columns of floats may lack "
            "values (they become NaN): fill them "
            f"{place.advice or f'with --fill-missing{_flag_of(place)}'}, or have feed not read the "
            "column"
        )


def _flag_of(place: _Place) -> str:
    return f" {place.name}=VALUE" if place.name else " COLUMN=VALUE"


def _first_null(column: pa.Array, first: int) -> str:
    return f", the first in row {first + pc.index(column.is_null(), True).as_py() + 1}"


def _from_python(value: Any, place: _Place) -> Column:
    """An array or list of a custom reader."""
    if isinstance(value, ListColumn):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value
    try:
        if isinstance(value, np.ndarray) and value.ndim > 1:
            # Arrow cuts NumPy's texts and bytes at their first NUL.
            flat = value.ravel().tolist() if value.dtype.kind in "OSU" else value.ravel()
            return _flat(pa.array(flat), place).reshape(value.shape)
        if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
            value = value.tolist()
        if not isinstance(value, np.ndarray):
            value = list(value)
            value = [v.tolist() if isinstance(v, np.ndarray) else v for v in value]
        return _from_arrow(pa.array(value), place)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{place}cannot be made an array: {error}") from error


def _is_record(chunk: Any) -> bool:
    """True if a custom reader's item is one record: a tuple, or a dict with a scalar in it."""
    if isinstance(chunk, tuple):
        return True
    return isinstance(chunk, Mapping) and any(
        isinstance(value, str | bytes | int | float | np.generic) for value in chunk.values()
    )


def gathered(chunks: Iterator[Any], reader: DataReader) -> Iterator[Any]:
    """Yield the chunks of `reader`; single records are gathered to dicts of lists."""
    records: list[Any] = []
    for chunk in chunks:
        if _is_record(chunk):
            records.append(chunk)
            if len(records) < GATHERED_RECORDS:
                continue
        if records:
            yield _transposed(records, reader)
            records = []
            if _is_record(chunk):
                continue
        yield chunk
    if records:
        yield _transposed(records, reader)


def _transposed(records: Sequence[Any], reader: DataReader) -> dict[str, list[Any]]:
    """A list of records as a dict of columns. Raises UserError if they differ in shape."""
    first = records[0]
    if isinstance(first, tuple):
        names = list(getattr(reader, "column_names", ())) or [str(i) for i in range(len(first))]
        if any(not isinstance(r, tuple) or len(r) != len(names) for r in records):
            raise UserError(f"the reader's records must all be tuples of {len(names)} values")
        return dict(zip(names, map(list, zip(*records, strict=True)), strict=True))
    if any(not isinstance(r, Mapping) or r.keys() != first.keys() for r in records):
        raise UserError(f"the reader's records must all be dicts of {', '.join(map(str, first))}")
    return {str(name): [record[name] for record in records] for name in first}
