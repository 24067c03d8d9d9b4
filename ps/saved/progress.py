"""The progress of a server before it can serve, and the reports of it to the master.

Owns the figures, and the thread that reports them. registration.py and saved_rows.py say what is
being done.
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
    """The work under way, and how much of it is done. Any thread may ask and add.

    stopped: set when the server is to end; then `advance` raises StoppedError.
    """

    def __init__(self, stopped: threading.Event | None = None) -> None:
        self._stopped = stopped or threading.Event()
        self._lock = threading.Lock()
        self._what = self._waits_for = ""
        self._done = self._total = 0

    def begin(self, what: str, total: int = 0) -> None:
        """Something begins: a verb and its object, "restore checkpoint 12".

        total: bytes; 0 where it is not known.
        """
        with self._lock:
            self._what, self._done, self._total = what, 0, total
            self._waits_for = ""

    def advance(self, size: int) -> None:
        """So many bytes more are done. Raises StoppedError if the server is to end."""
        if self._stopped.is_set():
            raise StoppedError
        with self._lock:
            self._done += size

    def waits_for(self, what: str, tries: int = 0) -> None:
        """Note what the work waits for, and how often it was tried; "" once it goes on."""
        # With the number, so that the master sees that the server gets on.
        again = f", tried {tries} times" if tries > 1 else ""
        with self._lock:
            self._waits_for = what and f"wait for {what}{again}"

    def pause(self, seconds: float) -> bool:
        """Wait. Raises StoppedError if the server is to end."""
        if self._stopped.wait(seconds):
            raise StoppedError
        return True

    def end(self) -> None:
        """Nothing is being done any more."""
        self.begin("")

    def now(self) -> pb.ServerProgress:
        """The work under way, with the bytes that are done and the bytes in total."""
        with self._lock:
            what = self._waits_for or self._what
            return pb.ServerProgress(what=what, done=self._done, total=self._total)

    def keep_telling(self, tell: Callable[[pb.ServerProgress], object]) -> None:
        """Call `tell` about once a second while something is being done, and once after.

        This runs on a thread of its own, until the server is stopped. Errors are only logged: the
        master hears the next report.
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
