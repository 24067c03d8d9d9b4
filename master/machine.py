"""The load of the cores on which a job of this machine runs, by Linux's own count."""

from __future__ import annotations

import os
import re
from pathlib import Path

from shoal.master.work.record import ProcessorTime

IDLE = slice(3, 5)
"""Of the times of a core: idle, and idle while a disk was waited for."""

COUNTED = 8
"""Times of a core; those behind them are in the first ones too."""


def processor_time() -> ProcessorTime | None:
    """The time of this process's cores since the machine started; None if Linux tells none."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    cores = os.sched_getaffinity(0)
    busy = total = 0
    for line in lines:
        name, *times = line.split()
        if (found := re.fullmatch(r"cpu(\d+)", name)) and int(found[1]) in cores:
            ticks = [int(each) for each in times[:COUNTED]]
            total += sum(ticks)
            busy += sum(ticks) - sum(ticks[IDLE])
    return ProcessorTime(len(cores), busy, total)
