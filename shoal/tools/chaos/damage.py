"""Damage to a job's files while all its processes are down, and undoing it.

Owns which files are a journal or a log. What they hold is not known here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

FLIP, REMOVE = "flip", "remove"

FILES = {
    "journal": ("journal*", "journal*/**/*"),
    "log": ("log/**/*",),
    "checkpoint": ("checkpoints/**/*",),
}
"""What can be damaged -> globs below the job's folder."""

LEFT = {"trained": ("checkpoints/trained*",)}
"""What a job leaves at its end, too."""

_LEFT_OUT = (".shm", "-shm", ".lock", ".partial")
"""Ends of names of files that hold nothing, or nothing that outlives a process."""


@dataclass(frozen=True)
class Damage:
    """Damage to a file. before: its whole content earlier. what: the damage in words."""

    path: Path
    before: bytes
    what: str

    def is_named_in(self, message: str) -> bool:
        """True if a message names the file. A journal's segment may have been compressed since."""
        return self.path.name.removesuffix(".gz") in message

    def undo(self) -> None:
        """Restore the file as it was."""
        self.path.write_bytes(self.before)


def files_of(job_dir: Path, what: str) -> list[Path]:
    """The files of a journal, log or checkpoint that hold something, sorted."""
    found = {path for pattern in (FILES | LEFT)[what] for path in job_dir.glob(pattern)}
    return sorted(
        path
        for path in found
        if path.is_file() and not path.name.endswith(_LEFT_OUT) and path.stat().st_size
    )


def damaged(job_dir: Path, verb: str, what: str, draw: random.Random) -> Damage | None:
    """Flip one bit of one file, or remove one file. None if there is none."""
    files = files_of(job_dir, what)
    if not files:
        return None
    path = draw.choice(files)
    before = path.read_bytes()
    name = path.relative_to(job_dir)
    if verb == REMOVE:
        path.unlink()
        return Damage(path, before, f"removed {name}")
    at, bit = draw.randrange(len(before)), draw.randrange(8)
    changed = bytearray(before)
    changed[at] ^= 1 << bit
    path.write_bytes(changed)
    return Damage(path, before, f"flipped bit {bit} of byte {at} of {name}")
