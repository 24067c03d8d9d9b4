"""The launcher of one machine: every worker and server is a child process.

Each child leads a process group of its own, so that Ctrl-C in the terminal reaches
only the master, and so that whatever a child has started goes with it. Children
outlive a master that is killed; one that ends leaves none behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.config import JobFolder
from shoal.master.ids import Start
from shoal.master.launcher import Exited, Launcher, LauncherEvent, Started

LAST_LINES = 20
LAST_LINES_BYTES = 16384


def shoal_command(folder: JobFolder, master_address: str) -> Callable[[Start], Sequence[str]]:
    """The command lines of a job's processes."""

    def command(start: Start) -> Sequence[str]:
        return (
            sys.executable,
            "-m",
            f"shoal.{start.process.role}",
            "--config",
            str(folder.config),
            "--index",
            str(start.process.index),
            "--incarnation",
            str(start.incarnation),
            "--master",
            master_address,
        )

    return command


def last_lines(path: Path) -> str:
    """The end of a log; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LAST_LINES_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LAST_LINES:])


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    log: Path


class ProcessLauncher(Launcher):
    """Runs `command(start)` with its output in the job folder's logs."""

    def __init__(
        self,
        post: Callable[[LauncherEvent], None],
        folder: JobFolder,
        command: Callable[[Start], Sequence[str]],
    ) -> None:
        super().__init__(post)
        self._folder = folder
        self._command = command
        self._children: dict[Start, _Child] = {}
        self._changed = threading.Condition()

    def start(self, start: Start) -> None:
        """Start a process. Raises OSError if that is impossible."""
        log = self._folder.log_of(start.process.role, start.process.index, start.incarnation)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            # A log must be whole when its process was killed.
            "PYTHONUNBUFFERED": "1",
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(start),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        child = _Child(process, log)
        with self._changed:
            self._children[start] = child
        self._post(Started(start, process.pid))
        threading.Thread(
            target=self._watch, args=(start, child), name=f"watch-{start}", daemon=True
        ).start()

    def _watch(self, start: Start, child: _Child) -> None:
        # Waiting without reaping keeps the pid taken, so that no signal of ours can
        # reach a stranger who was given the same number.
        os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
        with self._changed:
            del self._children[start]
            _signal_group(child, signal.SIGKILL)
            status = child.process.wait()
        clean = status == 0
        self._post(
            Exited(
                start,
                code=status if status >= 0 else None,
                signal_number=-status if status < 0 else None,
                log=str(child.log),
                last_lines="" if clean else last_lines(child.log),
            )
        )
        with self._changed:
            self._changed.notify_all()

    def _signal(self, start: Start, number: signal.Signals) -> None:
        with self._changed:
            if (child := self._children.get(start)) is not None:
                _signal_group(child, number)

    def terminate(self, start: Start) -> None:
        """Send SIGTERM to a process and to what it has started."""
        self._signal(start, signal.SIGTERM)

    def kill(self, start: Start) -> None:
        """Send SIGKILL to a process and to what it has started."""
        self._signal(start, signal.SIGKILL)

    def running(self) -> frozenset[Start]:
        """The processes that have not ended."""
        with self._changed:
            return frozenset(self._children)

    def wait_gone(self, starts: Collection[Start], timeout: float) -> bool:
        """Wait at most `timeout` seconds; returns whether all of `starts` are gone."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(start in self._children for start in starts), timeout
            )


def _signal_group(child: _Child, number: signal.Signals) -> None:
    # The child called setsid, so its pid is its group's; the group is gone only
    # when its leader was reaped, which happens under the same lock.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, number)
