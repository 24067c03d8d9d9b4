"""The state of a server's own log, and the account of the times without protection.

Owns which states may follow which, whether what was acknowledged is protected, and how often and
how long it was not. Writing the log is log.py's, as are the threads. No I/O.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable

from shoal.base.transitions import Transitions

logger = logging.getLogger(__name__)


class LogState(enum.Enum):
    """The state of a server's own log."""

    EMPTY = "the model has no first values yet, and there is nothing to log"
    LOST = "there are values, and no log is written: it is to begin anew"
    BASELESS = "a log is written that stands on no complete checkpoint: it does not protect"
    PROTECTING = "a log is written, on the model's beginning or on a complete checkpoint"


TRANSITIONS = Transitions(
    "a log of updates",
    {
        LogState.EMPTY: {LogState.LOST, LogState.PROTECTING},
        # Again lost: the new one could not begin.
        LogState.LOST: {LogState.LOST, LogState.BASELESS, LogState.PROTECTING},
        LogState.BASELESS: {LogState.LOST, LogState.PROTECTING},
        # Again: it stands on a later checkpoint.
        LogState.PROTECTING: {LogState.LOST, LogState.PROTECTING},
    },
)


AT_BEGINNING = 60.0
"""Seconds that nothing is told of a job that begins with another's values, or whose rows have
moved: a checkpoint follows at once."""


class Protection:
    """The state of one log. Its owner keeps threads apart.

    written: whether pushes go into a log. name: of that log, or of the last one. why: there is no
    protection, in words; "" if there is, or nothing to protect. seconds: of all times that are
    over, and were told.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = LogState.EMPTY
        self.written = False
        self.name = ""
        self.why = ""
        self.seconds = 0.0
        self._over = 0
        self._clock = clock
        self._since = self._told_from = 0.0

    @property
    def told(self) -> str:
        """The reason as `why` has it, once that is to be told; "" before."""
        return self.why if self._clock() >= self._told_from else ""

    @property
    def times(self) -> int:
        """The number of times that there was no protection and that was told."""
        return self._over + bool(self.told)

    def writes(self, name: str) -> bool:
        """True if pushes go into the log `name`."""
        return self.written and self.name == name

    def begun(self, name: str, *, protects: bool) -> None:
        """The log `name` is written from now on. protects: it stands on what is saved."""
        self._go(LogState.PROTECTING if protects else LogState.BASELESS)
        self.name = name

    def based(self) -> None:
        """The log that is written stands on a complete checkpoint now."""
        self._go(LogState.PROTECTING)

    def lost(self, name: str, why: str) -> None:
        """The log `name` is lost, if it was still written."""
        if self.writes(name):
            self.unlogged(why)

    def unlogged(self, why: str, told_after: float = 0.0) -> None:
        """The model has values that no log has."""
        self._go(LogState.LOST)
        self.exposed(why, told_after)

    def exposed(self, why: str, told_after: float = 0.0) -> None:
        """Note that acknowledged updates may be lost; the first reason counts.

        told_after: seconds until the reason is told; the earliest time of all calls counts.
        """
        told_from = self._clock() + told_after
        if not self.why:
            self.why, self._since, self._told_from = why, self._clock(), told_from
            level = logging.INFO if told_after else logging.WARNING
            logger.log(level, "updates are not protected: %s", why)
        self._told_from = min(self._told_from, told_from)

    def _go(self, target: LogState) -> None:
        self.state = TRANSITIONS.step(self.state, target)
        self.written = target in (LogState.BASELESS, LogState.PROTECTING)
        if target is LogState.PROTECTING and self.why:
            seconds = self._clock() - self._since
            if self.told:
                self.seconds += seconds
                self._over += 1
            self.why = ""
            logger.info("updates are protected again, after %.1f s", seconds)
