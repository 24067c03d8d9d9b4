"""The base of the built-in readers: their arguments, the columns to read, a kept index.

The derived classes own the place of the data and its format; index_store.py owns the place of
an index.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

import pyarrow as pa

from shoal.data.places.index_store import IndexStore
from shoal.data.reader import DataReader, selected
from shoal.errors import UserError


class IndexedReader(DataReader):
    """Reads what `pattern` names, in the form of the class derived.

    flag: named in errors.
    columns: read only these; all where None.
    """

    def __init__(
        self,
        pattern: str,
        *,
        flag: str = "custom_data_reader",
        columns: Sequence[str] | None = None,
    ) -> None:
        self._pattern = pattern
        self._flag = flag
        self._columns = None if columns is None else list(columns)
        self._store = IndexStore()
        self._schema: pa.Schema | None = None
        self._faults: dict[str, UserError] = {}
        self._before: tuple[pa.Schema, list[str] | None] | None = None  # it was narrowed

    def schema(self) -> pa.Schema:
        """The columns to be read."""
        if self._schema is None:
            self._schema = selected(self._full_schema(), self._columns, self._flag)
        return self._schema

    def choose(self, columns: Sequence[str]) -> None:
        """Read these columns only. Whether there are such is seen when the schema is asked for."""
        self._columns = list(columns)
        self._schema = None

    def faults(self) -> dict[str, UserError]:
        """The errors of faulty columns; each ends a job that uses the column."""
        self._full_schema()
        return dict(self._faults)

    def _checked_schema(self) -> pa.Schema:
        """The columns to be read. Raises UserError where something is wrong with one of them."""
        schema = self.schema()
        for name, fault in self._faults.items():
            if name in schema.names:
                raise fault
        return schema

    def share(self, store: IndexStore) -> None:
        """Take from this store what others have told of the sources."""
        self._store = store

    def narrow(self, columns: Collection[str]) -> None:
        """See DataReader; `schema` tells these columns from now on."""
        if self._before is None:
            self._before = self.schema(), self._columns
        self._columns = [name for name in self.schema().names if name in columns]
        self._schema = selected(self.schema(), self._columns, self._flag)

    def widen(self) -> None:
        """See DataReader; `schema` tells all columns again."""
        if self._before is not None:
            self._schema, self._columns = self._before
            self._before = None

    @abstractmethod
    def _full_schema(self) -> pa.Schema:
        """All columns that there are, and `_faults` of them. Raises UserError."""
