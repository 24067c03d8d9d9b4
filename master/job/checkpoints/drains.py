"""Servers that were told to end, and the checkpoint that each waits for.

A server that gets SIGTERM, and whose rows do not move to others (departures.py), takes no more
pushes and asks the master for a checkpoint, which then has all that it ever acknowledged. Owns who
waits for what; pure, no I/O, no clock. When a checkpoint is taken is checkpoints.py's.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from shoal.master.job.heard import hears, uses_heard
from shoal.master.work.ids import Start


@dataclass(frozen=True)
class Drained:
    """The state of a server that was told to end.

    outcome: why it may end now, in words; None: it has to wait. serves: meanwhile it takes pushes.
    """

    outcome: str | None
    serves: bool = False


@hears("_asked", "_covered", "_outcomes")
class Drains:
    """The servers of one job that drain."""

    def __init__(self) -> None:
        self._asked: set[Start] = set()
        self._covered: set[Start] = set()
        self._outcomes: dict[Start, str] = {}

    @property
    def wanted(self) -> bool:
        """True if a server waits for a checkpoint that has not begun."""
        return bool(self._asked)

    @property
    def pending(self) -> bool:
        """True if a server waits."""
        return bool(self._asked or self._covered)

    def leaving(self, alive: Set[Start]) -> bool:
        """True if one of these servers may end now, and has not yet: it answers nobody any more."""
        return not alive.isdisjoint(self._outcomes)

    def known(self, start: Start) -> bool:
        """True if the server has asked before."""
        return start in self._asked or start in self._covered or start in self._outcomes

    def ask(self, start: Start) -> str | None:
        """Note that a server asks; the end of its checkpoint in words, None while it waits."""
        if not self.known(start):
            self._asked.add(start)
        return self._outcomes.get(start)

    def begun(self) -> None:
        """A checkpoint begins: it will have all of those who have asked until now."""
        self._covered, self._asked = self._covered | self._asked, set()

    @uses_heard
    def taken(self, outcome: str) -> None:
        """The checkpoint that was begun has been taken."""
        self._outcomes |= dict.fromkeys(self._covered, outcome)
        self._covered = set()

    @uses_heard
    def failed(self) -> None:
        """The checkpoint that was begun could not be taken: another one may be, while they wait."""
        self._asked, self._covered = self._asked | self._covered, set()
