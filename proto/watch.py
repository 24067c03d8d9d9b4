"""A watch that calls off anything that takes too long: one thread looks after all of it.

A timer a call, which is a thread a call, costs more than most calls do. Owns the looking; callers
say how long each may take.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""Between two looks, by so much a waiting may end late."""


class Watch:
    """Calls off what takes too long, from a thread of its own. Shared by threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        # By number: until when it may take, and what calls it off.
        self._waiting: dict[int, tuple[float, Callable[[], object]]] = {}
        self._thread: threading.Thread | None = None
        self._idle = False

    @contextmanager
    def within(self, seconds: float, give_up: Callable[[], object]) -> Iterator[None]:
        """Call `give_up`, once, if the body takes longer than `seconds`."""
        number = next(self._numbers)
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._look, name="watch", daemon=True)
                thread.start()
                self._thread = thread
            self._waiting[number] = time.monotonic() + seconds, give_up
            if self._idle:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._waiting.pop(number, None)

    def _look(self) -> None:
        while True:
            try:
                self._look_once()
            except Exception:  # also no memory: all that waits is this thread's to end
                logger.exception("what takes too long could not be called off")
            time.sleep(LOOK_SECONDS)

    def _look_once(self) -> None:
        with self._changed:
            while not self._waiting:
                self._idle = True
                self._changed.wait()
            self._idle = False
            now = time.monotonic()
            late = [number for number, (end, _) in self._waiting.items() if now > end]
        for number in late:
            with self._changed:
                found = self._waiting.pop(number, None)
            if found is not None:
                try:
                    found[1]()
                except Exception:
                    logger.exception("what takes too long could not be called off")


WATCH = Watch()
"""That of this process."""
