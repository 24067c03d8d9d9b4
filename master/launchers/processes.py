"""The launcher of one machine: every worker and server is a process, forked by a seed or executed.

Each leads a process group of its own, so that Ctrl-C in the terminal reaches only the master, and
so that whatever it has started goes with it. They outlive a master that is killed, and the next
master adopts them: which processes they are is in the job folder. A master that ends leaves none
behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.base.command_lines import command_lines
from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json
from shoal.master.job.members.launcher import Exited, Launcher, LauncherEvent, Started
from shoal.master.work.ids import Start
from shoal.proto import faults
from shoal.proto.channels.pools import NO_THREAD
from shoal.proto.wire import tls13
from shoal.seed.kinds import DEFAULTS
from shoal.seed.pool import Pool, status_of
from shoal.seed.starting import Process, prepared, taken_over

LAST_LINES = 20
LAST_LINES_BYTES = 16384


def shoal_command(folder: JobFolder, master_address: str) -> Callable[[Start], Sequence[str]]:
    """Python's arguments for a job's processes."""

    def command(start: Start) -> Sequence[str]:
        return (
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
    """The start time of a process, as the kernel counts it; None if the process has ended.

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
    for process, own in command_lines():
        if wanted in (own[i : i + len(wanted)] for i in range(len(own))):
            return process
    return None


@dataclass
class _Child:
    """process: None until it is started. signals: sent to it meanwhile, and due when it is."""

    log: Path
    process: Process | None = None
    signals: list[signal.Signals] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process's group, the number of which is its own."""
        if self.process is None:
            self.signals.append(number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class ProcessLauncher(Launcher):
    """Runs `python COMMAND(start)` with its output in the job folder's logs."""

    def __init__(
        self,
        post: Callable[[LauncherEvent], None],
        folder: JobFolder,
        command: Callable[[Start], Sequence[str]],
        before: Callable[[Start], object] = lambda _: None,
        pool: Pool | None = None,
    ) -> None:
        """before: done before a process is started; raises OSError. pool: its seeds fork it."""
        super().__init__(post)
        self._before = before
        self._folder = folder
        self._command = command
        self._pool = pool
        self._children: dict[Start, _Child] = {}
        self._changed = threading.Condition()
        # So that a master which dies leaves one record at most that names no process.
        self._starting = threading.Lock()

    def start(self, start: Start) -> None:
        """Start a process, on a thread that then watches it. Raises OSError if that is impossible.

        A seed may have to import first what the process needs: nobody waits for that here.
        """
        self._before(start)
        for path in (self._log(start), self._record(start)):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._keep(start, _Child(self._log(start)), self._run)

    def _run(self, start: Start, child: _Child) -> None:
        try:
            process = self._started(start, child.log)
        except OSError as error:
            with self._changed:
                del self._children[start]
            self._exited(start, child, None, f"it could not be started: {error}")
            return
        with self._changed:
            child.process = process
            for number in child.signals:
                child.signal(number)
        self._post(Started(start, process.pid))
        self._watch(start, child)

    def _started(self, start: Start, log: Path) -> Process:
        environment = {
            **DEFAULTS,
            **os.environ,
            # A log must be whole when its process was killed.
            "PYTHONUNBUFFERED": "1",
            faults.PROCESS_VARIABLE: str(start.process),
            **temporary.environment(self._folder),
        }
        tls13.as_before(environment)
        begin = prepared(self._command(start), environment, self._pool)
        with self._starting, log.open("wb") as output:
            # Before it runs: a master that finds no record knows that it never did, and may
            # start it; otherwise two processes could speak as one.
            write_json(self._record(start), {"pid": 0, "started": ""})
            faults.point("before-start")
            process = begin(output)
            faults.point("after-start")
            told = {"pid": process.pid, "started": started_at(process.pid), "seed": process.seed}
            write_json(self._record(start), told)
        return process

    def _log(self, start: Start) -> Path:
        return self._folder.log_of(start.process.role, start.process.index, start.incarnation)

    def _record(self, start: Start) -> Path:
        return self._folder.process_of(start.process.role, start.process.index, start.incarnation)

    def _keep(self, start: Start, child: _Child, watch: Callable[[Start, _Child], None]) -> None:
        with self._changed:
            self._children[start] = child
        watcher = threading.Thread(
            target=watch, args=(start, child), name=f"watch-{start}", daemon=True
        )
        try:
            watcher.start()
        except RuntimeError as error:
            # Nobody would see its end, which all would wait for.
            with self._changed:
                del self._children[start]
                if child.process is not None:
                    child.signal(signal.SIGKILL)
                    child.process.wait()
                    child.process.reap()
            raise OSError(f"{start.process}: {NO_THREAD} ({error})") from error

    def adopt(self, start: Start) -> None:
        """Take over a process that an earlier master started, or was about to.

        Raises OSError if it was never started, and cannot be.
        """
        seed = ""
        try:
            record = json.loads(self._record(start).read_text())
            pid, started, seed = int(record["pid"]), record["started"], record.get("seed", "")
        except FileNotFoundError:
            self.start(start)
            return
        except (ValueError, LookupError, TypeError):
            pid = 0  # whatever was in it, the process can still be found
        if not pid:
            # The master died between starting it and writing which one it is.
            line = self._command(start)
            pid = find_process(line[: line.index("--master")]) or 0
            started = started_at(pid) if pid else None
        child = _Child(self._log(start))
        try:
            process = taken_over(pid, seed) if pid else None
        except ProcessLookupError:
            process = None
        # Looked at with the handle open: that is not given to another process.
        if process is None or started is None or started_at(pid) != started:
            status = process.reap() if process is not None else status_of(seed, pid)
            self._exited(start, child, status)
            return
        child.process = process
        self._post(Started(start, pid))
        self._keep(start, child, self._watch)

    def _watch(self, start: Start, child: _Child) -> None:
        process = child.process
        assert process is not None
        # Waiting without reaping keeps the pid taken, so that no signal of ours can
        # reach a stranger who was given the same number.
        process.wait()
        with self._changed:
            del self._children[start]
            # What it has started holds the number of its group as long as any is left.
            child.signal(signal.SIGKILL)
            status = process.reap()
        self._exited(start, child, status)

    def _exited(self, start: Start, child: _Child, status: int | None, why: str = "") -> None:
        self._post(
            Exited(
                start,
                code=status if status is not None and status >= 0 else None,
                signal_number=-status if status is not None and status < 0 else None,
                log=str(child.log),
                last_lines="" if status == 0 else last_lines(child.log),
                why=why,
            )
        )
        with self._changed:
            self._changed.notify_all()

    def _signal(self, start: Start, number: signal.Signals) -> None:
        with self._changed:
            if (child := self._children.get(start)) is not None:
                child.signal(number)

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
