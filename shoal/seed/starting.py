"""Starting a process of this machine: by a seed, or by execution."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from shoal.seed.kinds import kind_of, seed_name
from shoal.seed.pool import Pool, answered, fork, named_folder, status_of

logger = logging.getLogger(__name__)

TOLD_SECONDS = 5.0
"""For a seed to tell how a process has ended, once it has."""


class Process:
    """A process that was started, or taken over. Not shared by threads, but for `pid`.

    pid: names this process until `reap`, and for one that was taken over as long as it runs.
    seed: the path of the socket of the seed that forked it; empty for an executed one.
    """

    def __init__(self, pid: int, reap: Callable[[], int | None], seed: str = "") -> None:
        """Raises ProcessLookupError if there is no such process."""
        self.pid = pid
        self.seed = seed
        self._handle = os.pidfd_open(pid)
        self._reap = reap

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end at most so long; returns whether it has ended. It keeps its id."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def reap(self) -> int | None:
        """The exit code, negative for a signal, of a process that has ended; None if unknown."""
        os.close(self._handle)
        return self._reap()


def prepared(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    pool: Pool | None,
    folder: str | None = None,
) -> Callable[..., Process]:
    """A function that starts `python ARGUMENTS` at once: start(output, errors=output), two files.

    The process leads a session of its own. pool: of seeds, one of which forks it; None: it is
    executed. folder: its working directory; None: this process's. Waits until the seed has
    imported what the process needs. The function raises OSError.
    """
    kind = kind_of(arguments)
    connection = pool.ready(kind, environment) if pool is not None and kind is not None else None

    def start(output: BinaryIO, errors: BinaryIO | None = None) -> Process:
        streams = output.fileno(), (errors or output).fileno()
        if pool is not None and kind is not None and connection is not None:
            try:
                pid = fork(connection, arguments, environment, folder or os.getcwd(), streams)
            except OSError as error:
                connection.close()
                logger.warning("%s is executed, as it cannot be forked: %s", arguments[1], error)
            else:
                seed = str(pool.path / seed_name(kind, environment))
                return Process(pid, lambda: _told(connection), seed)
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            env=environment,
            start_new_session=True,
        )
        return Process(process.pid, process.wait)

    return start


def run(arguments: Sequence[str], *, captured: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end; a seed forks it where SHOAL_SEED names a folder.

    captured: its output and errors are returned. Raises UserError if that folder cannot be used.
    """
    folder = named_folder()
    if folder is None:
        line = [sys.executable, *arguments]
        return subprocess.run(line, check=False, capture_output=captured, text=True)
    with contextlib.ExitStack() as stack:
        files: list[BinaryIO]
        if captured:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        else:
            files = [stack.enter_context(os.fdopen(fd, "wb", closefd=False)) for fd in (1, 2)]
        process = prepared(arguments, os.environ, Pool(folder))(*files)
        try:
            process.wait()
        finally:
            # Ctrl-C does not reach it, in its session.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
            code = process.reap()
        texts = [""] * 2
        for place, file in enumerate(files if captured else ()):
            file.seek(0)
            texts[place] = file.read().decode(errors="replace")
    return subprocess.CompletedProcess(arguments, -1 if code is None else code, *texts)


def taken_over(pid: int, seed: str = "") -> Process:
    """A process that another one has started. Raises ProcessLookupError if it has ended.

    seed: as `Process.seed`, by which its exit code is known.
    """
    return Process(pid, lambda: status_of(seed, pid), seed)


def _told(connection: socket.socket) -> int | None:
    """The exit code that a seed tells of a process that has ended; the seed reaps it."""
    with connection:
        connection.settimeout(TOLD_SECONDS)
        try:
            answer = answered(connection)
        except TimeoutError:
            return None
    return None if answer is None else int(answer["status"])
