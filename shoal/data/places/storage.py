"""The bytes of files: from local paths, or from URLs through fsspec.

Owns the meaning of a pattern, opening files (compressed ones as their content), and the stamp
that tells of a change. Knows no record formats.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from shoal.base.words import check_utf8
from shoal.config.url_variables import fill
from shoal.data.places.files import PACKED, find_files
from shoal.data.places.recent import Recent
from shoal.data.places.remote import RemoteFiles, is_url
from shoal.errors import NOT_THERE, NoFilesError, UnreadableError, UserError, without_secrets
from shoal.files.storage import file_system

LIST = "@"
"""Before the path or URL of a list of files."""

ANEW = "write or copy it anew, or leave it out"
"""What to do about a file that is damaged."""

GONE = "the file is gone; it must stay until its job has ended: put it back, or begin a new job"
"""Of a file that was there when the pattern was looked up."""

UNPACKED_BYTES = 1 << 20
"""That are unpacked at a time."""

UNPACKED_FILES = 4
"""Unpacked files that are kept: of a long one, a worker does the tasks one after the other."""


class Storage:
    """The files that a pattern stands for.

    pattern: file, folder or glob; a path, or a URL of a filesystem that fsspec knows.
    flag: named in errors. kind: as of `find_files`. names: the files, where somebody else has
        found them.

    names: what the files are called, sorted: their paths or URLs, without credentials.
    Raises UserError if there are none.
    """

    def __init__(
        self, pattern: str, flag: str, kind: str = "", names: Sequence[str] | None = None
    ) -> None:
        self._given = pattern, flag, kind
        if names is None and pattern.startswith(LIST):
            names = listed_files(pattern.removeprefix(LIST), flag)
            pattern = names[0]
        self._remote = RemoteFiles(pattern, flag, kind, names) if is_url(pattern) else None
        if self._remote is not None:
            self.names = self._remote.names
        else:
            self.names = find_files(pattern, flag, kind) if names is None else sorted(names)
            for name in self.names:
                check_utf8(name, flag)
        self._unpacked: Recent[str, pa.NativeFile] = Recent(UNPACKED_FILES)

    def list_again(self) -> None:
        """Look the files up anew; now there may be none. Raises UnreadableError."""
        try:
            found = Storage(*self._given)
        except NoFilesError:
            self.names = []
            return
        self.names = found.names
        if self._remote is not None and found._remote is not None:
            self._remote.found(found._remote)

    @property
    def listed(self) -> dict[str, str]:
        """The names of files behind URLs, by the URLs that another process found."""
        return {} if self._remote is None else self._remote.listed

    @property
    def local(self) -> bool:
        """True if names are paths, which may be mapped into memory."""
        return self._remote is None

    def stamp(self, name: str) -> str:
        """A text that changes when a file does: for local ones its size and the time of writing."""
        if self._remote is not None:
            return self._remote.stamp(name)
        status = os.stat(name)
        return f"{status.st_size}-{status.st_mtime_ns}"

    def found_stamp(self, name: str) -> str:
        """The `stamp` of a file, for a URL as it was listed. Begins with its size, and a dash."""
        if self._remote is None:
            return self.stamp(name)
        if not self._remote.lists(name):  # another process has found it, later
            self.list_again()
        return self._remote.found_stamp(name)

    def warm(self, names: Iterable[str]) -> None:
        """The ends of these files will be read next, in this order."""
        if self._remote is not None:
            self._remote.warm(names)

    def reopen(self) -> None:
        """Open what is read next anew: after an error nothing that is open can be relied on."""
        self._unpacked.clear()
        if self._remote is not None:
            self._remote.reopen()

    def expect(self, name: str, ranges: Iterable[tuple[int, int]]) -> None:
        """These bytes, [begin, end), of a file that is open will be read next."""
        if self._remote is None or name.lower().endswith(PACKED) or self._remote.whole(name):
            return
        self._remote.expect(name, ranges)

    def open(self, name: str) -> pa.NativeFile:
        """The bytes of a file; those packed in it if its name ends in .gz or .zst.

        A compressed file cannot be entered in the middle, nor one of a server without ranges: it
        is unpacked or fetched to a temporary file. The last few of these are kept, as long as this
        object lives.
        """
        if name.lower().endswith(PACKED):
            return self._unpacked.get(name, lambda: self._temporary(name, self._unpack))
        if self._remote is not None and self._remote.whole(name):
            return self._unpacked.get(name, lambda: self._temporary(name, self._download))
        return self._plain(name)

    def _plain(self, name: str) -> pa.NativeFile:
        if self._remote is None:
            return pa.OSFile(name)
        if self._remote.whole(name):
            return self._temporary(name, self._download)
        return self._remote.open(name)

    def _temporary(self, name: str, fill_in: Callable[[str, int, str], None]) -> pa.NativeFile:
        """A file that `fill_in` has filled: called with the name, a handle and a path."""
        with _unpacking(name):
            handle, temporary = tempfile.mkstemp(prefix="shoal-")
        try:
            fill_in(name, handle, temporary)
            with _unpacking(name):
                return pa.OSFile(temporary)
        finally:
            os.close(handle)
            # It lives on until closed, and leaves nothing behind if we are killed.
            os.unlink(temporary)

    def _download(self, name: str, _handle: int, temporary: str) -> None:
        assert self._remote is not None
        self._remote.download(name, temporary)

    def _unpack(self, name: str, handle: int, _temporary: str) -> None:
        with self._packed(name) as packed:
            while chunk := packed.read(UNPACKED_BYTES):
                with _unpacking(name):
                    _write(handle, chunk)

    def _packed(self, name: str) -> contextlib.AbstractContextManager[Any]:
        plain = self._plain(name)
        if self._remote is not None and not self._remote.whole(name):
            self._remote.expect(name, [(0, plain.size())])
        if name.lower().endswith(".gz"):
            return gzip.open(plain)
        packed: contextlib.AbstractContextManager[Any] = pa.CompressedInputStream(plain, "zstd")
        return packed


def _write(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def is_folder(place: str, name: str) -> bool:
    """True if a path or URL is a folder that has another one of this name."""
    if not is_url(place):
        return os.path.isdir(os.path.join(place, name))
    try:
        files, path = file_system(fill(place), place)
        return bool(files.isdir(f"{path.rstrip('/')}/{name}"))
    except Exception:
        return False  # what is wrong is told by those who look for files


def listed_files(place: str, flag: str) -> list[str]:
    """The files that a list names, sorted.

    place: of the list, a path or URL: a name a line, or a manifest of JSON, whose entries have the
        key url or path. Names that are relative are below the list's folder.

    Raises UserError naming the line.
    """
    import fsspec  # late: files of this machine need none of it

    try:
        with fsspec.open(fill(place, flag).url, "rb") as file:
            text = file.read().decode()
    except FileNotFoundError as error:
        raise UnreadableError(
            f"{flag}: there is no list {without_secrets(place)}", may_be_mistake=True
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{flag}: the list {without_secrets(place)} is not UTF-8 text") from error
    except Exception as error:
        raise UnreadableError(
            f"{flag}: the list {without_secrets(place)} cannot be read: "
            f"{without_secrets(str(error))}",
            may_be_mistake=True,
        ) from error
    found: list[str] = []
    real_places: dict[str, str] = {}
    folder = place.rpartition("/")[0]
    for where, name in _entries(text, place, flag):
        if "://" in name or name.startswith("/"):
            full = name.removeprefix("file://")
        else:
            full = f"{folder}/{name}" if folder else os.path.abspath(name)
        # A path may be spelled in several ways.
        real = full if is_url(full) else os.path.realpath(full)
        if real in real_places:
            raise UserError(
                f"{flag}: {place}: {where} names {name} again, as {real_places[real]} does"
            )
        real_places[real] = where
        if is_url(full) != is_url(found[0] if found else full):
            raise UserError(f"{flag}: {place}: {where}: paths and URLs cannot be in one list")
        if not is_url(full) and not os.path.isfile(full):
            message = (
                f"{flag}: {place}: {where}: there is no file {full}: correct the list, or put the "
                "file there"
            )
            raise UnreadableError(message, may_be_mistake=True)
        found.append(full)
    if not found:
        raise UserError(f"{flag}: the list {place} names no file")
    return sorted(found)


def _entries(text: str, place: str, flag: str) -> Iterator[tuple[str, str]]:
    """Names of files, each with its place in the list, in words."""
    if not text.lstrip().startswith(("{", "[")):
        # Not splitlines(): it also splits at characters that a name may hold.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip() and not line.startswith("#"):
                yield f"line {number}", line.strip()
        return
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{flag}: the manifest {place} is no JSON: {error}") from error
    entries = content.get("entries", content.get("files")) if isinstance(content, dict) else content
    for number, entry in enumerate(entries if isinstance(entries, list) else (), 1):
        name = entry.get("url", entry.get("path")) if isinstance(entry, dict) else entry
        if not isinstance(name, str):
            raise UserError(f"{flag}: {place}: entry {number} has no url and no path")
        yield f"entry {number}", name


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
        raise UnreadableError(f"{path}: {GONE}", may_be_mistake=True) from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: the gzip'd file is damaged: {error}: {ANEW}") from error
    except OSError as error:
        if type(error) is OSError and error.errno is None:
            # Arrow's words
            raise UserError(f"{path}: the file is damaged: {error}: {ANEW}") from error
        mistake = isinstance(error, NOT_THERE)
        raise UnreadableError(f"{path}: cannot be read: {error}", may_be_mistake=mistake) from error
