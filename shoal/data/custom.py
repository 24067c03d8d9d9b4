"""A reader from the user's module: `custom_data_reader(pattern, **kwargs)`.

What it returns needs two methods:

    sources() -> list of shoal.data.Source, or of (name, records) pairs
    read(source, start, end) -> iterator over the records [start, end)

`read` may yield pyarrow record batches, dicts of arrays (a chunk each), or single
records as dicts or tuples. Optional: `column_names`, the names for tuples (else "0",
"1", ...), and `schema()`, a pyarrow.Schema (else it is found from the
first records).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from shoal.config.url_variables import fill
from shoal.data.columns import GATHERED_RECORDS, Column, ListColumn
from shoal.data.reader import DataReader, Source, check_not_empty
from shoal.data.samples.samples import sample_columns
from shoal.errors import UserError, without_secrets

NAME = "custom_data_reader"

ADVICE = f"in {NAME}"
"""How missing values are filled: no flag reaches such a reader."""


def open_custom_reader(
    function: Callable[..., Any], pattern: str, flag: str, **kwargs: Any
) -> DataReader:
    """Call the user's function and make a DataReader of what it returns.

    It gets the pattern with the values of its variables. Exceptions of the function itself pass
    through. Raises UserError if its result lacks a method, or a variable is not set.
    """
    made = function(fill(pattern, flag).url, **kwargs)
    if isinstance(made, DataReader):
        made.fill_advice = ADVICE
        return made
    for method in ("sources", "read"):
        if not callable(getattr(made, method, None)):
            raise UserError(
                f"{NAME} must return an object with the methods sources() and "
                f"read(source, start, end); {type(made).__name__} has no {method}"
            )
    return CustomReader(made, pattern, flag)


class CustomReader(DataReader):
    """Gives a user's object the full interface; exceptions in it pass through."""

    def __init__(self, inner: Any, pattern: str, flag: str) -> None:
        self._inner = inner
        self._pattern = pattern
        self._flag = flag
        self._schema: pa.Schema | None = None
        self._units: dict[str, str] = {}
        self.fill_advice = ADVICE
        self.column_names: tuple[str, ...] = tuple(getattr(inner, "column_names", ()))

    def grows(self) -> None:
        """See DataReader: the user's sources are asked for again."""
        return

    def sources(self) -> list[Source]:
        """The user's sources, checked and sorted."""
        found = []
        for item in self._inner.sources():
            name, records = (
                (item.name, item.records)
                if hasattr(item, "records")
                else item
                if isinstance(item, tuple) and len(item) == 2
                else (None, None)
            )
            if not isinstance(name, str) or not isinstance(records, int) or records < 0:
                raise UserError(
                    f"{NAME}: sources() must give pairs of a name and a number of records, "
                    f"not {item!r}"
                )
            if without_secrets(name) != name:
                raise UserError(
                    f"{NAME}: the name {name} of a source holds a credential, which everybody who "
                    "can see the job would see: remove it from the name"
                )
            found.append(Source(name, records))
        check_not_empty(found, self._pattern, self._flag)
        return sorted(found, key=lambda source: source.name)

    def schema(self) -> pa.Schema:
        """The user's, or the types of the first records.

        Not of one record alone: an empty list does not tell its type.
        """
        if self._schema is None:
            if callable(getattr(self._inner, "schema", None)):
                self._schema = self._inner.schema()
            else:
                source = next(source for source in self.sources() if source.records)
                end = min(source.records, GATHERED_RECORDS)
                columns, _ = sample_columns(self, source.name, end)
                self._schema = pa.schema(
                    [(name, _type_of(column)) for name, column in columns.items()]
                )
        return self._schema

    def place(self, source: str, record: int) -> str:
        """The user's own words, where the object has a method for them."""
        place = getattr(self._inner, "place", None)
        return str(place(source, record)) if callable(place) else f"record {record}"

    def read(self, source: str, start: int, end: int) -> Iterator[Any]:
        """Yield the chunks of the user's reader. Raises UserError for times of several units."""
        for chunk in self._inner.read(source, start, end):
            for name, column in chunk.items() if isinstance(chunk, Mapping) else ():
                # They become integers in their own unit.
                kind = getattr(getattr(column, "dtype", None), "kind", "")
                unit = str(column.dtype) if kind in ("M", "m") else ""
                if unit and self._units.setdefault(name, unit) != unit:
                    raise UserError(
                        f"{source}: column {name!r} is {unit} here, and {self._units[name]} "
                        f"elsewhere: {NAME} must give a column in one unit"
                    )
            yield chunk


def _type_of(column: Column) -> pa.DataType:
    """The type of a column of Arrow with the same values."""
    if isinstance(column, ListColumn):
        return pa.list_(_type_of(column.values))
    return pa.array(column[0:1].ravel()).type
