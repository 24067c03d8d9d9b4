"""The basics of following a job, wherever it runs: its pace, and the signals that stop it.

Owns nothing of the job itself: local.py follows one on this machine, remote_following.py one in
a cluster.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

POLL_SECONDS = 0.25
"""Between two looks at the job: fluent for the eye, nothing for the master."""

CALL_SECONDS = 5.0
"""Deadline of one call to the master: a busy machine answers late."""

STOP_SECONDS = 60.0
"""What a job gets to end by itself after it was told to stop, before it is killed."""


class Interruptions:
    """Counts the signals that ask to stop, instead of raising in the middle of a call."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruptions:
        # Elsewhere Python allows no handlers; there the main thread decides.
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                # A command started with nohup ignores SIGHUP, and is to go on doing so.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop(self) -> None:
        """Stop the job, as a first signal does; once more changes nothing."""
        self.count = max(self.count, 1)

    def kill(self) -> None:
        """Kill the job at once, as a second signal does."""
        self.count += 2

    def _received(self, number: int, _frame: FrameType | None) -> None:
        # A terminal that closes may tell so twice: as the shell ends, and as the terminal does.
        if number == signal.SIGHUP:
            self.stop()
        else:
            self.count += 1
