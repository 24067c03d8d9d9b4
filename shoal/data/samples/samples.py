"""One record of each type: of a schema, or of data that only its first records tell.

Also what stands for a column that is not read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.data.columns import (
    Column,
    ListColumn,
    as_columns,
    columns_of,
    gathered,
    no_counterpart,
)
from shoal.data.reader import DataReader
from shoal.errors import UserError


def sample_columns(
    reader: DataReader, source: str, end: int
) -> tuple[dict[str, Column], dict[str, UserError]]:
    """The first records of a source, at most `end`, and what is wrong with which column.

    A column that cannot be converted holds a single value of its type, or bytes where its
    type has no counterpart. Raises UserError if the records themselves cannot be read.
    """
    chunk = next(gathered(reader.read(source, 0, end), reader))
    columns: dict[str, Column] = {}
    faults: dict[str, UserError] = {}
    for name, column in columns_of(chunk, source).items():
        try:
            columns |= as_columns(chunk, source, [name], 0)
        except UserError as error:
            faults[name] = error
            columns[name] = _stand_in(_type_of(column))
    return columns, faults


def typed_columns(schema: pa.Schema, source: str) -> tuple[dict[str, Column], dict[str, UserError]]:
    """A record of the types of a schema, with nothing in it, and what is wrong with which column.

    source: named in errors. A column whose type has no counterpart holds bytes.
    """
    columns: dict[str, Column] = {}
    faults: dict[str, UserError] = {}
    for field in schema:
        try:
            columns[field.name] = _typed(field, source)
        except UserError as error:
            faults[field.name] = error
            columns[field.name] = np.array([b""], object)
    return columns, faults


def blank(column: Column, records: int) -> Column:
    """A column of the type of another one, with nothing in it."""
    if isinstance(column, ListColumn):
        return ListColumn(blank(column.values, 0), np.zeros(records, np.int64))
    if column.dtype == object:
        return np.full((records, *column.shape[1:]), b"", object)
    return np.zeros((records, *column.shape[1:]), column.dtype)


def _type_of(column: Any) -> pa.DataType:
    """The type of a column of a chunk, as far as its values tell it."""
    try:
        return (
            column.type if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column).type
        )
    except (pa.ArrowException, TypeError):
        return pa.null()


def _stand_in(kind: pa.DataType) -> Column:
    """A value of a type, with nothing in it; bytes where the type has no counterpart."""
    try:
        return _typed(pa.field("", kind), "")
    except UserError:
        return np.array([b""], object)


def _typed(field: pa.Field, source: str) -> Column:
    """One value of a field's type, with nothing in it.

    Made of none, as the conversion alone knows what each type becomes. Raises UserError if it has
    no counterpart.
    """
    with suppress(pa.ArrowException, TypeError, ValueError):
        if not pa.types.is_null(field.type):
            return blank(as_columns(pa.schema([field]).empty_table(), source)[field.name], 1)
    raise no_counterpart(field.type, source, field.name)
