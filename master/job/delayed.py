"""Starts of processes that have to wait for a while, so that nobody else does. No I/O."""

from __future__ import annotations

import heapq

from shoal.master.work.ids import Start


class DelayedStarts:
    """Starts by the time at which they are due. Used by one thread."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Start]] = []
        self._count = 0  # of those that came: keeps the order of equal times

    def add(self, start: Start, due: float) -> None:
        """Keep a start until `due`, in seconds of the caller's clock."""
        heapq.heappush(self._queue, (due, self._count, start))
        self._count += 1

    def drop(self, start: Start) -> bool:
        """Forget a start; returns whether it was waiting."""
        kept = [each for each in self._queue if each[2] != start]
        dropped = len(kept) < len(self._queue)
        heapq.heapify(kept)
        self._queue = kept
        return dropped

    def due(self, now: float) -> list[Start]:
        """Take the starts whose time has come, the oldest first."""
        taken = []
        while self._queue and self._queue[0][0] <= now:
            taken.append(heapq.heappop(self._queue)[2])
        return taken
