"""One of many equal messages: what happens again and again is told once in a while."""

from __future__ import annotations

import threading
import time


class Seldom:
    """A limit on how often a message appears: at most one in so many seconds. For any thread."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._next = 0.0

    def due(self) -> bool:
        """True if a message is due now; then none is for a while."""
        now = time.monotonic()
        with self._lock:
            due = now >= self._next
            if due:
                self._next = now + self._seconds
            return due


REFUSALS = Seldom(1.0)
"""Lines about callers that this process refuses, on both planes: any caller adds one."""
