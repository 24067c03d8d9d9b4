"""The sources that a worker has told the master of, so that each is told twice and no more.

Twice, since the master takes a source that it has heard of twice in the same state. What was in a
report that was not answered counts as not told.
"""

from __future__ import annotations

from collections.abc import Mapping

TIMES = 2


class Listings:
    """The listings of one worker."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, int]] = {}  # by name: stamp, and how often
        self._telling: dict[str, str] = {}

    def news(self, stamps: Mapping[str, str]) -> Mapping[str, str]:
        """The sources to tell of those that are there now. stamps: their states, by name."""
        self._telling = {
            name: stamp
            for name, stamp in stamps.items()
            if not stamp or self._told.get(name) != (stamp, TIMES)
        }
        return self._telling

    def confirmed(self) -> None:
        """The master has heard of those that `news` has returned last."""
        for name, stamp in self._telling.items():
            before, times = self._told.get(name, ("", 0))
            self._told[name] = (stamp, times + 1 if stamp == before else 1)
        self._telling = {}
