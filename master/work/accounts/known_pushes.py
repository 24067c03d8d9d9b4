"""The last push of each worker that the servers are known to have had, by its sequence number.

Owns the knowledge of pushes as such. copies.py compares it with the words of servers, and finds the
records of these pushes. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.master.work.accounts.applied import AppliedPush, LastPush, sequence_of
from shoal.master.work.accounts.lease_copies import UNKNOWN
from shoal.master.work.accounts.lost_pushes import SUM, Incarnation, LostOfServer, LostPushes
from shoal.master.work.ids import WorkerId


@dataclass
class _Sum:
    """Pushes of a worker's incarnations that are told apart no more: a server has all or none.

    newest: of these incarnations. told: acknowledged by all servers. had: by each, by its index.
    """

    newest: int = 0
    told: int = 0
    had: list[int] = field(default_factory=list)


class KnownPushes:
    """The known pushes of each incarnation of each worker; 0 where nothing is known.

    count: the pushes of all incarnations that have reached a server.

    An incarnation is forgotten, except in the sum, once each checkpoint that is kept has a push of
    a later one at each server. Otherwise the state of a job would grow with each death.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[WorkerId, _Sum] = {}
        # Of those that are over, how many checkpoints had been begun.
        self._over: dict[Incarnation, int] = {}
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

    def fenced(self, of: Incarnation, pushes: Sequence[AppliedPush | None], begun: int) -> None:
        """The incarnation is over, when so many checkpoints had been begun.

        pushes: the last one that each server has of it; None where it could not be asked.
        """
        told = self.told(of)
        had = tuple(max(told, 0 if push is None else push.sequence) for push in pushes)
        self.count += max(had, default=told) - told
        self._over[of] = begun
        self._fenced[of] = had
        self._last_had[of] = tuple(UNKNOWN if push is None else push.sequence for push in pushes)

    def last_had(self, of: Incarnation, server: int) -> int:
        """The last push that a server has had, or a later one; 0 for none; or UNKNOWN."""
        had = self._last_had.get(of, ())
        return had[server] if server < len(had) else UNKNOWN

    def lost(self, server: int, has: Mapping[WorkerId, LastPush]) -> list[LostPushes]:
        """The pushes that a server lacks, if these are the last ones that it has."""
        found = []
        for worker, sums in self._sums.items():
            push = has.get(worker)
            if push is None or push.incarnation < sums.newest:
                had = sums.had[server] if server < len(sums.had) else sums.told
                found.append(LostPushes(worker, SUM, 0, had))
        for of in self._acknowledged.keys() | self._fenced.keys():
            fenced = self._fenced.get(of, ())[server : server + 1]
            upto = max((self.told(of), *fenced))
            worker, incarnation = of
            after = sequence_of(has.get(worker), incarnation)
            if after is not None and upto > after:
                found.append(LostPushes(worker, incarnation, after, upto))
        return found

    def have_servers(self, servers: int) -> None:
        """The job has so many servers from now on: those that came have what all others have."""
        for of, had in self._fenced.items():
            self._fenced[of] = had + (self.told(of),) * (servers - len(had))
        for sums in self._sums.values():
            sums.had += [sums.told] * (servers - len(sums.had))

    def forget(
        self,
        before: int,
        held: Callable[[Incarnation], bool],
        lost: Mapping[int, LostOfServer],
    ) -> set[Incarnation]:
        """Sum up what was over when fewer checkpoints than `before` had been begun; returns which.

        held: whether some of its records are told apart still. lost: by server.
        """
        over = {of for of, begun in self._over.items() if begun < before}
        whole = {of for of in over if not any(each.has(of) for each in lost.values())}
        in_all: dict[WorkerId, int] = {}
        for worker, incarnation in whole:
            if min(self._fenced[worker, incarnation], default=0):
                in_all[worker] = max(incarnation, in_all.get(worker, 0))
        gone = {of for of in over if of[1] < in_all.get(of[0], 0) and not held(of)}
        for of in gone:
            self._sum_up(of, lost)
        none = {of for of in whole - gone if not any(self._fenced[of]) and not held(of)}
        for of in none:
            self._take_out(of)
        return gone | none

    def _take_out(self, of: Incarnation) -> tuple[int, tuple[int, ...]]:
        del self._over[of], self._last_had[of]
        return self._acknowledged.pop(of, 0), self._fenced.pop(of)

    def _sum_up(self, of: Incarnation, lost: Mapping[int, LostOfServer]) -> None:
        worker, incarnation = of
        told, had = self._take_out(of)
        sums = self._sums.setdefault(worker, _Sum())
        sums.newest = max(sums.newest, incarnation)
        servers = max(len(had), len(sums.had))
        sums.had += [sums.told] * (servers - len(sums.had))
        for server, pushes in enumerate(had + (told,) * (servers - len(had))):
            of_server = lost.get(server)
            sums.had[server] += pushes if of_server is None else of_server.sum_up(of, pushes)
        sums.told += told

    def forgotten(self, of: Incarnation) -> bool:
        """True if an incarnation is no longer counted on its own."""
        sums = self._sums.get(of[0])
        return sums is not None and of[1] <= sums.newest and of not in self._fenced

    def resumed(self, lost: Mapping[int, LostOfServer], *, same_servers: bool) -> None:
        """The job goes on with new workers. same_servers: pushes were sent to these servers."""
        self._acknowledged = {}
        for sums in self._sums.values():
            sums.told = 0
        if not same_servers:
            self._fenced, self._last_had, self._over, self._sums = {}, {}, {}, {}
        for each in lost.values():
            each.close({*self._fenced, *((worker, SUM) for worker in self._sums)})

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
