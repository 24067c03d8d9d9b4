"""A file that is there whole or not at all.

Owns the temporary name, the sync and the rename, and the reading of regular files only.
Files of checkpoints, which may lie elsewhere than in a local folder, are
shoal.files.storage's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

PREFIX = "."  # hides the half-written from those who read a folder's files
SUFFIX = ".partial"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace `path` by the file that is written to the name given, once the block has ended.

    Until then, and if the block raises, `path` stays as it was. A reader sees the old file or
    the new one, also after a power failure. Raises OSError.
    """
    temporary = path.with_name(f"{PREFIX}{path.name}.{os.getpid()}{SUFFIX}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        # A full or vanished disk must not hide the error that says so.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by the text. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_text(text)


def write_json(path: Path, content: Any, *, allow_nan: bool = False) -> None:
    """Replace `path` by the JSON of `content`. Raises OSError, and ValueError on NaN.

    allow_nan: write NaN and infinities, for which JSON has no word, as Python reads them.
    """
    write_text(path, json.dumps(content, indent=2, allow_nan=allow_nan) + "\n")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Raises OSError for anything else.

    A pipe would be waited for, and a device such as /dev/zero be read, without end.
    """
    require_regular(path.stat().st_mode, path)  # to open a device may do something
    # Another file may be there by now: no pipe may hold the open up.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        require_regular(os.fstat(descriptor).st_mode, path)
        yield file


def require_regular(mode: int, path: Path) -> None:
    """Raise OSError unless a file of this mode can be read to an end."""
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left in `folder`; nobody may be writing there."""
    for left in folder.glob(f"{PREFIX}*{SUFFIX}"):
        left.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, through to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
