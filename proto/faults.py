"""Named points at which a test or `shoal chaos` has a process die; off by default.

The environment variable SHOAL_KILL_AT names a folder. A process that comes to the
point NAME removes the file NAME from it, if there is one, and kills itself with
SIGKILL: so each file is one death. Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "SHOAL_KILL_AT"

_FOLDER = os.environ.get(VARIABLE, "")


def point(name: str) -> None:
    """Die here, if that was asked for."""
    if not _FOLDER:
        return
    try:
        # Of several processes that come here one finds the file.
        (Path(_FOLDER) / name).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
