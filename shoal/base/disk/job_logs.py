"""The logs of a job's processes in its folder, a file for each start.

On one machine the processes write them. On Kubernetes the master keeps those of pods that end, in a
folder that a volume has: the cluster's go with their pods.
"""

from __future__ import annotations

from pathlib import Path

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_text
from shoal.errors import UserError

KEPT_STARTS = 5
"""So many of a process are kept: one that is preempted for months has thousands."""


def logs_of(folder: JobFolder) -> dict[tuple[str, int], dict[int, Path]]:
    """The logs of each process but the master, by role and index, and by incarnation."""
    found: dict[tuple[str, int], dict[int, Path]] = {}
    for path in folder.logs.glob("*-*.*.log"):
        process, incarnation, _ = path.name.split(".")
        role, _, index = process.rpartition("-")
        if index.isdigit() and incarnation.isdigit():
            found.setdefault((role, int(index)), {})[int(incarnation)] = path
    return found


def log_of(folder: JobFolder, role: str, index: int, incarnation: int | None = None) -> Path:
    """The log of one start; None: of the newest. Raises UserError, which names those there are."""
    logs = logs_of(folder)
    name = f"{role}-{index}"
    if (role, index) not in logs:
        there = ", ".join(["master", *(f"{role}-{index}" for role, index in sorted(logs))])
        raise UserError(f"job {folder.path.name} has no process {name}; there are: {there}")
    starts = logs[role, index]
    if incarnation is not None and incarnation not in starts:
        there = ", ".join(map(str, sorted(starts)))
        raise UserError(f"there is no log of restart {incarnation} of {name}, only of {there}")
    return starts[max(starts) if incarnation is None else incarnation]


def keep_log(folder: JobFolder, role: str, index: int, incarnation: int, text: str) -> None:
    """Keep what one start has written, in place of the oldest if there are many. Raises OSError."""
    folder.logs.mkdir(exist_ok=True)
    write_text(folder.log_of(role, index, incarnation), text)
    starts = logs_of(folder)[role, index]
    for each in sorted(starts)[:-KEPT_STARTS]:
        starts[each].unlink(missing_ok=True)
