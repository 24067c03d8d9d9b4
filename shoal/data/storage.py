"""Where the bytes of files come from: local paths, or URLs through fsspec.

Owns what a pattern stands for, opening (compressed files as what is in them), and what tells
that a file has changed. Knows no record formats.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from shoal.data.files import PACKED, find_files
from shoal.data.recent import Recent
from shoal.data.remote import RemoteFiles, is_url
from shoal.errors import NOT_THERE, UnreadableError, UserError

UNPACKED_BYTES = 1 << 20
"""That are unpacked at a time."""

UNPACKED_FILES = 4
"""Unpacked files that are kept: of a long one, a worker does the tasks one after the other."""


class Storage:
    """The files that a pattern stands for.

    pattern: file, folder or glob; a path, or a URL of a filesystem that fsspec knows.
    flag: named in errors. kind: as of `find_files`.

    names: what the files are called, sorted: their paths or URLs, without credentials.
    Raises UserError if there are none.
    """

    def __init__(self, pattern: str, flag: str, kind: str = "") -> None:
        self._remote = RemoteFiles(pattern, flag, kind) if is_url(pattern) else None
        self.names = find_files(pattern, flag, kind) if self._remote is None else self._remote.names
        self._unpacked: Recent[str, pa.NativeFile] = Recent(UNPACKED_FILES)

    @property
    def local(self) -> bool:
        """Whether names are paths, which may be mapped into memory."""
        return self._remote is None

    def stamp(self, name: str) -> str:
        """What changes when a file does: for local ones its size and the time of writing."""
        if self._remote is not None:
            return self._remote.stamp(name)
        status = os.stat(name)
        return f"{status.st_size}-{status.st_mtime_ns}"

    def found_stamp(self, name: str) -> str:
        """As `stamp`, of a file behind a URL as it was listed. Begins with its size, and a dash."""
        return self.stamp(name) if self._remote is None else self._remote.found_stamp(name)

    def warm(self, names: Iterable[str]) -> None:
        """The ends of these files will be read next, in this order."""
        if self._remote is not None:
            self._remote.warm(names)

    def reopen(self) -> None:
        """Open what is read next anew: after an error nothing that is open can be relied on."""
        if self._remote is not None:
            self._remote.reopen()

    def expect(self, name: str, ranges: Iterable[tuple[int, int]]) -> None:
        """These bytes, [begin, end), of a file that is open will be read next."""
        if self._remote is not None and not name.lower().endswith(PACKED):
            self._remote.expect(name, ranges)

    def open(self, name: str) -> pa.NativeFile:
        """The bytes of a file; those packed in it if its name ends in .gz or .zst.

        A compressed file cannot be entered in the middle, so it is unpacked to a temporary
        file. The last few of these are kept, as long as this object lives.
        """
        if not name.lower().endswith(PACKED):
            return pa.OSFile(name) if self._remote is None else self._remote.open(name)
        return self._unpacked.get(name, lambda: self._unpack(name))

    def _unpack(self, name: str) -> pa.NativeFile:
        with _unpacking(name):
            handle, temporary = tempfile.mkstemp(prefix="shoal-")
        try:
            with self._packed(name) as packed:
                while chunk := packed.read(UNPACKED_BYTES):
                    with _unpacking(name):
                        _write(handle, chunk)
            with _unpacking(name):
                return pa.OSFile(temporary)
        finally:
            os.close(handle)
            # It lives on until closed, and leaves nothing behind if we are killed.
            os.unlink(temporary)

    def _packed(self, name: str) -> contextlib.AbstractContextManager[Any]:
        plain = pa.OSFile(name) if self._remote is None else self._remote.open(name)
        if self._remote is not None:
            self._remote.expect(name, [(0, plain.size())])
        if name.lower().endswith(".gz"):
            return gzip.open(plain)
        packed: contextlib.AbstractContextManager[Any] = pa.CompressedInputStream(plain, "zstd")
        return packed


def _write(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


@contextmanager
def _unpacking(name: str) -> Iterator[None]:
    """Turns errors of the temporary folder, to which `name` is unpacked, into ones that name it."""
    try:
        yield
    except OSError as error:
        folder = tempfile.tempdir or "a temporary folder"
        raise UnreadableError(
            f"{name}: cannot be unpacked to {folder}: {error.strerror or error}; make room there, "
            "or set TMPDIR to a folder that can be written and has room",
            may_be_mistake=isinstance(error, NOT_THERE),
        ) from error


@contextmanager
def reporting(path: str) -> Iterator[None]:
    """Turns errors in opening and reading bytes into a UserError naming the file.

    Those of the storage into a UnreadableError.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableError(f"{path}: the file is gone", may_be_mistake=True) from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: the gzip'd file is damaged: {error}") from error
    except OSError as error:
        if type(error) is OSError and error.errno is None:
            raise UserError(f"{path}: the file is damaged: {error}") from error  # Arrow's words
        mistake = isinstance(error, NOT_THERE)
        raise UnreadableError(f"{path}: cannot be read: {error}", may_be_mistake=mistake) from error
