"""A reader whose records get more columns, and values in place of missing ones.

Columns come from outside of the files (partitions.py, lake.py), and tell which values were
missing. What another reader reads is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.data.indexed_reader import IndexedReader
from shoal.data.places.index_store import IndexStore
from shoal.data.plain_types import of_type, plain, plain_type
from shoal.data.reader import Source, check_columns
from shoal.errors import UserError

MASK = "_missing"
"""Behind the name of a column: that of the column that tells which of its values are missing."""


class ShapedReader(IndexedReader):
    """Reads what `inner` does, in another shape.

    constants: columns that have one value in each source, and `value_of` gives these by its name.
    fill: of columns, what stands for missing values, as text. masks: columns of which another one
    tells which values are missing. columns: to be read; all where None.
    """

    def __init__(
        self,
        inner: IndexedReader,
        pattern: str,
        *,
        flag: str,
        constants: Mapping[str, pa.Field] | None = None,
        value_of: Callable[[str], Mapping[str, Any]] = lambda _: {},
        fill: Sequence[tuple[str, str]] = (),
        masks: Sequence[str] = (),
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(pattern, flag=flag, columns=columns)
        self._inner = inner
        self._constants = dict(constants or {})
        self._value_of = value_of
        self._fill = dict(fill)
        self._masks = list(masks)
        self._values: dict[str, pa.Scalar] | None = None

    @property
    def inner(self) -> IndexedReader:
        """The reader of the records as they are."""
        return self._inner

    # ------------------------------------------------------------ what the other reader tells

    def names(self) -> list[str]:
        """See DataReader."""
        return self._inner.names()

    def grows(self) -> None:
        """See DataReader."""
        self._inner.grows()

    def arrivals(self, token: str) -> tuple[list[str], str]:
        """See DataReader."""
        return self._inner.arrivals(token)

    def behind(self, trained: Collection[str]) -> None:
        """See DataReader."""
        self._inner.behind(trained)

    @property
    def moves(self) -> bool:
        """See DataReader."""
        return self._inner.moves

    def weights(self, names: Sequence[str] | None = None) -> dict[str, float]:
        """See DataReader."""
        return self._inner.weights(names)

    @property
    def form(self) -> str:
        """See DataReader."""
        return self._inner.form

    def stamp(self, name: str) -> str:
        """See DataReader."""
        return self._inner.stamp(name)

    def prepare(self, names: Sequence[str]) -> None:
        """See DataReader."""
        self._inner.prepare(names)

    def sources(self) -> list[Source]:
        """See DataReader."""
        return self._inner.sources()

    def describe(self, name: str) -> Source:
        """See DataReader."""
        return self._inner.describe(name)

    def share(self, store: IndexStore) -> None:
        """See IndexedReader."""
        super().share(store)
        self._inner.share(store)

    def reopen(self) -> None:
        """See DataReader."""
        self._inner.reopen()

    def doubts(self) -> list[str]:
        """See DataReader."""
        return self._inner.doubts()

    def name_doubts(self) -> list[str]:
        """See DataReader."""
        return self._inner.name_doubts()

    def place(self, source: str, record: int) -> str:
        """See DataReader."""
        return self._inner.place(source, record)

    # ------------------------------------------------------------ the shape

    def _full_schema(self) -> pa.Schema:
        inner = self._inner.schema()
        fields = list(inner) + [
            field for name, field in self._constants.items() if name not in inner.names
        ]
        schema = pa.schema(fields)
        check_columns(schema, list(self._fill), f"{self._flag} (--fill-missing)")
        check_columns(schema, self._masks, f"{self._flag} (--missing-mask)")
        for name in self._masks:
            if name + MASK in schema.names:
                raise UserError(
                    f"{self._flag}: --missing-mask {name} makes a column {name + MASK!r}, and the "
                    "data has one: rename it in the data, or leave the mask out"
                )
            schema = schema.append(pa.field(name + MASK, pa.bool_()))
        self._values = {
            name: _scalar(text, schema.field(name)) for name, text in self._fill.items()
        }
        return schema

    def faults(self) -> dict[str, UserError]:
        """See IndexedReader: columns that the files have and their folders too."""
        inner = self._inner.schema().names
        where = self._inner.names()[:1]
        return self._inner.faults() | {
            name: UserError(
                f"{self._flag}: column {name!r} is in the files and also in the names of their "
                f"folders, such as {where[0]}: which one is meant? Rename one of them, or have "
                "feed not read the column"
            )
            for name in self._constants
            if name in inner
        }

    def narrow(self, columns: Collection[str]) -> None:
        """See DataReader."""
        super().narrow(columns)
        kept = {name for name in columns if name not in self._masks_by_name()}
        kept |= {self._masks_by_name()[name] for name in columns if name in self._masks_by_name()}
        inner = [name for name in self._inner.schema().names if name in kept]
        # Something tells how many records there are.
        self._inner.narrow(inner or self._inner.schema().names[:1])

    def widen(self) -> None:
        """See DataReader."""
        super().widen()
        self._inner.widen()

    def _masks_by_name(self) -> dict[str, str]:
        return {name + MASK: name for name in self._masks}

    def head(self, records: int) -> tuple[str, list[pa.RecordBatch]]:
        """See DataReader."""
        source, batches = self._inner.head(records)
        return source, list(self._shaped(batches, source))

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield what the other reader does, in this shape."""
        yield from self._shaped(self._inner.read(source, start, end), source)

    def _shaped(self, batches: Iterable[pa.RecordBatch], source: str) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        constants = self._value_of(source) if self._constants else {}
        for batch in batches:
            columns = [self._column(field, batch, constants) for field in schema]
            yield pa.record_batch(
                [of_type(each, field.type) for each, field in zip(columns, schema, strict=True)],
                schema=schema,
            )

    def _column(
        self, field: pa.Field, batch: pa.RecordBatch, constants: Mapping[str, Any]
    ) -> pa.Array:
        name = self._masks_by_name().get(field.name, field.name)
        if name in batch.schema.names:
            column = batch.column(name)
        else:
            value = pa.scalar(constants.get(name), self._constants[name].type)
            column = pa.repeat(value, len(batch))
        if field.name in self._masks_by_name():
            return missing(column)
        assert self._values is not None
        return filled(column, self._values[name]) if name in self._values else column


def missing(column: pa.Array) -> pa.Array:
    """Which values of a column are missing: those of floats that are NaN are, too."""
    return pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))


def filled(column: pa.Array, value: pa.Scalar) -> pa.Array:
    """A column with a value in place of missing ones; lists have it in place of elements.

    A missing list is empty, but one of a fixed length has the value in each place.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return filled(column.dictionary_decode(), value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        column = pc.coalesce(column, pa.scalar([], kind)) if column.null_count else column
        elements = column.flatten()
        if not len(elements) or not value.is_valid:
            return column
        offsets = pc.subtract(column.offsets, column.offsets[0])
        made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        return made.from_arrays(offsets, filled(elements, value))
    if not value.is_valid:
        return column
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        elements = column.values.slice(column.offset * size, len(column) * size)
        absent = pa.array(np.repeat(np.asarray(column.is_null()), size))
        elements = pc.if_else(absent, pa.scalar(None, plain_type(elements.type)), plain(elements))
        return pa.FixedSizeListArray.from_arrays(filled(elements, value), size)
    if pa.types.is_floating(kind):
        return pc.if_else(missing(column), value, column)
    return column.fill_null(value) if column.null_count else column


def _scalar(text: str, field: pa.Field) -> pa.Scalar:
    """A value of a column's type, or of its elements'. Raises UserError."""
    kind = field.type
    while True:
        listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if listed or pa.types.is_dictionary(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
            if listed and text == "[]":
                return pa.scalar(None, kind)
            continue
        break
    try:
        return _parsed(text, kind)
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise UserError(
            f"--fill-missing {field.name}={text}: the column's type is {field.type}, and {text!r} "
            "is no such value"
        ) from error


def _parsed(text: str, kind: pa.DataType) -> pa.Scalar:
    """A value as Arrow reads it; of times also the integer that feed gets. Raises ValueError."""
    if pa.types.is_temporal(kind) and re.fullmatch(r"-?\d+", text, re.ASCII):
        return pa.scalar(int(text), kind)
    if not pa.types.is_time(kind):
        return pc.cast(pa.scalar(text), kind)
    value = time.fromisoformat(text)
    if (found := pa.scalar(value, kind)).as_py() != value:
        raise ValueError(f"{text} is finer than the column's unit")
    return found


def shaped(
    inner: IndexedReader, pattern: str, *, columns: Sequence[str] | None = None, **options: Any
) -> IndexedReader:
    """A ShapedReader with these options; the other reader itself where they change nothing."""
    if any(options.get(name) for name in ("constants", "fill", "masks")):
        return ShapedReader(inner, pattern, columns=columns, **options)
    if columns is not None:
        inner.choose(columns)
    return inner
