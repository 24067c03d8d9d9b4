"""Fuzzing of one target, guided by the lines that inputs reach: `make fuzz`.

usage: python -m tests.fuzz.guided TARGET SECONDS FOLDER

FOLDER gets the inputs that reach new lines, and those that are a defect: crash-*, timeout-*, oom-*.
Needs atheris.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["shoal"], enable_loader_override=False):
    from tests.fuzz.targets import CORPUS, TARGETS

MEMORY_MB = 64
"""More than this, beyond the memory of the process before, is a defect."""

INPUT_SECONDS = 10
"""After which an input is a hang."""


def main(name: str, seconds: str, folder: Path) -> None:
    """Fuzz until the time is over, or a defect is found; ends the process."""
    target, found = TARGETS[name], folder / "found" / name
    seeds = folder / "seeds" / name
    for each in (seeds, found):
        each.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (seeds / str(number)).write_bytes(seed)
        target.take(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_SECONDS}",
        f"-rss_limit_mb={before + MEMORY_MB}",
        f"-artifact_prefix={found}{os.sep}",
        "-print_final_stats=1",
    ]
    corpora = [str(each) for each in (found, seeds, CORPUS / name) if each.is_dir()]
    atheris.Setup([sys.argv[0], *options, *corpora], target.take)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
