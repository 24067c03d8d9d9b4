"""What readers of files share: the files of a pattern, each a source.

Formats are the derived classes'; where bytes come from is storage.py's, what is not about
files indexed_reader.py's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from shoal.data.indexed_reader import IndexedReader
from shoal.data.reader import Source, check_not_empty
from shoal.data.storage import Storage


class FileReader(IndexedReader):
    """Reads the files that a pattern stands for, in the format of the class derived.

    pattern: file, folder or glob; a path or a URL. storage: of the pattern, where it is there
        already. kind: format of the files, whose endings then need not tell it. options: see
        IndexedReader.

    Raises UserError if no file is found.
    """

    def __init__(
        self, pattern: str, *, storage: Storage | None = None, kind: str = "", **options: Any
    ) -> None:
        super().__init__(pattern, **options)
        self._storage = storage or Storage(pattern, self._flag, kind)
        self._paths = self._storage.names

    def names(self) -> list[str]:
        """See DataReader: the files."""
        return list(self._paths)

    def sources(self) -> list[Source]:
        """A source per file."""
        found = [self.describe(path) for path in self._paths]
        check_not_empty(found, self._pattern, self._flag)
        return found

    def describe(self, name: str) -> Source:
        """See DataReader."""
        return Source(name, self._count(name))

    def first(self) -> Source:
        """See DataReader."""
        for path in self._paths:
            if (source := self.describe(path)).records:
                return source
        check_not_empty((), self._pattern, self._flag)
        raise AssertionError("unreachable")

    def reopen(self) -> None:
        """See DataReader."""
        self._storage.reopen()

    @abstractmethod
    def _count(self, path: str, /) -> int:
        """Records in a file. Raises UserError."""
