"""Data sets below build/, which several test processes need at the same time."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any


def prepared_once(folder: Path, last: str, prepare: Callable[[Path], Any]) -> Path:
    """`folder`, once `prepare` has written it; other processes wait for the one that does.

    last: the file that is written last.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / last).exists():
            prepare(folder)
    return folder
