"""Jobs of this machine that this process does not follow: what `shoal status` and its like do.

The counterpart of jobs.py, which asks a cluster. Knows a job by its folder and reads what is
there; local_master.py asks its master, for which it loads more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from shoal.base.job_folder import JOBS, JobFolder, shown_path
from shoal.base.job_logs import log_of, logs_of
from shoal.client.found.claim import master_process, resume_command
from shoal.client.found.following import POLL_SECONDS
from shoal.client.found.processes import process_of
from shoal.client.job_lines import JobLine
from shoal.errors import UserError
from shoal.result import JobResult


def kept(job: str) -> JobFolder | None:
    """The folder of a job here: a path, or a name in JOBS. None if there is none.

    Of a job on Kubernetes it holds what was kept of it.
    """
    folders = (JobFolder(path.absolute()) for path in (JOBS / job, Path(job)))
    return next((folder for folder in folders if folder.config.is_file()), None)


def find(job: str) -> JobFolder | None:
    """The folder that `kept` finds, if the job is one of this machine; else None."""
    folder = kept(job)
    return None if folder is None or folder.templates.is_file() else folder


def result_of(folder: JobFolder) -> JobResult | None:
    """The result of a job that has ended; None while it has not, or if it was killed."""
    try:
        return JobResult.read(folder.result)
    except (OSError, ValueError):
        return None


def running(folder: JobFolder) -> bool:
    """True if the job's master runs."""
    return master_process(folder) is not None


def state_of(folder: JobFolder) -> str:
    """In a word: running, killed, or how the job ended."""
    if running(folder):
        return "running"
    result = result_of(folder)
    return "killed" if result is None else result.state


def end_of(folder: JobFolder) -> str:
    """The way the job ended, in a word; "" while it runs."""
    state = state_of(folder)
    return "" if state == "running" else state


def way_on(folder: JobFolder) -> str:
    """The hint to go on with a job that was killed, as the end of a sentence; "" if it cannot."""
    command = resume_command(folder)
    return f"; to go on with it: {command}" if command else ""


def processes_table(folder: JobFolder) -> Table:
    """The newest start of each process of a job, and whether it runs."""
    table = Table()
    for title in ("process", "restart", "pid", "log"):
        table.add_column(title, overflow="fold")
    master = master_process(folder)
    table.add_row("master", "", str(master or "ended"), shown_path(folder.logs / "master.log"))
    for (role, index), logs in sorted(logs_of(folder).items()):
        incarnation, log = max(logs.items())
        pid = process_of(folder.config, role, index)
        table.add_row(f"{role}-{index}", str(incarnation), str(pid or "ended"), shown_path(log))
    return table


def log_lines(
    folder: JobFolder, role: str, index: int, restart: int | None = None, *, follow: bool
) -> Iterator[str]:
    """The lines that one start of a process has written. Raises UserError.

    restart: its incarnation; None: the newest. follow: go on until the job has ended.
    """
    master = role == "master"
    path = folder.logs / "master.log" if master else log_of(folder, role, index, restart)
    try:
        file = path.open(errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        rest = ""
        while True:
            # Looked at before reading: what is written up to the end is read.
            going_on = follow and running(folder)
            for text in file:
                rest += text
                if rest.endswith("\n"):
                    yield rest[:-1]
                    rest = ""
            if not going_on:
                break
            time.sleep(POLL_SECONDS)
        if rest:
            yield rest


def jobs_in(path: Path) -> list[JobFolder]:
    """The jobs of this machine whose folders are in another one, the newest first."""
    inside = [JobFolder(each) for each in path.absolute().iterdir()] if path.is_dir() else []
    folders = [each for each in inside if each.config.is_file() and not each.templates.is_file()]
    return sorted(folders, key=lambda each: each.config.stat().st_mtime, reverse=True)


def job_lines() -> list[JobLine]:
    """The jobs of this machine that have a folder in JOBS, the newest first."""
    lines = []
    for folder in jobs_in(JOBS):
        state = state_of(folder)
        alive = [
            _running(folder, each) if state == "running" else None for each in ("worker", "ps")
        ]
        started = datetime.fromtimestamp(folder.config.stat().st_mtime, UTC)
        lines.append(JobLine(folder.path.name, state, alive[0], alive[1], started))
    return lines


def _running(folder: JobFolder, role: str) -> int:
    """Processes of a role that run."""
    of_role = [index for each, index in logs_of(folder) if each == role]
    return sum(process_of(folder.config, role, index) is not None for index in of_role)
