"""Opening files: seekable, gzip'd ones as what is in them.

Owns where bytes come from. Knows no record formats.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from shoal.errors import UserError


def stamp(path: str) -> str:
    """What changes when a file does: its size and the time it was written."""
    status = os.stat(path)
    return f"{status.st_size}-{status.st_mtime_ns}"


class Storage:
    """Opens files; unpacks each gzip'd one once."""

    def __init__(self) -> None:
        self._unpacked: dict[str, pa.NativeFile] = {}

    def open(self, path: str) -> pa.NativeFile:
        """The bytes of a file; those packed in it if its name ends in .gz.

        A gzip'd file cannot be entered in the middle, so it is unpacked to a temporary
        file, which lives as long as this object.
        """
        if not path.lower().endswith(".gz"):
            return pa.OSFile(path)
        if path not in self._unpacked:
            handle, name = tempfile.mkstemp(prefix="shoal-")
            try:
                with gzip.open(path) as packed, os.fdopen(handle, "wb") as plain:
                    shutil.copyfileobj(packed, plain, 1 << 20)
                self._unpacked[path] = pa.OSFile(name)
            finally:
                # It lives on until closed, and leaves nothing behind if we are killed.
                os.unlink(name)
        return self._unpacked[path]


@contextmanager
def reporting(path: str) -> Iterator[None]:
    """Turns errors in opening and reading bytes into a UserError naming the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: the file is gone") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: the gzip'd file is damaged: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
