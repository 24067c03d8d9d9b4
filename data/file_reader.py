"""What readers of files share: the files of a pattern, their indexes, the columns.

Formats are the derived classes'; where bytes come from is storage.py's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from shoal.data.index_store import IndexStore
from shoal.data.reader import DataReader, Source, check_not_empty, selected
from shoal.data.storage import Storage


class FileReader(DataReader):
    """Reads the files that a pattern stands for, in the format of the class derived.

    pattern: file, folder or glob; a path or a URL. flag: named in errors.
    columns: read only these; all where None.
    index_folder: where the files' indexes are kept for other processes; in memory where
        None.
    storage: of the pattern, where it is there already.

    Raises UserError if no file is found.
    """

    def __init__(
        self,
        pattern: str,
        *,
        flag: str = "custom_data_reader",
        columns: Sequence[str] | None = None,
        index_folder: str | None = None,
        storage: Storage | None = None,
    ) -> None:
        self._pattern = pattern
        self._flag = flag
        self._columns = None if columns is None else list(columns)
        self._storage = storage or Storage(pattern, flag)
        self._paths = self._storage.names
        self._store = IndexStore(index_folder)
        self._schema: pa.Schema | None = None

    def sources(self) -> list[Source]:
        """A source per file."""
        found = [Source(path, self._count(path)) for path in self._paths]
        check_not_empty(found, self._pattern, self._flag)
        return found

    def schema(self) -> pa.Schema:
        """The columns to be read."""
        if self._schema is None:
            self._schema = selected(self._full_schema(), self._columns, self._flag)
        return self._schema

    @abstractmethod
    def _count(self, path: str, /) -> int:
        """Records in a file. Raises UserError."""

    @abstractmethod
    def _full_schema(self) -> pa.Schema:
        """All columns that there are. Raises UserError where files differ."""
