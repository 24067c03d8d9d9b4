"""How often and how long a server's updates were not protected by a log, and why.

Owns the account only; whether they are is updatelog.py's to know, as are the threads.
"""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)


class Absence:
    """When there was no protection.

    why: there is none now; "" if there is. times: how often there was none. seconds: of all
    times that are over.
    """

    def __init__(self) -> None:
        self.why = ""
        self.times = 0
        self.seconds = 0.0
        self._since = 0.0

    def begin(self, why: str) -> None:
        """There is no protection; the first reason counts."""
        if not self.why:
            self.why, self._since = why, time.monotonic()
            self.times += 1
            logger.warning("updates are not protected: %s", why)

    def end(self) -> None:
        """There is protection."""
        if self.why:
            seconds = time.monotonic() - self._since
            self.seconds += seconds
            self.why = ""
            logger.info("updates are protected again, after %.1f s", seconds)
