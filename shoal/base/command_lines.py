"""Arguments of this machine's processes, by which a job's are recognised."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

EXEC_SECONDS = 0.2
"""An exec takes microseconds, and on a machine with no free core some milliseconds. A program
that has erased its own arguments is not awaited for longer."""


def command_lines() -> Iterator[tuple[int, list[bytes]]]:
    """The id and the arguments of each process that runs now; zombies have none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                yield int(entry.name), command_line(int(entry.name))


def command_line(process: int) -> list[bytes]:
    """The arguments of a process; of one in the middle of exec, those that it gets.

    Linux lets a parent go on before the new program has its arguments: a child of a master
    that dies in that moment would be taken for a stranger. Kernel threads and zombies, which
    have no arguments either, have no `exe`. Raises OSError for a process that has ended.
    """
    folder = Path(f"/proc/{process}")
    give_up = time.monotonic() + EXEC_SECONDS
    while not (line := (folder / "cmdline").read_bytes()) and time.monotonic() < give_up:
        (folder / "exe").readlink()
        time.sleep(0.001)
    return line.split(b"\0")
