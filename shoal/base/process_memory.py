"""The memory of this process, and how much it may have."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def resident_bytes(root: Path = ROOT) -> int:
    """Resident memory of this process; 0 if the system does not tell. root: for tests."""
    return _kibibytes(root / "proc/self/status", "VmRSS:")


def memory_limit(root: Path = ROOT) -> int:
    """Bytes that this process and those in its container may have, at most the machine's.

    0 if the system does not tell. root: for tests.
    """
    limits = [_kibibytes(root / "proc/meminfo", "MemTotal:")]
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        groups = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be that of the machine, and the folder the container's own.
        for place in (folder / path.lstrip("/"), folder):
            limits.append(_number(place / name))
    return min((each for each in limits if each), default=0)


def _kibibytes(path: Path, field: str) -> int:
    """The bytes of a field in a file of /proc; 0 if it is not there."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(each.split()[1]) << 10 for each in lines if each.startswith(field)), 0)


def _number(path: Path) -> int:
    """The number in a file; 0 for none, or for "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
