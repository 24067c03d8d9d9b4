"""A number that takes time to find, found seldom enough to cost next to nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHARE = 0.01
"""Of all time, for the measuring."""


class Measured:
    """The last result of `measure`, renewed only so often that measuring takes SHARE of the time.

    The memory of a table is asked of the system page by page: 13 million of them for 50 GB.
    Shared by threads, of which one measures.
    """

    def __init__(
        self, measure: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """clock: seconds, monotonic."""
        self._measure = measure
        self._clock = clock
        self._lock = threading.Lock()
        self._due = float("-inf")
        self._value = 0

    def value(self) -> int:
        """The number, as old as its price allows."""
        with self._lock:
            began = self._clock()
            if began >= self._due:
                self._value = self._measure()
                ended = self._clock()
                self._due = ended + (ended - began) / SHARE
            return self._value
