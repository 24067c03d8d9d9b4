"""One of many equal messages: what fails again and again is told once in a while."""

from __future__ import annotations

import time

SECONDS = 60.0


class Seldom:
    """Says when a message is to be told. Of one thread."""

    def __init__(self) -> None:
        self._next = 0.0

    def now(self) -> bool:
        """Whether it is: the first time, and then once in SECONDS."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + SECONDS
        return True
