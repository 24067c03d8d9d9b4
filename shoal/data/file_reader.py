"""The base of readers of files: the files of a pattern, each a source.

The derived classes own the formats, storage.py the source of the bytes, and indexed_reader.py
everything that is not about files.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from shoal.data.indexed_reader import IndexedReader
from shoal.data.places.index_store import KEPT
from shoal.data.places.recent import Recent
from shoal.data.places.storage import Storage, reporting
from shoal.data.reader import Source, check_not_empty

WEIGHED_BYTES = 16 << 20
"""Of a file that is read whole, that cost as much as a footer."""


class FileReader(IndexedReader):
    """Reads the files that a pattern stands for, in the format of the class derived.

    pattern: file, folder or glob; a path or a URL. storage: of the pattern, where it is there
        already. kind: format of the files, whose endings then need not tell it. options: see
        IndexedReader.

    Raises UserError if no file is found.
    """

    footers = False
    """Whether a file's end tells what is in it."""

    def __init__(
        self, pattern: str, *, storage: Storage | None = None, kind: str = "", **options: Any
    ) -> None:
        super().__init__(pattern, **options)
        self._storage = storage or Storage(pattern, self._flag, kind)
        self._paths = self._storage.names
        self._stamps: Recent[str, str] = Recent(KEPT)

    def names(self) -> list[str]:
        """See DataReader: the files."""
        return list(self._paths)

    def grows(self) -> None:
        """See DataReader."""
        self._paths = self._paths[:1]

    def arrivals(self, token: str) -> tuple[list[str], str]:
        """See DataReader: all files."""
        with reporting(self._pattern):
            self._storage.list_again()
        return list(self._storage.names), token

    def weights(self, names: Sequence[str] | None = None) -> dict[str, float]:
        """See DataReader: files without a footer are read whole."""
        paths = self._paths if names is None else names
        if self.footers:
            return dict.fromkeys(paths, 1.0)
        sizes = {path: int(self.stamp(path).partition("-")[0] or 0) for path in paths}
        return {path: 1.0 + size / WEIGHED_BYTES for path, size in sizes.items()}

    def stamp(self, name: str) -> str:
        """See DataReader."""
        with reporting(name):
            return self._storage.found_stamp(name)

    @property
    def form(self) -> str:
        """See DataReader."""
        return type(self).__name__

    def prepare(self, names: Sequence[str]) -> None:
        """See DataReader."""
        if self.footers:
            self._storage.warm(names)

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

    def _noted(self, path: str, stamp: str) -> None:
        """Note the stamp of a file; what is found out about the file later belongs to it."""
        self._stamps.forget(path)
        self._stamps.get(path, lambda: stamp)

    def _forget_changed(self, path: str, kept: Recent[str, Any]) -> None:
        """Forget a local file in `kept` if it was written since it was looked at.

        Files behind URLs are not checked, which would need a request; their storage gives one
        version.
        """
        if not self._storage.local or path not in self._stamps or path not in kept:
            return
        with reporting(path):
            if self._storage.stamp(path) != self._stamps[path]:
                kept.forget(path)

    @abstractmethod
    def _count(self, path: str, /) -> int:
        """Records in a file. Raises UserError."""
