"""Finding and ending the processes of one job on this machine.

The last resort: a job's master ends its own processes. Here they are recognised by
what their command line names, one of shoal's modules and the job's configuration file,
so that nothing else is ever touched: an editor may have been given the same file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from pathlib import Path

from shoal.base.command_lines import command_line, command_lines

END_SECONDS = 10.0
"""A killed process is gone within milliseconds, unless the kernel holds it (a hung disk)."""


def job_processes(config_path: Path) -> list[int]:
    """Process ids of `python -m shoal.ROLE` with `--config` followed by `config_path`.

    Zombies do not count: they have ended and hold nothing.
    """
    wanted = [b"--config", os.fsencode(config_path)]
    found = []
    for process, arguments in command_lines():
        pairs = [arguments[i : i + 2] for i in range(len(arguments) - 1)]
        if (
            process != os.getpid()
            and wanted in pairs
            and any(
                flag == b"-m" and module.startswith(b"shoal.")
                for flag, module in pairs[: pairs.index(wanted)]
            )
        ):
            found.append(process)
    return found


def kill_job(config_path: Path) -> int:
    """SIGKILL all of a job's processes and wait until they are gone.

    Looks again until none is found: one of them may have been starting another.
    Returns how many there were.
    """
    killed: set[int] = set()
    give_up = time.monotonic() + END_SECONDS
    while found := job_processes(config_path):
        # Each has its signal before one is waited for, however long that takes on a busy machine.
        for process in found:
            killed.add(process)
            signal_process(config_path, process, signal.SIGKILL)
        for process in found:
            _kill_and_wait(process, config_path, give_up - time.monotonic())
        if time.monotonic() >= give_up:
            break
    return len(killed)


def _kill_and_wait(process: int, config_path: Path, patience: float) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process)
        try:
            # The id may have been given to another process since it was found; the
            # handle, once made, cannot.
            if process in job_processes(config_path):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [], max(patience, 0.0))
        finally:
            os.close(handle)


def process_of(config_path: Path, role: str, index: int = 0) -> int | None:
    """The process id of a job's master, or of its worker or ps with this index.

    None if there is none now. What it has started in its turn is not meant.
    """
    for process in job_processes(config_path):
        try:
            arguments = command_line(process)
            leads = os.getsid(process) == process
        except OSError:
            continue
        if not leads or f"shoal.{role}".encode() not in arguments:
            continue
        if role == "master" or arguments[arguments.index(b"--index") + 1] == b"%d" % index:
            return process
    return None


def kill_process(config_path: Path, role: str, index: int = 0) -> int | None:
    """SIGKILL a process as `process_of` finds it, and wait until it is gone.

    Returns its id; None if there is none.
    """
    process = process_of(config_path, role, index)
    if process is not None:
        _kill_and_wait(process, config_path, END_SECONDS)
    return process


def signal_process(config_path: Path, process: int, number: signal.Signals) -> bool:
    """Send a signal to a process of the job; returns whether it was there to get it."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    try:
        if process not in job_processes(config_path):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def limit_files(process: int, size: int | None) -> bool:
    """Let no file that a process writes grow beyond `size` bytes; None: as it was started.

    Writing then fails as on a full disk, with another number (EFBIG). Returns whether the
    process was there.
    """
    try:
        _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
    except ProcessLookupError:
        return False
    return True
