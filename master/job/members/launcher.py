"""The interface of a launcher: orders to start and end processes, and the events that come back.

The interface only: processes.py implements it with processes of this machine,
pod_launcher.py with pods. When to start or kill is decided by worker_lifecycle.py,
server_lifecycle.py and supervisor.py.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass

from shoal.master.job.events import Event
from shoal.master.work.ids import Start

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@dataclass(frozen=True)
class Started:
    """A process runs. pid: None for one of another machine."""

    start: Start
    pid: int | None


class Waiting(Event[None]):
    """A process cannot run yet, and why, in words. error: for something else than room."""

    start: Start
    why: str
    error: bool = False


class Exited(Event[None]):
    """A process is gone.

    code: its exit code, None if a signal ended it.
    signal_number: the signal that ended it, None if it exited by itself. With neither
        it is not known how it ended: an earlier master had started it.
    log: where its output is.
    last_lines: end of that log, empty after a clean exit.
    why: the end in words, where more is known than code and signal.
    counted: whether it counts against the limit of restarts; not where the cluster took
        the process's place away.
    refused: its place did not take the process, though there seemed to be room: at once it
        may be refused again.
    """

    start: Start
    code: int | None
    signal_number: int | None
    log: str
    last_lines: str = ""
    why: str = ""
    counted: bool = True
    refused: bool = False

    @property
    def cause(self) -> str:
        """The end in words."""
        if self.why:
            return self.why
        if self.signal_number is not None:
            try:
                name = f", {signal.Signals(self.signal_number).name}"
            except ValueError:
                name = ""
            return f"signal {self.signal_number}{name}"
        if self.code is None:
            return "how is not known, as an earlier master had started it"
        return f"exit code {self.code}"

    @property
    def crashed(self) -> bool:
        """True if the process ended by itself, by its own fault, as far as can be told.

        Not what anybody may do to a process that does nothing wrong.
        """
        if not self.counted:
            return False
        if self.signal_number is not None:
            return self.signal_number not in _FROM_OUTSIDE
        return self.code not in (None, 0, *(128 + number for number in _FROM_OUTSIDE))


LauncherEvent = Started | Waiting | Exited

REAP_SECONDS = 5.0
"""For a killed process to be gone: the kernel frees its memory first."""


class Launcher(ABC):
    """Starts and ends processes; each start yields one Started and one Exited.

    post: receives the events, from any thread; must not block.
    """

    def __init__(self, post: Callable[[LauncherEvent], None]) -> None:
        self._post = post

    @abstractmethod
    def start(self, start: Start) -> None:
        """Start a process. Raises OSError if that is impossible."""

    def adopt(self, start: Start) -> None:
        """Take over a process that an earlier master started, or was about to.

        One that was never started is started. One that has ended yields its Exited.
        Here: for a launcher whose `start` takes over what runs already.
        """
        self.start(start)

    @abstractmethod
    def terminate(self, start: Start) -> None:
        """Ask a process to end; one that is gone is left alone."""

    @abstractmethod
    def kill(self, start: Start) -> None:
        """End a process without asking; one that is gone is left alone."""

    @abstractmethod
    def running(self) -> frozenset[Start]:
        """The processes that have not ended."""

    @abstractmethod
    def wait_gone(self, starts: Collection[Start], timeout: float) -> bool:
        """Wait at most `timeout` seconds; returns whether all of `starts` are gone."""

    def end(self, starts: Collection[Start], grace: float) -> None:
        """Ask processes to end, and kill those that have not after `grace` seconds."""
        for start in starts:
            self.terminate(start)
        if not self.wait_gone(starts, grace):
            for start in starts:
                self.kill(start)
            self.wait_gone(starts, REAP_SECONDS)
