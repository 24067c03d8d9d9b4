"""The temporary folder of one job's processes on this machine.

Killed processes leave files in it, TensorFlow's generated code among them. The client makes it
before the job's first process, and removes it after the last; the master removes it, too, which
may outlive the client. The job folder says which one it is, for a job that both have left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json
from shoal.errors import UserError

VARIABLE = "TMPDIR"
"""By which a process is told its temporary folder."""

PREFIX = "shoal-"
"""A short name: Unix sockets, which user code may make in there, too, have short paths."""

SOCKETS, LONGEST_SOCKET, SOCKET_PATH_BYTES = "sockets", "ps-99999.9999999.arrays", 107


def make(folder: JobFolder) -> None:
    """Make the job's temporary folder, in the user's, in place of one that was left.

    Raises UserError.
    """
    remove(folder)
    try:
        write_json(folder.temporary, {"path": tempfile.mkdtemp(prefix=PREFIX)})
    except OSError as error:
        raise UserError(
            f"the job's temporary folder cannot be made: {error}; set {VARIABLE} to a folder "
            "that can be written and has room"
        ) from error


def path_of(folder: JobFolder) -> Path | None:
    """The job's temporary folder; None if it has none of its own."""
    try:
        path = Path(json.loads(folder.temporary.read_text())["path"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return path if path.is_dir() else None


def sockets(folder: JobFolder) -> Path | None:
    """The folder, the user's alone, of the processes' Unix sockets; made on first use.

    None if the job has none, if gRPC could not take the paths in it, or if somebody else could
    reach them: a folder that was removed may have been made again by another user.
    """
    path = path_of(folder)
    if path is None or not _ours(path):
        return None
    path = path / SOCKETS
    if not takes_sockets(path):
        return None
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    alone = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0
    return path if alone and stat.S_ISDIR(found.st_mode) else None


def takes_sockets(folder: Path, longest: str = LONGEST_SOCKET) -> bool:
    """True if gRPC can listen at Unix sockets in a folder: it reads their paths as URIs."""
    try:
        path = str(folder / longest).encode()
    except UnicodeEncodeError:
        return False
    return len(path) <= SOCKET_PATH_BYTES and not set(b"%#?") & set(path)


def environment(folder: JobFolder) -> dict[str, str]:
    """The environment variables that give the job's processes their temporary folder."""
    path = path_of(folder)
    return {} if path is None else {VARIABLE: str(path)}


def remove(folder: JobFolder) -> None:
    """Remove the job's temporary folder, if there is one; none of its processes may be left."""
    path = path_of(folder)
    if path is not None and _ours(path):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.temporary.unlink()


def _ours(path: Path) -> bool:
    """True if nothing speaks against the folder: the file that names it may come from elsewhere."""
    mine = path.stat().st_uid == os.geteuid()
    return mine and path.is_absolute() and path.name.startswith(PREFIX) and not path.is_symlink()
