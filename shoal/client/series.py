"""A series of jobs, each of which continues from the one before: --latest.

Owns the link to the newest of them, and that only one runs at a time.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from pathlib import Path
from types import TracebackType

from shoal.base.job_folder import JobFolder, shown_path
from shoal.client.local_jobs import result_of
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.result import COMPLETE, JobResult

LOCK = ".lock"
"""Behind the link's name: the file that is locked while a job of the series runs."""


class Series:
    """The series of a job; a context manager that holds the series, so that no other job enters.

    config: resolved; without --latest the series has this job alone. Raises UserError on entering
    if another job of the series runs, or there is something else than a link.
    """

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._link = Path(config.latest)
        self._descriptor: int | None = None

    def __enter__(self) -> Series:
        if not self._config.latest:
            return self
        if os.path.lexists(self._link) and not self._link.is_symlink():
            raise UserError(
                f"--latest: {shown_path(self._link)} is no link: name one that does not exist yet, "
                "and shoal makes it"
            )
        path = f"{self._link}{LOCK}"
        try:
            self._link.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._leave()
            raise UserError(
                f"--latest: another job that continues from {shown_path(self._link)} is running: "
                "wait for its end"
            ) from error
        except OSError as error:
            self._leave()
            raise UserError(f"--latest: {shown_path(path)}: {error.strerror}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def done(self) -> JobResult | None:
        """The job's result, if it is the newest of the series already; None if it is to run.

        So a command that is repeated after it had succeeded does nothing.
        """
        if not self._config.latest or not self._link.exists():
            return None
        folder = JobFolder(Path(self._config.job_dir))
        if not folder.path.exists() or not self._link.samefile(folder.path):
            return None
        return result_of(folder)

    def continued(self) -> JobConfig:
        """The configuration, which continues from the newest job of the series, if there is one.

        Raises UserError if the link leads nowhere.
        """
        if not self._config.latest or not os.path.lexists(self._link):
            return self._config
        if not self._link.exists():
            raise UserError(
                f"--latest: {shown_path(self._link)} leads to {os.readlink(self._link)}, which is "
                "not there: put that folder back, have the link name another job, or remove the "
                "link to begin a new series"
            )
        return dataclasses.replace(self._config, continue_from=str(self._link))

    def ended(self, result: JobResult) -> None:
        """The job has ended: if it has succeeded, it is the newest of the series from now on.

        Raises UserError if the link cannot be written.
        """
        if not self._config.latest or result.state not in COMPLETE:
            return
        target = os.path.relpath(self._config.job_dir, os.path.realpath(self._link.parent))
        temporary = Path(f"{self._link}.new")
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target)
            temporary.replace(self._link)  # at once: there is a link at any time
        except OSError as error:
            raise UserError(
                f"--latest: the job has {result.state}, and {shown_path(self._link)} cannot be "
                f"written: {error.strerror}. Have it lead to {shown_path(self._config.job_dir)}"
            ) from error
