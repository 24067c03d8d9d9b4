"""The launcher of one machine: every worker and server is a child process.

Each child leads a process group of its own, so that Ctrl-C in the terminal reaches
only the master, and so that whatever a child has started goes with it. Children
outlive a master that is killed, and the next master adopts them: which processes they
are is in the job folder. A master that ends leaves none behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.base import temporary
from shoal.base.job_folder import JobFolder
from shoal.base.wholefile import write_json
from shoal.master.job.launcher import Exited, Launcher, LauncherEvent, Started
from shoal.master.work.ids import Start
from shoal.proto import faults, tls13
from shoal.proto.pools import NO_THREAD

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


def started_at(pid: int) -> str | None:
    """When a process was started, as the kernel counts it; None if it has ended.

    With the pid it names one process for good: a pid alone is given out again.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may hold anything.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def find_process(arguments: Sequence[str]) -> int | None:
    """The pid of a process with these arguments among its own, in this order."""
    wanted = [os.fsencode(each) for each in arguments]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                own = (entry / "cmdline").read_bytes().split(b"\0")
                if wanted in (own[i : i + len(wanted)] for i in range(len(own))):
                    return int(entry.name)
    return None


@dataclass
class _Child:
    """process: None for one that an earlier master started."""

    pid: int
    process: subprocess.Popen[bytes] | None
    log: Path


class ProcessLauncher(Launcher):
    """Runs `command(start)` with its output in the job folder's logs."""

    def __init__(
        self,
        post: Callable[[LauncherEvent], None],
        folder: JobFolder,
        command: Callable[[Start], Sequence[str]],
        before: Callable[[Start], object] = lambda _: None,
    ) -> None:
        """before: done before a process is started. Raises OSError."""
        super().__init__(post)
        self._before = before
        self._folder = folder
        self._command = command
        self._children: dict[Start, _Child] = {}
        self._changed = threading.Condition()

    def start(self, start: Start) -> None:
        """Start a process. Raises OSError if that, or a thread to watch it, is impossible."""
        self._before(start)
        log = self._log(start)
        log.parent.mkdir(parents=True, exist_ok=True)
        record = self._record(start)
        record.parent.mkdir(parents=True, exist_ok=True)
        # Before it runs: a master that finds no record knows that it never did, and may
        # start it; otherwise two processes could speak as one.
        write_json(record, {"pid": 0, "started": ""})
        faults.point("before-start")
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            # A log must be whole when its process was killed.
            "PYTHONUNBUFFERED": "1",
            faults.PROCESS_VARIABLE: str(start.process),
            **temporary.environment(self._folder),
        }
        tls13.as_before(environment)
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(start),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        faults.point("after-start")
        write_json(record, {"pid": process.pid, "started": started_at(process.pid)})
        self._keep(start, _Child(process.pid, process, log), self._watch)

    def _log(self, start: Start) -> Path:
        return self._folder.log_of(start.process.role, start.process.index, start.incarnation)

    def _record(self, start: Start) -> Path:
        return self._folder.process_of(start.process.role, start.process.index, start.incarnation)

    def _keep(self, start: Start, child: _Child, watch: Callable[[Start, _Child], None]) -> None:
        with self._changed:
            self._children[start] = child
        self._post(Started(start, child.pid))
        watcher = threading.Thread(
            target=watch, args=(start, child), name=f"watch-{start}", daemon=True
        )
        try:
            watcher.start()
        except RuntimeError as error:
            # Nobody would see its end, which all would wait for.
            with self._changed:
                del self._children[start]
                _signal_group(child, signal.SIGKILL)
                if child.process is not None:
                    child.process.wait()
            raise OSError(f"{start.process}: {NO_THREAD} ({error})") from error

    def adopt(self, start: Start) -> None:
        """Take over a process that an earlier master started, or was about to.

        Raises OSError if it was never started, and cannot be.
        """
        try:
            record = json.loads(self._record(start).read_text())
            pid, started = int(record["pid"]), record["started"]
        except FileNotFoundError:
            self.start(start)
            return
        except (ValueError, LookupError, TypeError):
            pid = 0  # whatever was in it, the process can still be found
        if not pid:
            # The master died between starting it and writing which one it is.
            line = self._command(start)
            pid = find_process(line[line.index("--config") : line.index("--master")]) or 0
            started = started_at(pid) if pid else None
        try:
            handle = os.pidfd_open(pid) if pid else -1
        except ProcessLookupError:
            handle = -1
        child = _Child(pid, None, self._log(start))
        # Looked at with the handle open: that is not given to another process.
        if handle < 0 or started is None or started_at(pid) != started:
            if handle >= 0:
                os.close(handle)
            self._gone(start, child, None)
            return
        self._keep(start, child, lambda *_: self._watch_adopted(start, child, handle))

    def _watch(self, start: Start, child: _Child) -> None:
        # Waiting without reaping keeps the pid taken, so that no signal of ours can
        # reach a stranger who was given the same number.
        assert child.process is not None
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with self._changed:
            del self._children[start]
            _signal_group(child, signal.SIGKILL)
            status = child.process.wait()
        self._gone(start, child, status)

    def _watch_adopted(self, start: Start, child: _Child, handle: int) -> None:
        select.select([handle], [], [])
        os.close(handle)
        with self._changed:
            del self._children[start]
            # What it has started holds the number of its group as long as any is left.
            _signal_group(child, signal.SIGKILL)
        self._gone(start, child, None)

    def _gone(self, start: Start, child: _Child, status: int | None) -> None:
        self._post(
            Exited(
                start,
                code=status if status is not None and status >= 0 else None,
                signal_number=-status if status is not None and status < 0 else None,
                log=str(child.log),
                last_lines="" if status == 0 else last_lines(child.log),
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
        os.killpg(child.pid, number)
