"""Folders of files: on this machine, or at a URL that fsspec knows (gs://, s3://, ...).

Owns writing a file whole or not at all. Knows nothing of checkpoints. Every failure is an OSError.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from shoal.base.disk.wholefile import reading, require_regular, sync
from shoal.config.url_variables import Filled, fill
from shoal.errors import UserError, without_secrets


class Storage(ABC):
    """A folder. location: its path or URL, as the user knows it."""

    location: str

    @abstractmethod
    def child(self, name: str) -> Storage:
        """A folder in this one, which need not exist."""

    @abstractmethod
    def make(self) -> None:
        """Create the folder, and those that it is in, unless they exist."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the files and folders in it, sorted; none if it does not exist."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes of a file."""

    @abstractmethod
    def read(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A regular file, opened for reading."""

    def read_part(self, name: str, start: int, size: int) -> bytes:
        """Bytes from `start` of a regular file; fewer where it ends before."""
        with self.read(name) as file:
            file.seek(start)
            return file.read(size)

    @abstractmethod
    def write(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file to be written: in place, and kept through a crash of the machine, on leaving.

        If the body raises, the file is as it was before.
        """

    @abstractmethod
    def discard(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the folder with all that is in it."""

    def path(self, name: str) -> str:
        """The place of a file, for messages."""
        return f"{self.location.rstrip('/')}/{name}"

    def local_path(self, name: str) -> Path | None:
        """The path of a file of this machine; None for one behind a URL."""
        del name
        return None


def open_storage(location: str, flag: str = "") -> Storage:
    """The folder at a path or URL. flag, errors: as of `file_system`."""
    if "://" not in location:
        return LocalStorage(location)
    return RemoteStorage(*file_system(fill(location, flag), location, flag), location)


def file_system(filled: Filled, url: str, flag: str = "") -> tuple[Any, str]:
    """The file system of a URL, as fsspec knows it, and the path there.

    flag: that names the URL, where there is one.

    Raises OSError, or UserError naming the flag, if nothing installed knows the kind of URL.
    """
    from fsspec.core import url_to_fs  # late: a job on one machine needs none of it

    try:
        filesystem, path = url_to_fs(filled.url)
    except (ImportError, ValueError) as error:
        text = without_secrets(f"{url}: no filesystem for such URLs ({error})")
        raise (UserError(f"{flag}: {text}") if flag else OSError(text)) from error
    return filesystem, str(path)


class LocalStorage(Storage):
    """A folder of this machine."""

    def __init__(self, location: str | Path) -> None:
        self.location = str(location)
        self._folder = Path(location)

    def child(self, name: str) -> LocalStorage:
        """See Storage."""
        return LocalStorage(self._folder / name)

    def make(self) -> None:
        """See Storage."""
        missing = []
        folder = self._folder
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        self._folder.mkdir(parents=True, exist_ok=True)
        # A folder whose entry is not on disk is lost with all that was synced in it.
        for made in missing:
            sync(made.parent)

    def names(self) -> list[str]:
        """See Storage."""
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """See Storage."""
        path = self._folder / name
        status = path.stat()
        require_regular(status.st_mode, path)
        return status.st_size

    def read(self, name: str) -> AbstractContextManager[BinaryIO]:
        """See Storage."""
        return reading(self._folder / name)

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """See Storage: a temporary name, synced and renamed."""
        path = self._folder / name
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync(path.parent)
        except BaseException as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                # A full disk does not say which file it was about.
                error.filename = error.filename or str(temporary)
            raise

    def discard(self, name: str) -> None:
        """See Storage."""
        (self._folder / name).unlink(missing_ok=True)
        sync(self._folder)

    def remove(self) -> None:
        """See Storage."""
        shutil.rmtree(self._folder)

    def local_path(self, name: str) -> Path | None:
        """See Storage."""
        return self._folder / name


class RemoteStorage(Storage):
    """A folder of an fsspec file system. Object stores show a file only when it is whole."""

    def __init__(self, filesystem: Any, path: str, location: str) -> None:
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        self.location = location.rstrip("/")

    def child(self, name: str) -> RemoteStorage:
        """See Storage."""
        return RemoteStorage(self._filesystem, f"{self._path}/{name}", f"{self.location}/{name}")

    def make(self) -> None:
        """See Storage."""
        with _as_os_error(self.location):
            self._filesystem.makedirs(self._path, exist_ok=True)

    def names(self) -> list[str]:
        """See Storage."""
        with _as_os_error(self.location):
            # Another process may have written there since it was last listed.
            self._filesystem.invalidate_cache()
            try:
                found = self._filesystem.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)

    def size(self, name: str) -> int:
        """See Storage."""
        with _as_os_error(self.path(name)):
            return int(self._filesystem.size(f"{self._path}/{name}"))

    @contextmanager
    def read(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        with (
            _as_os_error(self.path(name)),
            self._filesystem.open(f"{self._path}/{name}", "rb") as file,
        ):
            yield cast(BinaryIO, file)

    def read_part(self, name: str, start: int, size: int) -> bytes:
        """See Storage: one request, where a file would read ahead what others read too."""
        with _as_os_error(self.path(name)):
            path = f"{self._path}/{name}"
            return bytes(self._filesystem.cat_file(path, start=start, end=start + size))

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        with _as_os_error(self.path(name)):
            file = self._filesystem.open(f"{self._path}/{name}", "wb", autocommit=False)
            try:
                yield cast(BinaryIO, file)
                file.close()
            except BaseException:
                file.discard()
                raise
            file.commit()

    def discard(self, name: str) -> None:
        """See Storage."""
        with _as_os_error(self.path(name)), contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(f"{self._path}/{name}")

    def remove(self) -> None:
        """See Storage."""
        with _as_os_error(self.location):
            self._filesystem.rm(self._path, recursive=True)

    def remove_any(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        with _as_os_error(self.path(name)):
            self._filesystem.rm(f"{self._path}/{name}", recursive=True)

    def is_file(self) -> bool:
        """True if there is a file in the folder's place."""
        with _as_os_error(self.location):
            return bool(self._filesystem.isfile(self._path))

    def files(self) -> list[str]:
        """Paths, relative to the folder, of all files in it and in the folders in it."""
        with _as_os_error(self.location):
            self._filesystem.invalidate_cache()
            found = self._filesystem.find(self._path)
        root = self._filesystem._strip_protocol(self._path).rstrip("/") + "/"
        return sorted(str(each).removeprefix(root) for each in found)

    def copy(self, name: str, target: RemoteStorage) -> None:
        """Copy a file of `files` into a folder of the same file system, where it is."""
        with _as_os_error(self.path(name)):
            path = f"{target._path}/{name}"
            self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._filesystem.cp_file(f"{self._path}/{name}", path)


def upload(source: Path, names: Iterable[str], target: Storage) -> None:
    """Copy files of a local folder into a storage, one after the other; it makes their folders.

    names: relative to the folder, with slashes.
    """
    target.make()
    for path in names:
        *inner, name = path.split("/")
        at = target
        for each in inner:
            at = at.child(each)
            at.make()
        with (source / path).open("rb") as file, at.write(name) as copy:
            shutil.copyfileobj(file, copy)


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Whatever a cloud's library raises, as one kind of error that names the file."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        # Errors of our own writers pass through here too, which are no file's fault.
        if type(error).__module__.startswith(("shoal.", "pyarrow.")):
            raise
        raise OSError(f"{path}: {type(error).__name__}: {error}") from error
