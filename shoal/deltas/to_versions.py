"""A job's newest values as numbered SavedModels, in the folder that TensorFlow Serving watches.

    NUMBER/                           a SavedModel with its tables, of the delta of this number
    NUMBER/saved_model.pb             at a URL written last, and removed first
    NUMBER/assets.extra/shoal.json    which delta it is; at a URL written first

Owns that whoever takes the largest number finds a whole model, whoever is killed meanwhile. On this
machine a version is written beside the others, under a hidden name, and renamed. How a model is
saved is the caller's.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path

from shoal.base.disk.wholefile import sync
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.deltas import chain
from shoal.deltas.errors import told
from shoal.deltas.following import Follower
from shoal.deltas.schema import VERSION_FORMAT, Version, checked_version
from shoal.errors import Error, UserError
from shoal.files.storage import LocalStorage, RemoteStorage, open_storage, upload

MODEL = "saved_model.pb"
LABEL = "assets.extra/shoal.json"

PARTIAL = ".shoal-"
"""Before the name of what is not whole: TensorFlow Serving takes numbers only."""

KEEP = 2
"""The newest versions, which are kept: the one before is served until the newest is loaded."""

PAUSE_SECONDS = 1.0

RETRY_SECONDS = 10.0
"""After a version that could not be written."""

logger = logging.getLogger(__name__)

Save = Callable[[Follower, Path], None]
"""Writes the SavedModel of what a follower has into a folder that does not exist."""


class Versions:
    """The versions in a folder. newest: the label of the newest; None without any.

    One process writes them at a time.
    """

    def __init__(self, location: str) -> None:
        """location: a path or a URL.

        Raises UserError if the folder has what this command has not written, or another process
        writes there; OSError.
        """
        self._root = open_storage(location, "--to")
        self._root.make()
        self._path = self._root.local_path("")
        self._lock = None if self._path is None else _locked(self._path)
        self.place = self._root.location
        self.newest: Version | None = None
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def _find(self) -> None:
        """Find the newest version, and remove what was not completed."""
        names = self._root.names()
        for name in names:
            if name.startswith(PARTIAL) and self._path is not None:
                shutil.rmtree(self._path / name)
        found = [each for each in names if each.isdecimal() and self._whole(each)]
        others = [each for each in names if not each.isdecimal() and each[0] != "."]
        if others and not found:
            raise UserError(
                f"--to: {self.place} has {others[0]}, and no version of a model: give a folder of "
                "its own"
            )
        if found:
            self.newest = self._label(max(found, key=int))

    def _whole(self, name: str) -> bool:
        """True if a version is whole; what was not completed is removed.

        Raises UserError if it is none that this command has written.
        """
        there = self._files(name)
        if there and LABEL not in there:
            raise UserError(
                f"--to: {self._root.path(name)} was not written by shoal follow: give a folder of "
                "its own, or remove it"
            )
        if MODEL not in there:
            self._remove(name)
        return MODEL in there

    def _files(self, name: str) -> list[str]:
        """The files of a version, with slashes."""
        if self._path is None:
            folder = self._root.child(name)
            assert isinstance(folder, RemoteStorage)
            return folder.files()
        return _files(self._path / name)

    def _label(self, name: str) -> Version:
        folder = self._root.child(name)
        try:
            return manifests.read(folder, LABEL, VERSION_FORMAT, checked_version)
        except CheckpointError as error:
            raise UserError(f"--to: {error}: remove {self._root.path(name)}") from error

    def add(self, version: Version, save: Callable[[Path], None]) -> None:
        """Add a version, and remove those before the last two. save: writes its SavedModel.

        Raises OSError, and what `save` raises.
        """
        name = str(version["delta"])
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=self._path) as made:
            model = Path(made, "model")
            save(model)
            (model / LABEL).parent.mkdir(exist_ok=True)
            manifests.write(LocalStorage(model), LABEL, version)
            if self._path is not None:
                for each in model.rglob("*"):
                    sync(each)
                sync(model)
                model.rename(self._path / name)
                sync(self._path)
            else:
                ends = {LABEL: 0, MODEL: 2}
                files = sorted(_files(model), key=lambda each: ends.get(each, 1))
                upload(model, files, self._root.child(name))
        self.newest = version
        numbers = sorted((each for each in self._root.names() if each.isdecimal()), key=int)
        for number in numbers[:-KEEP]:
            self._remove(number)

    def _remove(self, name: str) -> None:
        """Remove a version; half removed, it is none."""
        if self._path is not None:
            gone = self._path / f"{PARTIAL}{name}"
            (self._path / name).rename(gone)
            shutil.rmtree(gone)
            return
        folder = self._root.child(name)
        for each in sorted(self._files(name), key=lambda file: (file != MODEL, file == LABEL)):
            folder.discard(each)
        with suppress(FileNotFoundError):  # object stores have no folders
            folder.remove()

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)


def _files(folder: Path) -> list[str]:
    """The files in a folder and in those in it, with slashes."""
    found = [each for each in folder.rglob("*") if each.is_file()]
    return [each.relative_to(folder).as_posix() for each in found]


def _locked(path: Path) -> int:
    """A descriptor of a folder that nobody else holds locked. Raises UserError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(f"--to: another shoal follow writes into {path} now: end it") from error
    except OSError:  # some file systems have no locks
        pass
    return descriptor


def follow_into(
    url: str | PathLike[str],
    versions: Versions,
    save: Save,
    every: float,
    until: int | None = None,
    ends: threading.Event | None = None,
) -> None:
    """Write versions of what a job publishes until `ends` is set, or delta `until` is one.

    url: the folder. every: seconds from one version to the next. Goes on through failures of the
    storage and of deltas, and tells them once. Raises UserError for a model that no version can be
    made of, and if the versions are of other deltas.
    """
    ends = ends or threading.Event()
    follower = Follower(url, until)
    trouble, due, retry, begun = "", 0.0, 0.0, False
    while not ends.is_set():
        try:
            if follower.step():
                continue
            now = time.monotonic()
            if not begun:
                _check_chain(follower, versions)
                begun = True
            newer = _is_newer(follower, versions)
            if newer and now >= retry and (now >= due or follower.ended):
                retry = now + RETRY_SECONDS
                versions.add(_version(follower), lambda folder: save(follower, folder))
                took = time.monotonic() - now
                due, retry = now + every, 0.0
                logger.info("version %d is in %s: %.1f s", follower.number, versions.place, took)
                newer, trouble = False, ""
            if follower.ended and not newer:
                return
        except UserError:
            raise
        except (Error, OSError) as error:
            if (text := f"{type(error).__name__}: {error}") != trouble:
                logger.warning("%s", text)
            trouble = text
        ends.wait(PAUSE_SECONDS)


def _version(follower: Follower) -> Version:
    return {
        "format": VERSION_FORMAT,
        "delta": follower.number,
        "manifest": follower.checksum,
        "created": time.time() - follower.age,
    }


def _is_newer(follower: Follower, versions: Versions) -> bool:
    """True if a follower has a newer delta than the newest version.

    Raises UserError if it has an older one: TensorFlow Serving would never take that.
    """
    if (newest := versions.newest) is None:
        return True
    if newest["delta"] > follower.number:
        raise UserError(
            f"--to: {versions.place} has version {newest['delta']} already, and {follower.url} is "
            f"at delta {follower.number}: give another folder, or remove the newer versions"
        )
    return newest["delta"] < follower.number


def _check_chain(follower: Follower, versions: Versions) -> None:
    """Raises UserError if the newest version is of other deltas than those that are followed."""
    newest = versions.newest
    if newest is None or newest["delta"] > follower.number:
        return
    with told():
        root = open_storage(follower.url)
        if not chain.exists(root, newest["delta"]):
            return  # no longer kept
        if chain.read_delta(root, newest["delta"]).checksum != newest["manifest"]:
            raise UserError(
                f"--to: {versions.place} has versions of other deltas than those of "
                f"{follower.url}: give each job's versions a folder of their own"
            )
