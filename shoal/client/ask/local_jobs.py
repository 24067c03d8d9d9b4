"""Jobs of this machine that this process does not follow: what `shoal status` and its like ask.

Knows a job by its folder. gRPC is imported late: reading what is in the folder needs none.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from shoal.base.disk.job_folder import JOBS, JobFolder, shown_path
from shoal.base.disk.job_logs import log_of, logs_of
from shoal.base.thinned import ThinnedFile
from shoal.client.ask.running_job import LOG_LINES, RunningJob, Seen, log_order
from shoal.client.found.claim import master_process, resume_command
from shoal.client.found.following import POLL_SECONDS
from shoal.client.found.processes import process_of
from shoal.client.found.usage import Usage, machine, usage_of
from shoal.client.job_lines import JobLine
from shoal.client.show.report import log_of_failure
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.result import JobResult

if TYPE_CHECKING:
    from shoal.proto.channels.rpc import Connection
    from shoal.proto.errors import CallError

LOG_BYTES = 1 << 18
"""Read of the end of a log, for `LOG_LINES`."""

METRICS_BYTES = 2_000_000
"""Of metrics.csv that are read again and again."""


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


class LocalJob(RunningJob):
    """A job of this machine, by its folder."""

    def __init__(self, folder: JobFolder) -> None:
        super().__init__()
        self.name, self.folder = folder.path.name, folder
        in_jobs = folder.path.parent == JOBS.absolute()
        self.known_as = self.name if in_jobs else shown_path(folder.path)
        self.place = f"on this machine, in {shown_path(folder.path)}"
        self._metrics = ThinnedFile(folder.metrics, METRICS_BYTES)

    def state(self) -> str:
        """See RunningJob."""
        if self._runs():
            return "running"
        result = self.result()
        return "killed" if result is None else result.state

    def _runs(self) -> bool:
        return master_process(self.folder) is not None

    def result(self) -> JobResult | None:
        """See RunningJob."""
        try:
            return None if self._runs() else JobResult.read(self.folder.result)
        except (OSError, ValueError):
            return None

    def over(self) -> str:
        """See RunningJob."""
        if self._runs() or not self.folder.config.is_file():
            return ""
        return f"the job was killed{self.way_on()}"

    def way_on(self) -> str:
        """The hint to go on with a job that was killed, as the end of a sentence; "" if none."""
        command = resume_command(self.folder)
        return f"; to go on with it: {command}" if command else ""

    def seen(self) -> Seen:
        """See RunningJob."""
        from shoal.client.ask.asking import checked, status_of

        with self.master() as master:
            return Seen(checked(self, status_of(master)), self._processes())

    def _processes(self) -> Table:
        """The newest start of each process, and whether it runs."""
        table = Table()
        for title in ("process", "restart", "pid", "log"):
            table.add_column(title, overflow="fold")
        master, log = master_process(self.folder), self.folder.logs / "master.log"
        table.add_row("master", "", str(master or "ended"), shown_path(log))
        for (role, index), logs in sorted(logs_of(self.folder).items()):
            incarnation, log = max(logs.items())
            pid = str(process_of(self.folder.config, role, index) or "ended")
            table.add_row(f"{role}-{index}", str(incarnation), pid, shown_path(log))
        return table

    def course(self) -> Sequence[str]:
        """See RunningJob."""
        try:
            status = self.folder.config.stat()
        except OSError:
            return ()
        return str(status.st_ino), str(status.st_mtime_ns)

    def teller(self) -> subprocess.Popen[str] | None:
        """See RunningJob."""
        if not self.folder.journal.is_dir():
            return None
        command = [sys.executable, "-m", "shoal.master.journal.told_course", "--follow"]
        return subprocess.Popen(
            [*command, os.fspath(self.folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # it ends with this process, not by Ctrl-C before it
        )

    # ------------------------------------------------------------ its master

    def _connected(self, deadline: float, patience: float) -> AbstractContextManager[Connection]:
        from shoal.client.ask.asking import connection_to

        del patience  # it is tried once for each call
        if (state := self.state()) != "running":
            ended = f"was killed{self.way_on()}" if state == "killed" else f"has ended: {state}"
            raise UserError(f"job {self.name} does not run: it {ended}")
        if (address := self.folder.master_address()) is None:
            raise UserError("the master has not started yet")
        config = JobConfig.load(self.folder.config)
        return contextlib.closing(connection_to(config, self.folder, address, deadline))

    def _silence(self, error: CallError) -> str:
        return f"does not answer: {error}; see {self.folder.logs / 'master.log'}"

    # ------------------------------------------------------------ its processes and their files

    def process(self, role: str, index: int) -> int:
        """See RunningJob."""
        from shoal.client.ask import asking

        if role != "master" or index == 0:
            found = process_of(self.folder.config, role, index)
            if found is not None:
                return found
        asking.stacks(self, role, index)  # says what there is, if this is no process of the job
        raise UserError(f"{role}-{index} does not run now: see shoal status")

    def usage(self) -> tuple[dict[str, Usage], tuple[Usage, int, int] | None]:
        """See RunningJob."""
        return usage_of(self.folder.config), machine()

    def logs(self) -> list[str]:
        """See RunningJob."""
        with contextlib.suppress(OSError):
            names = [path.name for path in self.folder.logs.iterdir() if path.suffix == ".log"]
            return sorted(names, key=log_order)
        return []

    def log(self, name: str) -> list[str]:
        """See RunningJob."""
        if name not in self.logs():  # so no other file of this machine is read
            raise UserError(f"job {self.name} has no log {name}")
        path = self.folder.logs / name
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                file.seek(max(0, size - LOG_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        return list(deque(lines[size > LOG_BYTES :], LOG_LINES))

    def log_lines(
        self, role: str, index: int, restart: int | None = None, *, follow: bool
    ) -> Iterator[str]:
        """See RunningJob."""
        folder = self.folder
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
                going_on = follow and self._runs()
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

    def log_of(self, failure: str) -> str:
        """See RunningJob."""
        path = log_of_failure(self.folder, failure) if failure else None
        return path.name if path is not None and path.is_file() else ""

    def losses(self) -> list[str]:
        """See RunningJob."""
        return self._metrics.text().splitlines()

    def saved(self) -> Sequence[str]:
        """See RunningJob."""
        if self._runs():
            return ()
        config = JobConfig.load(self.folder.config)
        # The folder may have been moved since the job ran.
        beside = self.folder.path / "checkpoints"
        places = [str(beside) if beside.is_dir() else config.checkpoint_dir]
        return [*places, config.output] if config.command == "train" and config.output else places

    def delete(self) -> None:
        """See RunningJob."""
        path = shown_path(self.folder.path)
        raise UserError(
            f"job {self.name} is on this machine, where only its folder remains: if the job runs, "
            f"end it with shoal stop {self.known_as}; then remove {path}"
        )


def jobs_in(path: Path) -> list[JobFolder]:
    """The jobs of this machine whose folders are in another one, the newest first."""
    inside = [JobFolder(each) for each in path.absolute().iterdir()] if path.is_dir() else []
    folders = [each for each in inside if each.config.is_file() and not each.templates.is_file()]
    return sorted(folders, key=lambda each: each.config.stat().st_mtime, reverse=True)


def job_lines() -> list[JobLine]:
    """The jobs of this machine that have a folder in JOBS, the newest first."""
    lines = []
    for folder in jobs_in(JOBS):
        state = LocalJob(folder).state()
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
