"""Measure how long a killed server is away in a job of synthetic workers, by the work it repeats.

Runs jobs of run.py with a log, kills a server of each with SIGKILL, and waits until the next
incarnation serves and workers' pushes reach it. The counts are exact all the same.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.light import LightJob, process_of, results_folder
from benchmarks.scale.run import Results, Setting, mistakes

PARTS = (0.2, 0.5, 0.8)
"""Of a job's records, when a server is killed: one of each job, as further starts wait."""

LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Recovery:
    """A recovery takes `start` seconds, and `row` for each row of a push that is done again.

    measured: (rows done again, seconds) of each recovery. error: the largest difference from what
    these two say, as a share.
    """

    start: float
    row: float
    measured: list[tuple[float, float]]

    @property
    def error(self) -> float:
        """The largest difference of a measured recovery from the line, as a share of it."""
        return max(abs(self.seconds(rows) / seen - 1) for rows, seen in self.measured)

    def seconds(self, rows: float) -> float:
        """That a server is away which does pushes with so many rows again."""
        return self.start + self.row * rows


def recoveries(setting: Setting, folder: str | None) -> Recovery:
    """Run the jobs, and measure. Raises SystemExit if one does not end as it is to."""
    measured = [_recovery(setting, part, folder) for part in PARTS]
    slope, start = np.polyfit(*zip(*measured, strict=True), 1)
    return Recovery(float(start), float(slope), measured)


def _recovery(setting: Setting, part: float, folder: str | None) -> tuple[float, float]:
    """Rows of pushes that a server did again, and seconds that it was away."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "job"
        path.mkdir()
        with LightJob(path, setting.config(path), setting.load, setting.hosts) as job:
            pushes, seconds = _killed(job, int(setting.steps * setting.batch * part))
            while not job.ended:
                time.sleep(LOOK_SECONDS)
            found = Results(results_folder(job.folder))
            # A server that was started again has versions beyond those that workers have seen.
            wrong = set(mistakes(job.config, job.result, found)) - {"versions of the servers"}
            if wrong:
                raise SystemExit(f"{', '.join(wrong)}\n{job.log_end}")
    return pushes * found.counts["rows"] / found.counts["steps"] / setting.servers, seconds


def _killed(job: LightJob, records: int) -> tuple[int, float]:
    """Kill server 0 once so many records are trained; pushes done again, and seconds away."""
    while (status := job.status()) is None or status.ledger.trained_once < records:
        _check(job)
    process = process_of(job.folder.config, "ps", 0)
    assert process is not None, "the server was there a moment ago"
    os.kill(process, signal.SIGKILL)
    killed = time.monotonic()
    before, had = status.servers[0].incarnation, status.servers[0].told.version
    while True:
        _check(job)
        status = job.status()
        if status is None or status.servers[0].incarnation == before:
            continue
        version = status.servers[0].told.version
        if version > had:
            return version, time.monotonic() - killed


def _check(job: LightJob) -> None:
    if job.ended:
        raise SystemExit(f"the job ended too soon:\n{job.log_end}")
    time.sleep(LOOK_SECONDS)
