"""Processes that cannot run yet, as they are told: in one line those that wait for the same.

A job of 200 workers on a full cluster has 200 of them within seconds. No I/O, no clock.
"""

from __future__ import annotations

from collections import Counter

from shoal.base.words import counted
from shoal.master.job.members.launcher import Waiting
from shoal.master.work.ids import ServerId, Start

QUIET_SECONDS, LONGEST_SECONDS = 1.0, 10.0
"""After the last process that waits, and after the first one, those that came are told."""


class ToldWaits:
    """Waits that are to be told. Used by one thread."""

    def __init__(self) -> None:
        self._untold: dict[Start, str] = {}
        self._first = self._last = 0.0

    def add(self, waiting: Waiting, now: float) -> None:
        """A process waits, or waits for something else now."""
        if not self._untold:
            self._first = now
        self._untold[waiting.start], self._last = waiting.why, now

    def drop(self, start: Start) -> None:
        """A process waits no more."""
        self._untold.pop(start, None)

    def due(self, now: float) -> list[str]:
        """Take the lines that are to be told by now, those of most processes first."""
        if now < min(self._last + QUIET_SECONDS, self._first + LONGEST_SECONDS):
            return []
        reasons = Counter(self._untold.values())
        lines = [
            f"{_who([start for start, each in self._untold.items() if each == why])}: {why}"
            for why, _ in reasons.most_common()
        ]
        self._untold.clear()
        return lines


def _who(starts: list[Start]) -> str:
    if len(starts) == 1:
        return f"{starts[0].process} waits"
    servers = sum(isinstance(start.process, ServerId) for start in starts)
    counts = [(servers, "server"), (len(starts) - servers, "worker")]
    return " and ".join(counted(*each) for each in counts if each[0]) + " wait"
