"""Files behind a URL, through fsspec: found, opened, told apart when they change.

The package of the filesystem (s3fs, gcsfs, ...) is the user's to install.
Credentials in a URL, and the values of its variables, are used and never shown: a file's name here
is without them.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from shoal.config.url_variables import fill
from shoal.data.places.files import KNOWN, check_known, data_files, format_of, names_below
from shoal.data.ranges import RangeFile, at_once
from shoal.errors import (
    Error,
    NoFilesError,
    UnreadableError,
    UserError,
    without_credentials,
    without_secrets,
)
from shoal.files.storage import file_system

TAIL_BYTES = 256 << 10
"""That are fetched of the end of a file: the footer of most Parquet files."""

MARKS = (
    *("ETag", "etag", "md5Hash", "generation", "checksum", "content_md5", "version_id"),
    *("mtime", "LastModified", "last_modified", "updated", "modified", "created"),
)
"""What filesystems call that which changes when a file does."""


def is_url(pattern: str) -> bool:
    """True if a flag's value is a URL, and no local path."""
    return "://" in pattern


class RemoteFiles:
    """The files that a URL stands for: a file, a folder or a glob pattern.

    flag: named in errors. kind: as of `find_files`. listed: URLs of the files, where somebody else
        has found them.
    names: of the files, sorted.

    Raises UserError if nothing is found, the filesystem is unknown, or its package is not
    installed.
    """

    def __init__(
        self, url: str, flag: str, kind: str = "", listed: Sequence[str] | None = None
    ) -> None:
        from fsspec import AbstractFileSystem  # late: files of this machine need none of it

        self._flag = flag
        self._kind = kind
        shown = without_credentials(url)
        filled = fill(url, flag)
        self._fs, path = file_system(filled, url, flag)
        try:
            with _as_os_errors():
                urls = {
                    str(self._fs._strip_protocol(filled.filled(each))): each
                    for each in listed or ()
                }
                paths = self._find(path) if listed is None else dict.fromkeys(urls, "")
        except OSError as error:
            message = f"{flag}: {shown} cannot be looked up: {error}"
            raise UnreadableError(message, may_be_mistake=True) from error
        if paths is None:
            message = f"{flag}: there is no file or folder {shown}"
            raise NoFilesError(message)
        self._filled = filled
        self._stamps: dict[str, str] = {}
        self.listed: dict[str, str] = {}
        self._paths: dict[str, str] = {}  # where the name does not tell the path
        web = "https" in _protocols(self._fs)
        shown_names = _names(
            {each: filled.unfilled(self._fs.unstrip_protocol(each)) for each in paths}, web, flag
        )
        named = set()
        for each, stamp in paths.items():
            name = shown_names[each]
            if listed is None:
                check_known(name.partition("?")[0] if web else name, flag, kind)
            named.add(name)
            if each in urls:
                self.listed[urls[each]] = name
            self._stamps[name] = stamp
            if self._path(name) != each:
                self._paths[name] = each
        if not named:
            message = f"{flag}: no file matches {shown}, or none ends in {KNOWN}"
            raise NoFilesError(message)
        self.names = sorted(named)
        # What was listed is kept by some file systems: much memory, and older than the files.
        self._fs.invalidate_cache()
        # Where they have no call for a range, but open the file: read no more than was asked for.
        # Asynchronous ones have theirs on the object, not on the class.
        plain = getattr(self._fs.cat_file, "__func__", None) is AbstractFileSystem.cat_file
        self._options = {"cache_type": "none"} if plain else {}
        # Web servers need not give ranges; None until one was asked.
        self._whole = None if web else False
        self._opened: _Opened | None = None
        self._warm: dict[str, tuple[dict[str, Any], bytes]] = {}

    def _find(self, path: str) -> dict[str, str] | None:
        """Paths and stamps, None if there is no such file or folder."""
        fs = self._fs
        if fs.isfile(path):
            return {path: stamp_of(fs.info(path))}
        if fs.isdir(path):
            return self._below(path)
        if not glob.has_magic(path):
            return None
        found: dict[str, str] = {}
        for each, info in fs.glob(path, detail=True).items():
            # One of this machine says of a link to a folder that it is something else.
            if info["type"] != "file" and fs.isdir(each):
                found |= self._below(each)
            elif not each.rpartition("/")[2].startswith("."):  # as with local patterns
                found[each] = stamp_of(info)
        return found

    def _below(self, folder: str) -> dict[str, str]:
        from fsspec.implementations.local import LocalFileSystem

        # Names as in a folder of ours: what stands before them is not theirs to hide.
        if isinstance(self._fs, LocalFileSystem):
            paths = (f"{folder.rstrip('/')}/{name}" for name in names_below(folder))
            found = {path: self._fs.info(path) for path in paths}
        else:
            found = self._fs.find(folder, detail=True)
        inside = {each.removeprefix(folder).strip("/"): each for each in found}
        named = (inside[name] for name in data_files(inside, self._kind))
        return {each: stamp_of(found[each]) for each in named}

    def reopen(self) -> None:
        """Open the next file anew, also if it is open."""
        self._opened = None

    def open(self, name: str) -> pa.NativeFile:
        """A file to be read anywhere. The last one stays open, with what was fetched of it."""
        return self._open(name).native

    def _open(self, name: str) -> _Opened:
        if self._opened is None or self._opened.name != name:
            path = self._path(name)
            info, tail = self._warm.pop(name, (None, b""))
            if info is None:
                with _as_os_errors():
                    info = self._fs.info(path)
            size = int(info["size"] or 0)
            file = RangeFile(lambda begin, end: self._fetch(path, begin, end), size, tail)
            self._opened = _Opened(name, file, pa.PythonFile(file, "r"), stamp_of(info))
        return self._opened

    def whole(self, name: str) -> bool:
        """True if files can only be fetched whole: the server gives no ranges, or not the size.

        The first file tells it for all.
        """
        if self._whole is None:
            path = self._path(name)
            with _as_os_errors():
                size = self._fs.info(path)["size"]
            if size is None:
                self._whole = True
                return True
            if size < 2:
                return False  # each range of it is all of it
            try:
                with self._fs.open(path, "rb", cache_type="none") as file:
                    file.seek(size - 1)
                    self._whole = len(file.read(1)) != 1
            except ValueError:  # more came than was asked for
                self._whole = True
            except Exception as error:
                raise RemoteError(without_secrets(f"{type(error).__name__}: {error}")) from error
        return self._whole

    def download(self, name: str, place: str) -> None:
        """Fetch a file whole to a local path. Raises OSError, also if a part of it is missing."""
        path = self._path(name)
        with _as_os_errors():
            size = self._fs.info(path)["size"]
            self._fs.get_file(path, place)
        _check_length(os.path.getsize(place), size)

    def expect(self, name: str, ranges: Iterable[tuple[int, int]]) -> None:
        """These bytes of a file will be read next: fetch them beforehand."""
        self._open(name).file.expect(ranges)

    def warm(self, names: Iterable[str]) -> None:
        """The ends of these files will be read next: fetch them beforehand, several at once.

        What cannot be fetched is tried again when it is read.
        """

        def fetch(name: str) -> None:
            if self.whole(name):
                return
            path = self._path(name)
            with _as_os_errors():
                info = self._fs.info(path)
            size = int(info["size"])
            self._warm[name] = info, self._fetch(path, max(0, size - TAIL_BYTES), size)

        self._warm.clear()
        at_once([partial(fetch, name) for name in names])

    def _fetch(self, path: str, begin: int, end: int) -> bytes:
        if begin == end:
            return b""  # the first byte of no range is behind its last
        with _as_os_errors():
            # By keyword: some file systems have other arguments between these.
            data = bytes(self._fs.cat_file(path, start=begin, end=end, **self._options))
        _check_length(len(data), end - begin)
        return data

    def _path(self, name: str) -> str:
        """The path of a file, as its file system calls it."""
        return self._paths.get(name) or str(self._fs._strip_protocol(self._filled.filled(name)))

    def stamp(self, name: str) -> str:
        """A text that changes when the file does, as far as the filesystem tells."""
        return self._open(name).stamp

    def found_stamp(self, name: str) -> str:
        """The stamp of a file as it was listed."""
        return self._stamps.get(name, "")

    def lists(self, name: str) -> bool:
        """True if the file was listed."""
        return name in self._stamps

    def found(self, later: RemoteFiles) -> None:
        """Know the files of a later listing, too."""
        self.names = later.names
        self._stamps |= later._stamps
        self._paths |= later._paths


def _protocols(files: Any) -> Sequence[str]:
    """The protocols of a file system."""
    return (files.protocol,) if isinstance(files.protocol, str) else files.protocol


def _names(urls: Mapping[str, str], web: bool, flag: str) -> dict[str, str]:
    """The names of files, by their paths: their URLs without a query, if that is unique.

    web: the text behind a question mark is a query in any case. Elsewhere it may be part of a
    file's name.
    """
    cut = {
        path: head if format_of(head := url.partition("?")[0]) or web else url
        for path, url in urls.items()
    }
    times = Counter(cut.values())
    names = {path: name if times[name] == 1 else urls[path] for path, name in cut.items()}
    twice = next((name for name, count in Counter(names.values()).items() if count > 1), None)
    if twice is not None:
        raise UserError(
            f"{flag}: two files are called {twice}, without what is secret of their URLs: give "
            "them names that differ elsewhere"
        )
    return names


def stamp_of(info: Mapping[str, Any]) -> str:
    """The size of a file and what tells one version of it from another, of a filesystem's words."""
    mark = next((str(info[name]) for name in MARKS if info.get(name) is not None), "")
    return f"{info.get('size') or 0}-{mark}"


@dataclass(frozen=True)
class _Opened:
    """A file that is open. native: the same, for Arrow. stamp: of when it was opened."""

    name: str
    file: RangeFile
    native: pa.NativeFile
    stamp: str


class RemoteError(Error, OSError):
    """A filesystem behind a URL failed."""


def _check_length(found: int, asked: int | None) -> None:
    if asked is not None and found != asked:
        raise RemoteError(f"{found} bytes came, and {asked} were asked for")


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Filesystems raise what their libraries do: those are OSErrors here, without secrets."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise PermissionError(without_secrets(str(error))) from error
    except Exception as error:
        raise RemoteError(without_secrets(f"{type(error).__name__}: {error}")) from error
