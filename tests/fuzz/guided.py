"""Fuzzing of one target, guided by the lines that inputs reach: `make fuzz`.

usage: python -m tests.fuzz.guided TARGET SECONDS FOLDER

FOLDER gets the inputs that reach new lines, and those that are a defect: crash-*, timeout-*, oom-*.
Needs atheris.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["shoal"], enable_loader_override=False):
    from tests.fuzz.mutations import mutated
    from tests.fuzz.targets import CORPUS, TARGETS

MEMORY_MB = 64
"""More than this, beyond the memory of the process after WARM_UP inputs, is a defect."""

WARM_UP = 2_000
"""Inputs after which the parsers and their libraries have loaded what they keep: the process
would seem to grow by them otherwise."""

TRIM_EVERY = 100
"""Inputs after which the C library gives freed memory back: the many small pieces of refused
manifests leave holes, and the process would seem to grow."""

INPUT_SECONDS = 10
"""After which an input is a hang."""


def trimming(take: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """`take`, with freed memory given back again and again."""
    library, count = ctypes.CDLL(None), itertools.count(1)

    def taken(data: bytes) -> None:
        take(data)
        if next(count) % TRIM_EVERY == 0:
            library.malloc_trim(0)

    return taken


def main(name: str, seconds: str, folder: Path) -> None:
    """Fuzz until the time is over, or a defect is found; ends the process."""
    target, found = TARGETS[name], folder / "found" / name
    seeds = folder / "seeds" / name
    for each in (seeds, found):
        each.mkdir(parents=True, exist_ok=True)
    given = target.seeds()
    for number, seed in enumerate(given):
        (seeds / str(number)).write_bytes(seed)
    chance = random.Random(name)
    take = trimming(target.take)
    for _ in range(WARM_UP):
        take(mutated(given, chance))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_SECONDS}",
        f"-rss_limit_mb={before + MEMORY_MB}",
        f"-artifact_prefix={found}{os.sep}",
        "-print_final_stats=1",
    ]
    corpora = [str(each) for each in (found, seeds, CORPUS / name) if each.is_dir()]
    atheris.Setup([sys.argv[0], *options, *corpora], take)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
