"""Deaths of a job's processes, and how long it took until each was replaced. No I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Death:
    """One end of a process that nobody had asked for.

    at: wall-clock seconds; of a master, when it was last known to live. recovered: seconds
    until its successor was at work; None if there was none.
    """

    who: str
    at: float
    cause: str
    recovered: float | None = None

    @property
    def role(self) -> str:
        """worker, ps, master, or job for all of them."""
        return self.who.partition("-")[0]


@dataclass(frozen=True)
class Recovery:
    """The deaths of one role. median, p99: seconds until the successor was at work.

    None where there was no successor; p99 is the longest of fewer than 100.
    """

    deaths: int
    replaced: int
    median: float | None
    p99: float | None


def recoveries(deaths: Sequence[Death]) -> dict[str, Recovery]:
    """The deaths by role, in the order in which the roles were first met by one."""
    found = {}
    for role in dict.fromkeys(death.role for death in deaths):
        times = sorted(d.recovered for d in deaths if d.role == role and d.recovered is not None)
        found[role] = Recovery(
            sum(death.role == role for death in deaths),
            len(times),
            statistics.median(times) if times else None,
            times[math.ceil(len(times) * 0.99) - 1] if times else None,
        )
    return found
