"""A series of jobs, each of which continues from the one before: --latest.

Owns the link to the newest of them, and that only one runs at a time. The link moves only from a
job to one that continued from it. Where a client was killed, the next one moves it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shlex
from pathlib import Path
from types import TracebackType

from shoal.base.disk.job_folder import CHECKPOINTS, JobFolder, shown_path
from shoal.client.ask.local_jobs import LocalJob
from shoal.client.found.claim import is_locked
from shoal.client.run.checks import check_model
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.result import COMPLETE, JobResult

LOCK = ".lock"
"""Behind the link's name: the file that is locked while a job of the series runs. In it stands the
folder of a job whose client has not seen its end."""


class Series:
    """The series of a job; a context manager that holds the series, so that no other job enters.

    config: resolved; without --latest the series has this job alone. Raises UserError on entering
    if another job of the series runs, or there is something else than a link.
    """

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._link = Path(config.latest)
        self._folder = JobFolder(Path(config.job_dir))
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
            self._settle()
        except BlockingIOError as error:
            self._leave()
            raise UserError(
                f"--latest: another job that continues from {shown_path(self._link)} is running: "
                "wait for its end"
            ) from error
        except OSError as error:
            self._leave()
            raise UserError(f"--latest: {shown_path(path)}: {error.strerror}") from error
        except BaseException:
            self._leave()
            raise
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

    def _settle(self) -> None:
        """Do for a job whose client was killed what that would have done at its end."""
        assert self._descriptor is not None
        left = os.fsdecode(os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0))
        if not left:
            return
        folder = JobFolder(Path(left))
        if is_locked(folder.lock):
            raise UserError(
                f"--latest: job {folder.path.name} of the series runs, though its command has "
                f"ended: wait for its end, or end it: shoal stop {shlex.quote(shown_path(left))}"
            )
        result = LocalJob(folder).result()
        if result is not None and _may_lead(result) and self._is_next(folder):
            self._lead_to(folder)
        self._note("")

    def _note(self, unseen: str) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, os.fsencode(unseen), 0)

    def begins(self) -> None:
        """The job has its folder, and is about to run. Raises UserError."""
        if self._config.latest:
            try:
                self._note(str(self._folder.path))
            except OSError as error:
                raise UserError(f"--latest: {self._link}{LOCK}: {error.strerror}") from error

    def _is_next(self, folder: JobFolder) -> bool:
        """True if the job in the folder is the link's job, continued from it, or is the first."""
        if not os.path.lexists(self._link):
            return True
        target = os.path.realpath(self._link)
        if target == os.path.realpath(folder.path):
            return True
        before = JobConfig.load(folder.config).continue_from
        try:
            checkpoints = JobConfig.load(JobFolder(Path(target)).config).checkpoint_dir
        except UserError:  # deleted meanwhile
            checkpoints = os.path.join(target, CHECKPOINTS)
        return _real(before.rpartition("/")[0]) == _real(checkpoints)

    def done(self) -> JobResult | None:
        """The job's result, if it is the newest of the series already; None if it is to run.

        So a command that is repeated after it had succeeded does nothing. Raises UserError if the
        job in its folder did not train what the command is to train.
        """
        result = LocalJob(self._folder).result() if self._leads_here() else None
        if result is not None:
            self._refuse_other_data()
        return result

    def _leads_here(self) -> bool:
        """True if the link leads to the job in this job's folder."""
        there = self._config.latest and self._link.exists() and self._folder.path.exists()
        return bool(there) and self._link.samefile(self._folder.path)

    def _refuse_other_data(self) -> None:
        """Raise UserError if the command names data that the job in its folder did not have."""
        before = JobConfig.load(self._folder.config).training_data
        if before != self._config.training_data:
            what = f"job {self._config.job_name} has trained on {before}"
        elif new := new_files(self._config, self._folder):
            what = f"{new[0]} is not among the data of job {self._config.job_name}"
        else:
            return
        raise UserError(
            f"--latest: {what}, and its folder {shown_path(self._folder.path)} is that of this "
            "command: give each job of the series a folder of its own, for example --job-dir "
            "runs/$(date +%F)"
        )

    def continued(self) -> JobConfig:
        """The configuration, which continues from the newest job of the series, if there is one.

        A job that is begun anew, and was that one, continues from where it did before. Raises
        UserError if the link leads nowhere.
        """
        if not self._config.latest or not os.path.lexists(self._link):
            return self._config
        if not self._link.exists():
            raise UserError(
                f"--latest: {shown_path(self._link)} leads to {os.readlink(self._link)}, which is "
                "not there: put that folder back, have the link name another job, or remove the "
                "link to begin a new series"
            )
        before = str(self._link)
        if self._leads_here():
            before = JobConfig.load(self._folder.config).continue_from
        return dataclasses.replace(self._config, continue_from=before)

    def ended(self, result: JobResult) -> str:
        """The job has ended: if it has succeeded, it is the newest of the series from now on.

        Unless --publish-if holds it back. Returns why it is not, in words; "" if it is, or has not
        succeeded. Raises UserError if the link cannot be written.
        """
        if not self._config.latest:
            return ""
        self._note("")
        if result.state in COMPLETE and result.held_back:
            return self._held_back(result)
        if not _may_lead(result):
            return ""
        if not self._is_next(self._folder):
            newest = os.readlink(self._link)
            return (
                f"warning: --latest: {shown_path(self._link)} still leads to {newest}, which did "
                f"not continue from this job: no later job has what this one has trained. To "
                f"train its data on top of {newest}, give its command again with --overwrite"
            )
        self._lead_to(self._folder)
        return ""

    def _held_back(self, result: JobResult) -> str:
        """The reason why the link stays, in words."""
        link = shown_path(self._link)
        to = (
            f"still leads to {os.readlink(self._link)}"
            if self._link.is_symlink()
            else "is not made"
        )
        return (
            f"warning: --latest: {link} {to}: {'; '.join(result.held_back)}. The next job of the "
            "series begins where this one began"
        )

    def _lead_to(self, folder: JobFolder) -> None:
        """Point the link to a job that has come to its end. Raises UserError."""
        target = os.path.relpath(folder.path, os.path.realpath(self._link.parent))
        temporary = Path(f"{self._link}.new")
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target)
            temporary.replace(self._link)  # at once: there is a link at any time
        except OSError as error:
            raise UserError(
                f"--latest: job {folder.path.name} has come to its end, and "
                f"{shown_path(self._link)} cannot be written: {error.strerror}. Have it lead to "
                f"{shown_path(folder.path)}"
            ) from error


def _may_lead(result: JobResult) -> bool:
    """True if the link may lead to a job: it came to its end, and --publish-if holds."""
    return result.state in COMPLETE and not result.held_back


def _real(folder: str) -> str:
    """A folder's path without links; URLs as they are."""
    return folder.rstrip("/") if "://" in folder else os.path.realpath(folder)


def new_files(config: JobConfig, folder: JobFolder) -> list[str]:
    """With --only-new, the files that a job has yet to train, which has succeeded in a folder.

    None where only a worker can tell, by the user's own reader, or nobody can, without a list.
    Raises UserError if the model file is not there.
    """
    names = check_model(config) if config.only_new else None
    if names is None or "custom_data_reader" in names:
        return []
    # Late: only a command that is repeated needs them.
    from shoal.checkpoints.continued import read_trained
    from shoal.checkpoints.trained import only_new
    from shoal.data.opening import open_reader

    with contextlib.suppress(UserError):
        trained = read_trained(JobConfig.load(folder.config).checkpoint_dir)
        reader = open_reader(
            config.training_data, "--training-data", data_format=config.format_of_data
        )
        reader.behind(trained)
        return sorted(only_new(reader.weights(), {}, trained))
    return []
