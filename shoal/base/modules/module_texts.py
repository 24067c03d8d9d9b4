"""The texts of a user's modules that a job began with: files in its folder, by their paths.

Workers write and read them (worker/code/kept_modules.py), the client compares them when it resumes.
"""

from __future__ import annotations

import os
from pathlib import Path


def place_of(module: str, folder: Path) -> Path:
    """The path in `folder` of the kept text of the file `module`, which has an absolute path."""
    return folder / module.lstrip("/")


def changed(folder: Path) -> list[str]:
    """The files whose text is no longer the one that is kept in `folder`, or that are gone."""
    found = []
    for kept in sorted(folder.rglob("*.py")):
        module = Path(os.sep, kept.relative_to(folder))
        if not module.is_file() or module.read_bytes() != kept.read_bytes():
            found.append(str(module))
    return found
