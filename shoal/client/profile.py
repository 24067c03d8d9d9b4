"""`shoal profile`: where one process of a job of this machine spends its time, by py-spy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from shoal.errors import UserError

PY_SPY = "py-spy"

SPY_SECONDS = 60.0
"""For py-spy to begin and to write what it has seen, on a busy machine."""


def record(process: int, seconds: float, path: Path) -> None:
    """Draw a flame graph of a process of this machine over some seconds, with py-spy.

    path: of the SVG. Raises UserError if py-spy is missing, or may not look at the process.
    """
    command = shutil.which(PY_SPY)
    if command is None:
        raise UserError(f"{PY_SPY}, which looks at the process, is missing: pip install {PY_SPY}")
    line = [command, "record", "--pid", str(process), "--duration", f"{max(1, round(seconds))}"]
    line += ["--threads", "--output", str(path)]
    try:
        done = subprocess.run(
            line,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds + SPY_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{PY_SPY} has not ended {SPY_SECONDS:g} s after its time") from error
    if done.returncode or not path.is_file():
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UserError(
            f"{PY_SPY} cannot look at process {process}: {said[0] if said else 'no reason given'}. "
            "If it may not, run shoal profile as root"
        )
