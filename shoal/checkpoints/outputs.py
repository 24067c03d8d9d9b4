"""Where a job puts its result: a folder of this machine, or behind a URL.

Owns what may be replaced, and that the new result is whole before the old one goes. What
is in a result is written by worker/outputs/export.py and worker/outputs/prediction_output.py.

Beside a local folder NAME stands `.NAME.shoal-partial` while the result is written; it is
renamed when it is whole. Behind a URL, where nothing can be renamed, the files wait in
NAME/_partial, and the manifest comes last.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from shoal.base.wholefile import sync
from shoal.checkpoints.storage import RemoteStorage, Storage, open_storage
from shoal.config.flags import flag
from shoal.config.job import JobConfig
from shoal.errors import StorageError, UserError

MANIFESTS = ("manifest.json", "_manifest.json")
"""Written last into an output folder: by the exporter, and beside predictions."""

FORMATS = ("shoal-export-", "shoal-predictions-")
"""What the `format` of such a manifest begins with."""

LONGEST_MANIFEST = 64_000_000
"""Bytes. A default row of each of many tables is in it."""

_TO_MEND = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors that say that --output is not a place to write to."""

PARTIAL = "_partial"
READ_FIELDS = ("training_data", "validation_data", "prediction_data", "restore_from")


# ------------------------------------------------------------ what may be replaced


def check_output(config: JobConfig) -> None:
    """Refuse an --output that holds what this job must not replace. Changes nothing.

    The result of an earlier job is replaced with --overwrite only, anything else never;
    what this job itself has written, it may write again.

    Raises UserError.
    """
    try:
        check_replaced(config)
    except OSError as error:
        raise UserError(f"--output: cannot read {config.output}: {error}") from error


def check_replaced(config: JobConfig) -> None:
    """As `check_output`, but an --output that cannot be read is an OSError."""
    if not config.output:
        return
    if config.command == "predict" and "://" in config.output:
        raise UserError(f"--output: {config.output} is a URL; a local or mounted folder is needed")
    place = place_at(config.output)
    place.check()
    _check_replaceable(place, config)


def _check_replaceable(place: Place, config: JobConfig) -> None:
    if not place.names():
        return
    manifest = place.manifest()
    if manifest is None:
        raise UserError(
            f"--output: the folder {place.location} is not empty; choose another one (shoal "
            "did not write its content, so --overwrite does not replace it)"
        )
    if manifest.get("job_id") == config.job_id:
        return
    if not config.overwrite:
        raise UserError(
            f"--output: the folder {place.location} is not empty; choose another one, or replace "
            "it with --overwrite"
        )
    check_removable(config.output, config, "--output")


def check_removable(folder: str | Path, config: JobConfig, named: str) -> None:
    """Removing `folder` takes nothing that this job needs. Raises UserError otherwise."""
    needed = {flag(name): getattr(config, name) for name in READ_FIELDS}
    needed |= {"--model-zoo": config.model_zoo, "the working directory": os.getcwd()}
    if named == "--output":
        needed["--job-dir"] = config.job_dir
    for name, value in needed.items():
        if value and _is_within(value, str(folder)):
            raise UserError(
                f"{named}: --overwrite would remove {folder}, which holds {name} ({value})"
            )


def _is_within(path: str, folder: str) -> bool:
    if "://" in folder:
        return f"{path}/".startswith(f"{folder.rstrip('/')}/")
    return "://" not in path and Path(path).resolve().is_relative_to(Path(folder).resolve())


def try_output(config: JobConfig) -> None:
    """Find out whether --output can be written, by writing there. Leaves nothing but folders.

    To be called in a process of the kind that will write. Raises UserError.
    """
    if not config.output:
        return
    try:
        place_at(config.output).try_writing()
    except OSError as error:
        raise UserError(f"--output: cannot write {config.output}: {error}") from error


def needs_another(error: OSError) -> bool:
    """Whether an error says that --output is no place to write to, and not that it fails now."""
    return error.errno in _TO_MEND


def not_written(output: str, error: OSError, left: str = "") -> UserError | StorageError:
    """What an error becomes by which a result could not be written, after `try_output`.

    UserError if another --output would mend it; else StorageError, as for a full disk. left: what
    is there all the same, in words.
    """
    kind = UserError if needs_another(error) else StorageError
    return kind(f"--output: cannot write {output}: {error}" + (f"; {left}" if left else ""))


# ------------------------------------------------------------ places


def place_at(location: str) -> Place:
    """The place at a path or URL. Raises UserError if nothing installed knows the URL."""
    if "://" not in location:
        return LocalPlace(location)
    try:
        return UrlPlace(location)
    except OSError as error:
        raise UserError(f"--output: {error}") from error


class Place(ABC):
    """A folder for a result, which need not exist. Failures are OSErrors."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._storage = open_storage(location)

    @abstractmethod
    def check(self) -> None:
        """Raise UserError if a folder cannot be here."""

    def names(self) -> list[str]:
        """Of what is in it, other than a result that is being written."""
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
        """Have the result be here in place of what was. manifest: its file, written last."""

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
        """What a process was replacing when it was killed is the result that is there."""
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
    """Have all that is in a folder on disk."""
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


@contextmanager
def replacing_output(config: JobConfig, manifest: str) -> Iterator[Place]:
    """Have --output be what the body writes, once it has ended without an error.

    Yields the place; `begin` was called. manifest: the name of the file that is written last.
    Raises UserError if it must not be replaced, and OSError.
    """
    check_replaced(config)
    place = place_at(config.output)
    try:
        yield place
        check_replaced(config)  # somebody else may have put something there meanwhile
        place.commit(manifest)
    finally:
        place.abandon()
