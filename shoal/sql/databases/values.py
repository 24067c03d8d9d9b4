"""Types of columns: those that a model may get, and what becomes of a database's own.

The same rows give the same Parquet, whichever database has them: whole numbers are int64, other
numbers float64.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from shoal.data.plain_types import name_there_twice, same_meaning
from shoal.sql.errors import SqlError
from shoal.sql.terms import Place

OF_POSTGRES: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int64(),
    23: pa.int64(),
    26: pa.int64(),
    700: pa.float64(),
    701: pa.float64(),
    1700: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
    **dict.fromkeys((18, 19, 25, 114, 1042, 1043, 2950, 3802), pa.string()),
    1000: pa.list_(pa.bool_()),
    **dict.fromkeys((1005, 1007, 1016), pa.list_(pa.int64())),
    **dict.fromkeys((1021, 1022, 1231), pa.list_(pa.float64())),
    **dict.fromkeys((1009, 1014, 1015), pa.list_(pa.string())),
}
"""Numbers of PostgreSQL's types, of its table pg_type."""

_NUMERIC = 1700

_OF_WORDS = (
    ("INT", pa.int64()),
    ("BOOL", pa.bool_()),
    ("CHAR", pa.string()),
    ("CLOB", pa.string()),
    ("TEXT", pa.string()),
    ("REAL", pa.float64()),
    ("FLOA", pa.float64()),
    ("DOUB", pa.float64()),
    ("DATETIME", pa.timestamp("us")),
    ("TIMESTAMP", pa.timestamp("us")),
    ("DATE", pa.date32()),
    ("DECIMAL", pa.float64()),
    ("NUMERIC", pa.float64()),
)
"""Parts of the types that columns of SQLite are declared with, the first that is there holds.

BLOB tells nothing: SQLite from 3.41 on says it of columns without a type, too.
"""


def of_postgres(column: Sequence[Any]) -> pa.DataType | None:
    """The type of a column of a cursor's description; None for one that is not known."""
    if column[1] == _NUMERIC and column[4] is not None and column[5] == 0:
        return pa.int64()
    return OF_POSTGRES.get(column[1])


def of_declared(text: str) -> pa.DataType | None:
    """The type that a column of SQLite is declared with; None for one that is not known."""
    return next((kind for part, kind in _OF_WORDS if part in text.upper()), None)


def refuse_twice(names: Iterable[str], place: Place | None) -> None:
    """Raise SqlError for a name that two columns have."""
    if twice := name_there_twice(names):
        raise SqlError(f"{twice} among the columns: give one of them another name by AS", place)


def plain_schema(schema: pa.Schema, place: Place | None) -> pa.Schema:
    """The schema in the types that models get. Raises SqlError for another type."""
    refuse_twice(schema.names, place)
    fields = []
    for field in schema:
        kind = _plain(field.type)
        if kind is None:
            raise SqlError(
                f"column {field.name} is of type {field.type}, which no model gets: leave it out, "
                "or CAST it to a number or to text",
                place,
            )
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _plain(kind: pa.DataType) -> pa.DataType | None:
    kind, types = same_meaning(kind), pa.types
    if types.is_list(kind):
        inner = _plain(kind.value_type)
        return None if inner is None or types.is_list(inner) else pa.list_(inner)
    if types.is_integer(kind) or (types.is_decimal(kind) and kind.scale == 0):
        return pa.int64()
    if types.is_floating(kind) or types.is_decimal(kind):
        return pa.float64()
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_date(kind):
        return pa.date32()
    as_it_is = types.is_boolean(kind) or types.is_string(kind) or types.is_binary(kind)
    return kind if as_it_is else None


def in_plain_types(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, place: Place | None
) -> Iterator[pa.RecordBatch]:
    """The batches in the types of a schema. Raises SqlError naming the column."""
    for batch in batches:
        arrays = []
        for field, array in zip(schema, batch.columns, strict=True):
            try:
                arrays.append(array.cast(field.type))
            except pa.ArrowException as error:
                raise SqlError(f"column {field.name}: {error}", place) from error
        yield pa.record_batch(arrays, schema=schema)


def batch_of(
    rows: Sequence[Sequence[Any]], names: Sequence[str], kinds: Sequence[pa.DataType | None]
) -> pa.RecordBatch:
    """Rows of a database's driver as a batch. kinds: of the columns; None where the values say it.

    Raises SqlError naming the column.
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    arrays = []
    for name, values, kind in zip(names, columns, kinds, strict=True):
        try:
            arrays.append(_array(values, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SqlError(
                f"column {name} has a value that is no {kind or 'value like those before it'}: "
                f"{error}"
            ) from error
    return pa.record_batch(arrays, names=list(names))


def _array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if decimal.Decimal in kinds:
        values = [None if value is None else float(value) for value in values]
    elif kinds & {uuid.UUID, dict}:
        values = [None if value is None else str(value) for value in values]
    elif kind is not None and pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
        values = [value and [each and float(each) for each in value] for value in values]
    elif kind is not None and pa.types.is_floating(kind):
        kind_of_numbers = kinds <= {int, float, bool}
        values = [v if v is None or not kind_of_numbers else float(v) for v in values]
    array = pa.array(values, pa.null() if not kinds and kind is None else None)
    if kind is None or array.type == kind:
        return array
    if kinds == {datetime.datetime} and pa.types.is_date(kind):
        raise TypeError("a time of a day")
    return array.cast(kind)
