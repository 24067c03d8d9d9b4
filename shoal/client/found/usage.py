"""Processor time and memory of the processes of a job on this machine, and of the machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from shoal.base.command_lines import command_line
from shoal.client.found.processes import job_processes

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

IDLE = slice(3, 5)
"""Of the machine's times in /proc/stat: idle, and idle while a disk was waited for."""

COUNTED = 8
"""Times there; those behind them are in the first ones too."""


class Usage(NamedTuple):
    """The resources that a process or a machine uses.

    course: differs for another process. cpu_seconds: since its start. memory: bytes in use.
    """

    course: int
    cpu_seconds: float
    memory: int


def usage_of(config_path: Path) -> dict[str, Usage]:
    """The usage of each process of a job, by its name: master, worker-0, ps-1."""
    found = {}
    for process in job_processes(config_path):
        with contextlib.suppress(OSError, ValueError, LookupError):  # it has ended meanwhile
            arguments = [each.decode(errors="replace") for each in command_line(process)]
            role = arguments[arguments.index("-m") + 1].removeprefix("shoal.")
            index = [] if role == "master" else [arguments[arguments.index("--index") + 1]]
            # Behind the name, in which there may be anything.
            numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            cpu, pages = int(numbers[11]) + int(numbers[12]), int(numbers[21])
            found["-".join([role, *index])] = Usage(process, cpu / TICKS, pages * PAGE)
    return found


def machine() -> tuple[Usage, int, int] | None:
    """The usage of this machine, its cores, and its bytes of memory; None if it is not known."""
    try:
        times = [int(each) for each in Path("/proc/stat").read_text().split()[1 : COUNTED + 1]]
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {each.split(":")[0]: int(each.split()[1]) << 10 for each in lines}
        total, free = sizes["MemTotal"], sizes["MemAvailable"]
    except (OSError, ValueError, LookupError):
        return None
    busy = (sum(times) - sum(times[IDLE])) / TICKS
    return Usage(0, busy, total - free), os.cpu_count() or 1, total
