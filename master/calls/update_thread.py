"""The one thread on which servers are told of the updates of --sync, in their order.

Owns that order, and moments between two updates, in which all servers have the same ones.
What an update is made of is updates.py's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

BETWEEN_SECONDS = 0.02
"""Before another look for a moment without an update."""


class UpdateThread:
    """Does what is given to it, one thing after another. ending: set when the job ends."""

    def __init__(self, ending: threading.Event) -> None:
        self._ending = ending
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="update")

    def submit(self, tell: Callable[[], None]) -> None:
        """Queue a call of `tell`, which tells the servers of the next update."""
        self._thread.submit(tell)

    def between(self, applying: Callable[[], bool], fix: Callable[[], Result]) -> Result | None:
        """Call `fix` when no update is under way, and give its result; None once the job ends.

        applying: whether there is an update that not all servers have, which may wait for
            this thread.
        """

        def attempt() -> list[Result]:
            return [] if applying() else [fix()]

        while not self._ending.is_set():
            if fixed := self._thread.submit(attempt).result():
                return fixed[0]
            # Not at once: what it waits for has to come to the thread.
            self._ending.wait(BETWEEN_SECONDS)
        return None

    def close(self) -> None:
        """Tell nobody any more."""
        self._thread.shutdown(cancel_futures=True)
