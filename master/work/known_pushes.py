"""The last push of each worker that the servers are known to have had, by its sequence number.

Owns the knowledge of pushes as such. copies.py compares it with the words of servers, and finds the
records of these pushes. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.master.work.applied import AppliedPush, LastPush, sequence_of
from shoal.master.work.ids import WorkerId
from shoal.master.work.lease_copies import UNKNOWN
from shoal.master.work.lost_pushes import LostPushes

Incarnation = tuple[WorkerId, int]
"""One start of a worker; its pushes are numbered from 1."""


class KnownPushes:
    """What is known of the pushes of each incarnation of each worker; 0 where nothing is.

    count: pushes that have reached a server, of all incarnations.
    """

    def __init__(self) -> None:
        self.count = 0
        self._acknowledged: dict[Incarnation, int] = {}
        self._fenced: dict[Incarnation, tuple[int, ...]] = {}
        # The same, or later pushes that are in checkpoints from which the job was resumed: with
        # these, a server has all of a lease that it ever had.
        self._last_had: dict[Incarnation, tuple[int, ...]] = {}

    def acknowledged(self, of: Incarnation, sequence: int) -> None:
        """All servers have acknowledged the pushes up to this one."""
        if sequence > self.told(of):
            self.count += sequence - self.told(of)
            self._acknowledged[of] = sequence

    def told(self, of: Incarnation) -> int:
        """The last push that all servers are known to have acknowledged."""
        return self._acknowledged.get(of, 0)

    def fenced(self, of: Incarnation, pushes: Sequence[AppliedPush | None]) -> None:
        """The incarnation is over; pushes: the last one that each server has of it."""
        had = max((push.sequence for push in pushes if push is not None), default=0)
        self.count += max(0, had - self.told(of))
        self._fenced[of] = tuple(0 if push is None else push.sequence for push in pushes)
        self._last_had[of] = tuple(UNKNOWN if push is None else push.sequence for push in pushes)

    def last_had(self, of: Incarnation, server: int) -> int:
        """The last push that a server has had, or a later one; 0 for none; or UNKNOWN."""
        had = self._last_had.get(of, ())
        return had[server] if server < len(had) else UNKNOWN

    def lost(self, server: int, has: Mapping[WorkerId, LastPush]) -> list[LostPushes]:
        """The pushes that a server lacks, if these are the last ones that it has."""
        found = []
        for of in self._acknowledged.keys() | self._fenced.keys():
            fenced = self._fenced.get(of, ())[server : server + 1]
            upto = max((self.told(of), *fenced))
            worker, incarnation = of
            after = sequence_of(has.get(worker), incarnation)
            if after is not None and upto > after:
                found.append(LostPushes(worker, incarnation, after, upto))
        return found

    def resumed(self) -> None:
        """The job goes on with new workers."""
        self._acknowledged = {}

    def forget(self) -> None:
        """The job goes on with servers to which none of the pushes was sent."""
        self._fenced, self._last_had = {}, {}

    def cut(self, shards: Sequence[Mapping[WorkerId, LastPush]]) -> None:
        """The servers have just the pushes that these shards of a checkpoint have."""
        for (worker, incarnation), pushes in self._fenced.items():
            kept = (sequence_of(has.get(worker), incarnation) for has in shards)
            now_there = tuple(
                number if there is None else there
                for number, there in zip(pushes, kept, strict=False)
            )
            key = worker, incarnation
            self._fenced[key] = now_there
            self._last_had[key] = tuple(map(max, self._last_had[key], now_there))
