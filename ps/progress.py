"""How far a server is with what it does before it can serve, and that the master hears of it.

Owns the figures, and the thread that tells them. What is done is for registration.py and
saved_rows.py to say.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from shoal.errors import Error
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)

TELL_SECONDS = 1.0
"""Between two words to the master; what is through sooner is not worth one."""


class StoppedError(Error):
    """The server is to end: what it restores is of no use any more."""


class Progress:
    """What is being done, and how much of it. Any thread may ask and add.

    stopped: set when the server is to end; then `advance` raises StoppedError.
    """

    def __init__(self, stopped: threading.Event | None = None) -> None:
        self._stopped = stopped or threading.Event()
        self._lock = threading.Lock()
        self._what = self._held_up = ""
        self._done = self._total = 0

    def begin(self, what: str, total: int = 0) -> None:
        """Something begins: a verb and its object, "restore checkpoint 12".

        total: bytes; 0 where it is not known.
        """
        with self._lock:
            self._what, self._done, self._total = what, 0, total
            self._held_up = ""

    def advance(self, size: int) -> None:
        """So many bytes more are done. Raises StoppedError if the server is to end."""
        if self._stopped.is_set():
            raise StoppedError
        with self._lock:
            self._done += size

    def held_up(self, what: str) -> None:
        """What it waits for in between, a verb and its object; "" if it gets on again."""
        with self._lock:
            self._held_up = what

    def pause(self, seconds: float) -> None:
        """Wait. Raises StoppedError if the server is to end."""
        if self._stopped.wait(seconds):
            raise StoppedError

    def end(self) -> None:
        """Nothing is being done any more."""
        self.begin("")

    def now(self) -> pb.ServerProgress:
        """What is being done, with the bytes that are done and those that there are."""
        with self._lock:
            what = self._held_up or self._what
            return pb.ServerProgress(what=what, done=self._done, total=self._total)

    def keep_telling(self, tell: Callable[[pb.ServerProgress], object]) -> None:
        """Have `tell` called about once a second while something is being done, and once after.

        On a thread of its own, until the server is stopped. Errors of the wire are left: the
        master hears the next word.
        """

        def keep() -> None:
            told = False
            while not self._stopped.wait(TELL_SECONDS):
                now = self.now()
                if not (now.what or told):
                    continue
                try:
                    tell(now)
                    told = bool(now.what)
                except Exception as error:  # also no memory
                    logger.debug("the master has not heard of the progress: %s", error)

        threading.Thread(target=keep, daemon=True, name="progress").start()
