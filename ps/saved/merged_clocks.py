"""The clock and sweeps of a server whose rows come from the shards of several.

Each server counts steps of its own, so rows of different shards are brought onto one list of steps
and event times: that of the shard which is the furthest. Owns that, for checkpoints that are
restored by another number of servers. What a clock is, is clock.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shoal.ps.forgetting.clock import EventClock, of_other_rows

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import LifecycleState, Shard

Int64 = npt.NDArray[np.int64]


class MergedClocks:
    """The clocks of all shards of a checkpoint, as one.

    step: the last one of the furthest shard.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.step = max(shard["step"] for shard in shards)
        self._saved = [shard.get("lifecycle") for shard in shards]
        furthest = next(shard for shard in shards if shard["step"] == self.step)
        self._furthest = furthest.get("lifecycle")
        self._clocks = [None if each is None else _clock(each) for each in self._saved]
        self._merged = None if self._furthest is None else _clock(self._furthest)
        times = [each.now for each in self._clocks if each is not None and each.now is not None]
        if self._merged is not None:
            self._merged.now = max(times, default=None)

    def steps(self, shard: int, table: int, steps: Int64) -> Int64:
        """The steps of rows of a shard's table, as they are of the merged clock, int64 [n]."""
        theirs, merged = self._clocks[shard], self._merged
        if theirs is None or merged is None or theirs.now is None:
            return steps
        line = merged.lines.get(table)
        if line is None or table not in theirs.lines:
            return steps
        return line.moved(steps, theirs.lines[table], theirs.now, self.step)

    def state_of(self, server: int, servers: int) -> LifecycleState | None:
        """The state that server `server` of `servers` goes on from; None if no table was swept."""
        if self._furthest is None or self._merged is None:
            return None
        clock = of_other_rows(self._merged.state())
        tables = range(len(self._furthest["removed"]))
        own = [each for each in self._saved[server::servers] if each is not None]
        return {
            "clock": clock,
            "plan": None,
            "part": 0,
            "owing": False,
            "removed": [
                {
                    "expired": sum(each["removed"][table]["expired"] for each in own),
                    "evicted": sum(each["removed"][table]["evicted"] for each in own),
                    "counts": sum(each["removed"][table]["counts"] for each in own),
                }
                for table in tables
            ],
        }


def _clock(saved: LifecycleState) -> EventClock:
    clock = EventClock({line["table"]: line["span"] for line in saved["clock"]["lines"]})
    clock.restore(saved["clock"])
    return clock
