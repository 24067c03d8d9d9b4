"""A folder that a job's result is written to and then stands in: of this machine, or behind a URL.

Owns that the new result is whole before the old one goes. Whether the old one may go is
outputs.py's to say; the content of a result is written by worker/outputs/.

Beside a local folder NAME stands `.NAME.shoal-partial` while the result is written; it is
renamed when it is whole. Behind a URL, where nothing can be renamed, the files wait in
NAME/_partial, and the manifest comes last.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, cast

from shoal.base.disk.wholefile import sync
from shoal.errors import UserError
from shoal.files.storage import RemoteStorage, Storage, open_storage

MANIFESTS = ("manifest.json", "_manifest.json")
"""Written last into an output folder: by the exporter, and beside predictions."""

FORMATS = ("shoal-export-", "shoal-predictions-")
"""What the `format` of such a manifest begins with."""

LONGEST_MANIFEST = 64_000_000
"""Bytes. A default row of each of many tables is in it."""

PARTIAL = "_partial"


def place_at(location: str) -> Place:
    """The place at a path or URL. Raises UserError if nothing installed knows the URL."""
    return UrlPlace(location) if "://" in location else LocalPlace(location)


class Place(ABC):
    """A folder for a result, which need not exist. Failures are OSErrors."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._storage = open_storage(location, "--output")

    @abstractmethod
    def check(self) -> None:
        """Raise UserError if a folder cannot be here."""

    def names(self) -> list[str]:
        """The names in it, but for a result that is being written."""
        return [name for name in self._storage.names() if name != PARTIAL]

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of the result that is in it; None if there is none of shoal's."""
        for name in MANIFESTS:
            if name in self._storage.names():
                with self._storage.read(name) as file:
                    content = file.read(LONGEST_MANIFEST)
                with contextlib.suppress(ValueError, RecursionError):
                    found = json.loads(content)
                    if isinstance(found, dict) and str(found.get("format")).startswith(FORMATS):
                        return found
        return None

    @abstractmethod
    def try_writing(self) -> None:
        """Write something as a result would be, and remove it."""

    @abstractmethod
    def begin(self) -> Path:
        """A local folder, new, into which the result is to be written."""

    @abstractmethod
    def put(self, name: str) -> None:
        """A file in the folder of `begin` is whole, and is not read again here.

        name: its path in the folder. Behind a URL it need not stay on this machine.
        """

    @abstractmethod
    def commit(self, manifest: str) -> None:
        """Put the result here in place of the former one. manifest: its file, written last."""

    @abstractmethod
    def abandon(self) -> None:
        """Remove what was written since `begin`."""


class LocalPlace(Place):
    """A folder of this machine, or mounted."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._target = Path(location)
        self.work = self._target.with_name(f".{self._target.name}.shoal-partial")
        """Where the result is written. Several processes may do so."""
        self._old = self._target.with_name(f".{self._target.name}.shoal-old")

    def check(self) -> None:
        """See Place."""
        path = self._target
        if path.exists() and not path.is_dir():
            raise UserError(f"--output: {path} is a file; a folder is expected")
        if path.is_mount():
            raise UserError(
                f"--output: {path} is where a volume is mounted, which a job cannot replace as a "
                f"whole; choose a folder in it, such as {path / 'model'}"
            )

    def try_writing(self) -> None:
        """See Place."""
        folder = self._target.parent
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self._target.name}.", dir=folder) as tried:
            (Path(tried) / "tried").write_bytes(b"tried")

    def begin(self) -> Path:
        """See Place."""
        shutil.rmtree(self.work, ignore_errors=True)
        self._put_back()
        self.work.mkdir(parents=True)
        return self.work

    def _put_back(self) -> None:
        """Put the former result back, if a process was killed while it was replacing it."""
        if self._old.exists() and not self._target.exists():
            os.replace(self._old, self._target)

    def put(self, name: str) -> None:
        """See Place."""

    def commit(self, manifest: str) -> None:
        """See Place."""
        del manifest
        _sync(self.work)
        if self._target.exists():
            shutil.rmtree(self._old, ignore_errors=True)
            os.replace(self._target, self._old)
        try:
            os.replace(self.work, self._target)
        except OSError:
            self._put_back()
            raise
        sync(self._target.parent)
        shutil.rmtree(self._old, ignore_errors=True)

    def abandon(self) -> None:
        """See Place."""
        shutil.rmtree(self.work, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Write all that is in a folder through to the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync(Path(parent, name))
        sync(Path(parent))


class UrlPlace(Place):
    """A folder behind a URL. What is in it is removed when all of the new is beside it."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._remote = cast(RemoteStorage, self._storage)
        self._waiting = self._remote.child(PARTIAL)
        self._work: tempfile.TemporaryDirectory[str] | None = None

    def check(self) -> None:
        """See Place."""
        if self._remote.is_file():
            raise UserError(f"--output: {self.location} is a file; a folder is expected")

    def try_writing(self) -> None:
        """See Place."""
        name = f"tried-{secrets.token_hex(8)}"
        self._waiting.make()
        with self._waiting.write(name) as file:
            file.write(b"tried")
        self._waiting.discard(name)

    def begin(self) -> Path:
        """See Place."""
        self._clear()
        self._work = tempfile.TemporaryDirectory(prefix="shoal-output-")
        return Path(self._work.name)

    def _clear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._waiting.remove()

    def put(self, name: str) -> None:
        """See Place."""
        assert self._work is not None
        path = Path(self._work.name, name)
        *folders, file_name = name.split("/")
        folder: Storage = self._waiting
        for each in folders:
            folder = folder.child(each)
        folder.make()
        with path.open("rb") as source, folder.write(file_name) as target:
            shutil.copyfileobj(source, target, 1 << 24)
        path.unlink()

    def commit(self, manifest: str) -> None:
        """See Place."""
        assert self._work is not None
        root = Path(self._work.name)
        description = (root / manifest).read_bytes()
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.put(path.relative_to(root).as_posix())
        # From here on the new result is whole, in the folder for what is not.
        incomplete = json.loads(description) | {"complete": False}
        self._describe(manifest, json.dumps(incomplete).encode())
        for name in self.names():
            if name != manifest:
                self._remote.remove_any(name)
        for name in self._waiting.files():
            if name != manifest:
                self._waiting.copy(name, self._remote)
        self._describe(manifest, description)  # byte by byte: it has a checksum of its own
        self.abandon()

    def _describe(self, manifest: str, content: bytes) -> None:
        self._remote.make()
        with self._remote.write(manifest) as file:
            file.write(content)

    def abandon(self) -> None:
        """See Place."""
        if self._work is not None:
            self._work.cleanup()
            self._work = None
        with contextlib.suppress(OSError):
            self._clear()
