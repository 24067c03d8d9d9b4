"""Taking a job folder for a new job: one client at a time, nothing foreign removed."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder, meant_folder, shown_path
from shoal.base.disk.wholefile import write_text
from shoal.checkpoints.outputs import check_output, check_removable
from shoal.client.found.processes import job_processes
from shoal.config.groups.kubernetes import PATHS
from shoal.config.job import JobConfig
from shoal.errors import UserError


@contextmanager
def claimed(config: JobConfig) -> Iterator[JobFolder]:
    """Hold the job's folder, emptied, with job.json and an empty logs folder in it.

    The folder itself is locked as long as the body runs, so that of two commands with
    one job name one is refused, also before the master has its own lock.

    Raises UserError if the job is running, has ended and must not be replaced, or if
    the folder or the output is not shoal's to replace.
    """
    folder = JobFolder(Path(config.job_dir))
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--job-dir: {folder.path} cannot be made: {error.strerror}") from error
    with _held(folder, config):
        _refuse_foreign(folder, config)
        check_output(config)
        _empty(folder, config)
        yield folder


@contextmanager
def reclaimed(
    folder: JobFolder, changes: dict[str, Any], checked: Callable[[JobConfig], JobConfig]
) -> Iterator[tuple[JobFolder, JobConfig]]:
    """Hold the folder of a job that is to go on, with its configuration changed.

    checked: gives the configuration with which it goes on; raises UserError if it cannot, and then
    nothing is changed.
    The result, if any, is left to the master, which may refuse to go on.

    Raises UserError if there is none, it is running, or has nothing left to do. Of a job that has
    succeeded, its result or list of what it has trained may be left, if they cannot be read. One
    that was killed before it had a journal begins.
    """
    if not folder.journal.is_dir() and (not folder.config.is_file() or folder.result.exists()):
        meant = meant_folder(shown_path(folder.path))
        raise UserError(f"--resume: there is no job with a journal in {folder.path}{meant}")
    config = dataclasses.replace(JobConfig.load(folder.config), **changes)
    if config.command != "train":
        raise UserError(f"--resume: {folder.path} is a job of shoal {config.command}; run it again")
    if not folder.journal.is_dir() and _checkpoints(config):
        raise UserError(f"--resume: {folder.journal}, the job's journal, is missing")
    if _state(folder) == "succeeded" and _has_list(config):
        raise UserError(f"--resume: job {config.job_name} has succeeded: nothing is left to do")
    with _held(folder, config):
        config = checked(config)
        write_text(folder.config, config.to_json())
        yield folder, config


def _has_list(config: JobConfig) -> bool:
    """True if a job that has succeeded has the whole list of its trained data.

    True, too, if its storage cannot be read, or it has neither a list nor checkpoints.
    """
    # Late: it is looked at where nothing else is to be done.
    from shoal.checkpoints.formats.manifests import CheckpointError
    from shoal.checkpoints.trained import trained_list
    from shoal.files.storage import open_storage

    try:
        found = trained_list(open_storage(config.checkpoint_dir))
    except CheckpointError:
        return False
    except OSError:
        return True
    return found.sources is not None if found is not None else not _checkpoints(config)


def _checkpoints(config: JobConfig) -> list[int]:
    """The numbers of the job's checkpoints, whole or not; none where they cannot be read."""
    from shoal.checkpoints.folders import numbers
    from shoal.files.storage import open_storage

    try:
        return numbers(open_storage(config.checkpoint_dir))
    except OSError:
        return []


@contextmanager
def reopened(folder: JobFolder, config: JobConfig) -> Iterator[JobFolder]:
    """Hold the folder that a client has of a job elsewhere, which is to go on.

    Raises UserError if somebody follows it already, or the folder cannot be made.
    """
    try:
        folder.logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder.path} cannot be made: {error.strerror}") from error
    with _held(folder, config):
        folder.result.unlink(missing_ok=True)
        folder.audit.unlink(missing_ok=True)
        yield folder


@contextmanager
def _held(folder: JobFolder, config: JobConfig) -> Iterator[None]:
    """Hold the lock of a job's folder, which exists, while the body runs.

    Raises UserError if the job is running, or its folder cannot be opened.
    """
    try:
        descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(
            f"the job folder {folder.path} cannot be opened: {error.strerror}"
        ) from error
    try:
        _refuse_running(descriptor, folder, config)
        yield
    finally:
        os.close(descriptor)


def _empty(folder: JobFolder, config: JobConfig) -> None:
    """Make room for the job; what is removed here was checked before."""
    try:
        temporary.remove(folder)
        folder.empty()
        write_text(folder.config, config.to_json())
        folder.logs.mkdir()
    except OSError as error:
        raise UserError(f"--job-dir: {folder.path} cannot be written: {error}") from error


def take_in(written: Path, folder: JobFolder, config: JobConfig) -> JobConfig:
    """Move what a program gave by value into a claimed folder; returns where it is then.

    written: a folder beside that of the job. Raises UserError.
    """
    given = {name: Path(value) for name in PATHS if (value := getattr(config, name))}
    changes: dict[str, Any] = {
        name: str(folder.given / path.relative_to(written))
        for name, path in given.items()
        if path.is_relative_to(written)
    }
    config = dataclasses.replace(config, **changes)
    keep_given(written, folder)
    try:
        write_text(folder.config, config.to_json())
    except OSError as error:
        raise UserError(f"--job-dir: {folder.path} cannot be written: {error}") from error
    return config


def keep_given(written: Path, folder: JobFolder) -> None:
    """Move the folder that a program wrote into a claimed one. Raises UserError."""
    try:
        written.rename(folder.given)
    except OSError as error:
        raise UserError(f"--job-dir: {folder.path} cannot be written: {error}") from error


_naming = threading.Lock()
_named: set[Path] = set()
"""Folders of jobs that threads of this process are about to run."""


@contextmanager
def numbered(name: str) -> Iterator[str]:
    """The name, or with the first number behind it of which no job has run yet.

    No other thread is given it while the body runs.
    """
    with _naming:
        for number in itertools.count(1):
            candidate = name if number == 1 else f"{name}-{number}"
            folder = JobFolder(Path("shoal-jobs", candidate).absolute())
            ran = folder.path.exists() and not (
                _left_nothing(folder) and not is_locked(folder.lock)
            )
            if not ran and folder.path not in _named:
                break
        _named.add(folder.path)
    try:
        yield candidate
    finally:
        with _naming:
            _named.discard(folder.path)


def is_locked(path: Path) -> bool:
    """True if another process holds a flock on the file."""
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _refuse_running(descriptor: int, folder: JobFolder, config: JobConfig) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        running = is_locked(folder.lock)
    except BlockingIOError:
        running = True
    if running:
        process = master_process(folder)
        stop = f", or stop it with: kill {process}" if process else ""
        raise UserError(
            f"job {config.job_name} is already running in {folder.path}; choose another "
            f"--job-name{stop}"
        )


def master_process(folder: JobFolder) -> int | None:
    """The process id of the job's running master, None while there is none."""
    try:
        process = int(json.loads(folder.master.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None
    # A master that was killed leaves its file behind, and its number to others.
    return process if process in job_processes(folder.config) else None


def _refuse_foreign(folder: JobFolder, config: JobConfig) -> None:
    if not any(folder.path.iterdir()):
        return
    if not folder.config.is_file():
        raise UserError(
            f"--job-dir: {folder.path} is not empty and not the folder of a job; choose another"
        )
    if not config.overwrite and not _left_nothing(folder):
        before = f"job {config.job_name} has run before ({folder.path})"
        if command := resume_command(folder):
            raise UserError(
                f"{before} and has not come to its end. To go on with it: {command}. To begin "
                "anew, choose another --job-name; --overwrite deletes what it has done"
            )
        raise UserError(
            f"--job-name: {before}; choose another name, or replace it with --overwrite"
        )
    check_removable(folder.path, config, "--job-dir")


def resume_command(folder: JobFolder) -> str | None:
    """The command that goes on with the job in `folder`; None if there is nothing to go on with.

    There is not where the job has succeeded, has done nothing, or does not train; nor where
    its journal went with the pod of its master.
    """
    try:
        config = JobConfig.load(folder.config)
    except UserError:
        return None
    journal_kept = folder.journal.exists()
    if folder.templates.is_file():
        journal_kept = config.shared(config.job_dir)
    if config.command != "train" or not journal_kept:
        return None
    if _left_nothing(folder) or _state(folder) == "succeeded":
        return None
    return f"shoal train --resume {shlex.quote(shown_path(folder.path))}"


def _state(folder: JobFolder) -> str:
    """The state in which the job ended; empty if there is no result."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return str(json.loads(folder.result.read_text())["state"])
    return ""


def _left_nothing(folder: JobFolder) -> bool:
    """True if a job failed before it did anything: users mend its input, and run it again."""
    try:
        result = json.loads(folder.result.read_text())
        done = [result["ledger"][name] for name in ("trained_once", "repeated", "failed")]
        done += [result["records"], result["checkpoints"]["taken"]]
        return bool(result["state"] == "failed" and not any(done))
    except (OSError, ValueError, LookupError, TypeError):
        return False
