"""The cores that this process may use, and what else runs on them can be known."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/")


def usable_cores(root: Path = ROOT) -> int:
    """The cores of the machine, if this process may use them all; else 1.

    Where its affinity or its container's quota leaves it a part of them, the system tells how
    many threads run on all of them, and not how many on that part. root: of the files of cgroups,
    for tests.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    quotas = (_quota(folder) for folder in _groups(root))
    whole = cores == os.cpu_count() and all(quota is None or quota >= cores for quota in quotas)
    return cores if whole else 1


def allowed_cores(root: Path = ROOT) -> int:
    """The cores that this process may use, at least 1: of its affinity and its container's quota.

    root: of the files of cgroups, for tests.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    quotas = [quota for folder in _groups(root) if (quota := _quota(folder)) is not None]
    return max(1, int(min([cores, *quotas])))


def _groups(root: Path) -> list[Path]:
    """The folders of this process's control groups, and of those around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        # In a container the path may be that of the machine, and the top the container's own.
        group = Path(path.lstrip("/"))
        found += [top / each for each in (group, *group.parents)]
    return found


def _quota(folder: Path) -> float | None:
    """The cores that a control group may use; None if it has no limit."""
    try:
        limit = folder / "cpu.max"
        if limit.exists():
            quota, period = limit.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # also "max"
        return None
