"""The workers' clocks for bounded staleness: who is how far, and who is slowest.

A clock counts the training steps of a worker that all servers have applied. Only
workers that hold a training task, or ask for the next one, count: who evaluates,
waits for work or is dead holds nobody up. No I/O.
"""

from __future__ import annotations

from collections import Counter

from shoal.master.work.ids import WorkerId


class Clocks:
    """The clocks of a job's workers."""

    def __init__(self) -> None:
        self._clocks: dict[WorkerId, int] = {}
        self._training: set[WorkerId] = set()
        # How many of those who train are at each clock: by a bound these are few, whoever trains.
        self._at: Counter[int] = Counter()
        self._slowest = 0

    def clear(self) -> None:
        """All workers are new, of a job that was resumed."""
        self._clocks.clear()
        self._training.clear()
        self._at.clear()
        self._slowest = 0

    @property
    def slowest(self) -> int:
        """The least clock of those who train; the last known one while nobody does.

        Never falls, so that what a worker was once allowed stays allowed.
        """
        self._slowest = max(self._slowest, min(self._at, default=0))
        return self._slowest

    def allowed(self, slowest: int) -> None:
        """Somebody was once told that the slowest clock is this."""
        self._slowest = max(self._slowest, slowest)

    def of(self, worker: WorkerId) -> int:
        """A worker's clock; 0 if it has none yet."""
        return self._clocks.get(worker, 0)

    def enter(self, worker: WorkerId) -> None:
        """A worker gets a training task.

        One that joins, or comes back from other work, starts at the slowest clock if its
        own is behind: whatever it had pushed is applied.
        """
        if worker not in self._training:
            clock = self._clocks[worker] = max(self._clocks.get(worker, 0), self.slowest)
            self._training.add(worker)
            self._at[clock] += 1

    def leave(self, worker: WorkerId) -> None:
        """A worker has no training task, and gets none now."""
        if worker in self._training:
            self._training.remove(worker)
            self._gone_from(self._clocks[worker])

    def forget(self, worker: WorkerId) -> None:
        """A worker is dead; its successor is a new one."""
        self.leave(worker)
        self._clocks.pop(worker, None)

    def _gone_from(self, clock: int) -> None:
        self._at[clock] -= 1
        if not self._at[clock]:
            del self._at[clock]

    def next_told(self, worker: WorkerId, bound: int) -> int:
        """The clock at which a worker is to tell its clock again.

        bound: of the staleness. Half of what the fastest worker has left of it: so one that is up
        to twice as fast does not come to its bound before the slowest has told. When somebody has
        come there, each step is told.
        """
        left = bound - (max(self._at, default=0) - self.slowest)
        return self.of(worker) + max(1, left // 2)

    def advance(self, worker: WorkerId, clock: int) -> int:
        """A worker that trains is at `clock`; returns the slowest clock."""
        if worker in self._training and clock > self._clocks[worker]:
            self._gone_from(self._clocks[worker])
            self._clocks[worker] = clock
            self._at[clock] += 1
        return self.slowest
