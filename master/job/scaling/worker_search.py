"""A search for the number of workers that pays, by measured speeds. No I/O, no clock.

More workers are tried, at first twice as many. They are kept if each of them adds at least a given
share, the *efficiency*, of the mean speed of the workers before. If not, the search goes on between
the two numbers. A fit to all measured speeds bounds the next number: w workers are taken to have
the speed w / (a + c w), with a and c not negative, which is that of Optimus (Peng et al., EuroSys
2018) for a fixed number of servers. The measurement decides, not the fit.

A search that has ended begins again only if the speed of the present number changes, and stays
changed for a number of windows that doubles each time. So no job goes to and fro.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHANGED = 0.25
"""By which a speed is another one: windows of one job that is left alone differ by a tenth."""

FIRST_PATIENCE, MOST_PATIENCE = 2, 32
"""Windows for which a changed speed must last before a search begins again."""

FINEST = 8
"""Workers are tried by eighths of the present number: less cannot be told from noise."""


@dataclass(frozen=True)
class Proposal:
    """A number of workers to have now. why: in words."""

    workers: int
    why: str


class WorkerSearch:
    """The search for one job.

    least, most: of the numbers that may be tried. efficiency: of a worker, from 0 to 1: what it is
    to add at least, as a share of the mean speed of those before it.
    """

    def __init__(self, least: int, most: int, efficiency: float) -> None:
        self._least, self._most, self._efficiency = least, most, efficiency
        self._patience = FIRST_PATIENCE
        self._changed = 0  # windows in a row with another speed
        self._before: int | None = None  # the number before the one that is tried
        self._begin({})

    def _begin(self, speeds: dict[int, float]) -> None:
        self._speeds = speeds
        self._ceiling, self._floor = self._most, self._least
        self._ended = False

    def limit(self, most: int) -> None:
        """From now on at most so many may be tried."""
        if most != self._most:
            self._most = most
            self._ceiling = min(self._ceiling, most)

    def state(self) -> dict[str, Any]:
        """The state that `restore` takes; JSON."""
        return {
            "speeds": {str(workers): speed for workers, speed in self._speeds.items()},
            "bounds": [self._floor, self._ceiling],
            "before": self._before,
            "ended": self._ended,
            "patience": self._patience,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._speeds = {int(workers): speed for workers, speed in state["speeds"].items()}
        self._floor, self._ceiling = state["bounds"]
        self._before, self._ended = state["before"], state["ended"]
        self._patience, self._changed = state["patience"], 0

    def restart(self) -> None:
        """The number of workers was changed by others: what was tried is of no use."""
        self._before, self._changed = None, 0
        self._begin({})

    def measured(self, workers: int, speed: float, *, grows: bool = True) -> Proposal | None:
        """The change after a window in which so many workers trained at this speed; None: go on.

        speed: in any unit, above 0. grows: more workers may be tried, as enough work is left.
        """
        if self._is_other(workers, speed):
            if self._changed < self._patience:
                return None
            self._patience = min(MOST_PATIENCE, 2 * self._patience)
            self._begin({})
        self._changed = 0
        known = self._speeds.get(workers)
        self._speeds[workers] = speed if known is None else (known + speed) / 2
        if not self._least <= workers <= self._most:
            why = f"the range is {self._least} to {self._most}"
            return Proposal(min(max(workers, self._least), self._most), why)
        if self._before is not None:
            before, self._before = self._before, None
            if (judged := self._judge(before, workers)) is not None:
                return judged
        if self._ended:
            return None
        pays = self._that_pay(self._most)
        if not grows and workers < min(pays, self._ceiling):
            return None
        ways = [self._more, self._fewer]
        for way in ways if pays > workers else reversed(ways):
            if (found := way(workers, max(1, workers // FINEST), pays)) is not None:
                return found
        self._ended = True
        return None

    def _is_other(self, workers: int, speed: float) -> bool:
        known = self._speeds.get(workers)
        if self._before is not None or known is None or abs(speed / known - 1) <= CHANGED:
            return False
        self._changed += 1
        return True

    def _propose(self, before: int, workers: int, why: str) -> Proposal:
        self._before = before
        return Proposal(workers, why)

    def worth(self, few: int, many: int) -> float:
        """The speed that each further worker adds, by the mean speed of the few."""
        added = (self._speeds[many] - self._speeds[few]) / (many - few)
        return added / (self._speeds[few] / few)

    def _judge(self, before: int, workers: int) -> Proposal | None:
        """Judge the number that was tried; None if it is kept."""
        few, many = sorted((before, workers))
        if few == many or before not in self._speeds:
            return None
        worth = self.worth(few, many)
        each = "the last one" if many - few == 1 else f"each of the last {many - few}"
        said = f"{each} adds {max(worth, 0):.0%} of the mean speed of the {few} before"
        if worth < self._efficiency:
            self._ceiling = min(self._ceiling, many - 1)
            if workers == few:
                return None
            # The fit may say so of the number itself, and the measurement says that it is not so.
            between = max(few, min(few + (many - few) // 2, self._that_pay(many)))
            if between == few:
                self._ceiling = few
                return Proposal(few, said)
            return self._propose(few, between, said)
        self._floor = max(self._floor, many if workers == few else few)
        return None if workers == many else Proposal(many, said)

    def _more(self, workers: int, step: int, pays: int) -> Proposal | None:
        """A number above the present one."""
        most = self._ceiling
        if workers + step > most:
            return None
        wanted = min(most, 2 * workers)
        if most < self._most:
            wanted = min(wanted, workers + (most - workers + 1) // 2)
        wanted = max(workers + step, min(wanted, pays))
        last = self._measured_below(workers)
        if last is None:
            why = "no smaller number was measured"
        else:
            why = f"each beyond {last} adds {self.worth(last, workers):.0%} of the mean speed"
        return self._propose(workers, wanted, why)

    def _fewer(self, workers: int, step: int, pays: int) -> Proposal | None:
        """A number below the present one, if some of the workers may not pay."""
        if workers - step < self._floor:
            return None
        last = self._measured_below(workers, self._floor)
        if last is None:
            wanted = max(self._floor, min(workers - step, max(pays, workers // 2)))
            return self._propose(workers, wanted, "no smaller number was measured")
        worth = self.worth(last, workers)
        wanted = max(last, workers - step)
        # Half way to a whole worker: if they add so much on average, the last one pays as well.
        if worth >= (1 + self._efficiency) / 2 or wanted == last:
            return None
        return self._propose(workers, wanted, f"those beyond {last} add {worth:.0%} each")

    def _measured_below(self, workers: int, floor: int = 0) -> int | None:
        """The largest number below the present one, and not below `floor`, that was measured."""
        return max((each for each in self._speeds if floor <= each < workers), default=None)

    def _that_pay(self, most: int) -> int:
        """The number up to which each worker pays, by the fit; at most `most`."""
        a, c = fit(self._speeds)
        if not a:
            return self._least
        if not c:
            return most
        # d/dw of w / (a + c w) is a / (a + c w) ** 2; the mean speed is 1 / (a + c w). Rounded, as
        # the last bits of what comes to a whole number would decide about a worker.
        pays = a * (1 - self._efficiency) / (c * self._efficiency)
        return int(round(min(most, pays), 6))


def fit(speeds: Mapping[int, float]) -> tuple[float, float]:
    """(a, c), not negative, with speed about w / (a + c w) for w workers, by least squares.

    With one speed only, c is 0.
    """
    seconds = {workers: workers / speeds[workers] for workers in sorted(speeds)}
    number, mean = sum(seconds) / len(seconds), math.fsum(seconds.values()) / len(seconds)
    spread = math.fsum((each - number) * (each - number) for each in seconds)
    if not spread:
        return mean, 0.0
    c = math.fsum((each - number) * (took - mean) for each, took in seconds.items()) / spread
    a = mean - c * number
    if a < 0:
        squares = sum(each * each for each in seconds)
        return 0.0, math.fsum(each * took for each, took in seconds.items()) / squares
    return (a, c) if c >= 0 else (mean, 0.0)
