"""A file system of this machine whose calls fail or hang when they are told to.

`shoal chaos --storage` has a job read and write through it, by URLs faulty://PATH. What is to
happen is in files of the folder of SHOAL_FAULTS, one for each kind of storage, which each call of
a job's process looks at. The process of `shoal chaos` itself is not disturbed.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import faults
from shoal.tools.chaos.faults import CHECKPOINTS, DATA, FAIL, OUTPUT, DisturbStorage

FAILS = "the storage fails, as shoal chaos was told"
"""What a call says that goes wrong."""

PREFIX = f"{faults.FAULTY}://"

FIELDS = {
    DATA: ("training_data", "validation_data"),
    CHECKPOINTS: ("checkpoint_dir",),
    OUTPUT: ("output",),
}
"""Kind of storage -> the fields of the configuration that say where it is."""

LOOK_SECONDS = 0.05
"""Between looks whether what hangs may go on."""


@dataclass(frozen=True)
class StorageFault:
    """The state of a kind of storage that fails or hangs.

    how: FAIL, or HANG until the fault is over. every: 3 for each third call of a process.
    below: paths; storage elsewhere works.
    """

    how: str
    every: int
    below: tuple[str, ...]


def fault_file(folder: Path, kind: str) -> Path:
    """Holds the fault of a kind of storage while it lasts."""
    return folder / f"storage@{kind}"


def begin(folder: Path, fault: DisturbStorage, config: JobConfig) -> Path:
    """Make the storage of a fault fail or hang until the returned file is removed.

    config: as `behind_urls` returns it.
    """
    (storage,) = fault.targets
    places = [getattr(config, name) for name in FIELDS[storage.role]]
    below = tuple(place.removeprefix(PREFIX) for place in places if place)
    path = fault_file(folder, storage.role)
    written = path.with_name(f"{path.name}.new")
    written.write_text("\n".join([fault.how, str(fault.every), *below]))
    return written.replace(path)


def behind_urls(config: JobConfig, kinds: set[str]) -> JobConfig:
    """The job with storage of these kinds behind URLs of this file system.

    config: resolved. Raises UserError for storage that is no file or folder of this machine.
    """
    changes = {}
    for kind in sorted(kinds):
        for name in FIELDS[kind]:
            place = getattr(config, name)
            if not place:
                continue
            if "://" in place or any(each in place for each in "*?["):
                raise UserError(
                    f"--storage {kind}: {place} is no file or folder of this machine, and only "
                    "such can be disturbed"
                )
            changes[name] = PREFIX + place
    return dataclasses.replace(config, **changes)


class _Calls:
    """Counts the calls of this process, and lets some fail or hang."""

    def __init__(self) -> None:
        self._counts = {kind: itertools.count(1) for kind in FIELDS}

    def before(self, path: str) -> None:
        """Fail or hang, if that call of this path is to. Raises OSError."""
        folder = os.environ.get(faults.VARIABLE)
        if not folder or faults.PROCESS_VARIABLE not in os.environ:
            return
        for kind, count in self._counts.items():
            file = fault_file(Path(folder), kind)
            found = _read(file)
            if found is None or not any(_is_below(path, each) for each in found.below):
                continue
            if next(count) % found.every:
                continue
            if found.how == FAIL:
                raise OSError(errno.EIO, FAILS, path)
            while _read(file) == found:
                time.sleep(LOOK_SECONDS)


def _read(file: Path) -> StorageFault | None:
    try:
        how, every, *below = file.read_text().split("\n")
    except FileNotFoundError:
        return None
    return StorageFault(how, int(every), tuple(below))


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


_CALLS = _Calls()


class _File(LocalFileOpener):  # type: ignore[misc]
    """A file, each read and write of which may fail or hang."""

    def read(self, *args: Any, **kwargs: Any) -> Any:
        _CALLS.before(self.path)
        return super().read(*args, **kwargs)

    def readinto(self, buffer: Any) -> Any:
        _CALLS.before(self.path)
        return self.f.readinto(buffer)

    def write(self, *args: Any, **kwargs: Any) -> Any:
        _CALLS.before(self.path)
        return super().write(*args, **kwargs)

    def commit(self) -> None:
        _CALLS.before(self.path)
        super().commit()


def _disturbed(name: str) -> Callable[..., Any]:
    """The call of that name, of the path that is its first argument."""
    plain = getattr(LocalFileSystem, name)

    def call(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        _CALLS.before(self._strip_protocol(os.fspath(path)))
        return plain(self, path, *args, **kwargs)

    return call


class FaultyFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Files of this machine behind faulty://PATH."""

    protocol = faults.FAULTY
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return LocalFileSystem._strip_protocol(os.fspath(path).removeprefix(PREFIX))

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return PREFIX + str(self._strip_protocol(name))

    def _open(self, path: Any, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> _File:
        del block_size
        path = self._strip_protocol(path)
        _CALLS.before(path)
        return _File(path, mode, fs=self, **kwargs)

    info = _disturbed("info")
    ls = _disturbed("ls")
    isfile = _disturbed("isfile")
    isdir = _disturbed("isdir")
    makedirs = _disturbed("makedirs")
    rm = _disturbed("rm")
    rm_file = _disturbed("rm_file")


# For the process of `shoal chaos`; those of a job have it from proto/faults.py.
fsspec.register_implementation(faults.FAULTY, FaultyFileSystem, clobber=True)
