"""Which server has the gradients of which training records, compared from both ends.

Every record that the ledger calls trained is to be on every server, once. At one end is what the
master knows to be acknowledged: of each lease by heartbeats, reports and fences, of each worker
by the number of its last push (known_pushes.py). At the other end is what a server says it has:
the last push of each worker, which stands for all before it, since a worker's pushes are applied
in their order. A server that was started again says so when it registers; all servers are asked
at the end.

Owns the comparison, for all incarnations of all workers since the oldest checkpoint that a
server could still restore, and its results as ranges: what a server lacks ("lost") and what it
has once more than counts ("repeated"). lease_copies.py has the arithmetic of one lease,
lease_book.py keeps the leases, settled.py has those that are in every checkpoint, and
task_outcomes.py decides about lost records. It is one class, because a resumption cuts all of its
knowledge at once. No I/O and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.master.work.accounts.applied import (
    AppliedPush,
    LastPush,
    certain_head,
    possible_head,
    sequence_of,
)
from shoal.master.work.accounts.known_pushes import KnownPushes
from shoal.master.work.accounts.lease_book import LeaseBook
from shoal.master.work.accounts.lease_copies import (
    UNKNOWN,
    Difference,
    Lease,
    Piece,
    differences_of,
    heads_in,
    in_shards,
    part_of,
)
from shoal.master.work.accounts.lost_pushes import Incarnation, LostOfServer, LostPushes
from shoal.master.work.accounts.ranges import minus, union
from shoal.master.work.accounts.settled import Settled
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.ids import WorkerId


@dataclass
class _Restart:
    """A server that was started again.

    has: what it had then, if workers that it served before go on, and met: those that have told it
    since what they had been told. since: how many checkpoints had been begun. checkpoint: the one
    that it restored, by number.
    """

    since: int
    checkpoint: int
    has: Mapping[WorkerId, LastPush] | None
    met: set[Incarnation] = field(default_factory=set)


class Copies:
    """The leases of a job with `servers` servers, and what each of these has of them.

    tracks: not with --sync, where all servers have the same updates, or the job ends: a push that
        a server holds is none that it has.
    retrain: what a server lost is taken back, to be trained again.
    lost: pushes that each server has lost by its deaths, by its index.
    """

    def __init__(self, servers: int, *, tracks: bool, retrain: bool) -> None:
        self._servers = servers
        self._tracks = tracks
        self._retrain = retrain
        self._order = 0
        self._leases = LeaseBook()
        self._pushes = KnownPushes()
        self._restarts: dict[int, _Restart] = {}
        # How many checkpoints were begun, and by number, how many had been with this one.
        self._begun = 0
        self._begun_with: dict[int, int] = {}
        # The checkpoint that the job was resumed from with another number of servers, by number.
        self._foreign = 0
        self._settled = Settled()
        self.lost: dict[int, LostOfServer] = {}

    # ------------------------------------------------------------ what is acknowledged

    def begun(self, lease: Lease, now: float) -> None:
        """A worker has leased a training task."""
        if self._tracks:
            self._order += 1
            lease.order, lease.began = self._order, now
            lease.told = self.told(lease.worker, lease.incarnation)
            self._leases.add(lease)

    def acknowledged(self, worker: WorkerId, incarnation: int, sequence: int) -> None:
        """All servers have acknowledged a worker's pushes up to this one."""
        self._pushes.acknowledged((worker, incarnation), sequence)

    @property
    def pushes(self) -> int:
        """The number of pushes that have reached a server since the job began."""
        return self._pushes.count

    def told(self, worker: WorkerId, incarnation: int) -> int:
        """The last push of a worker that all servers are known to have acknowledged."""
        return self._pushes.told((worker, incarnation))

    def reported(self, lease: Lease, touched: int, now: float) -> list[Piece]:
        """A lease has ended by its worker's report, and what is acknowledged is on all servers.

        touched: head that may be on all of them. Returns what is to be trained again.
        """
        if not self._tracks:
            return []
        lease.ended, lease.begun = now, self._begun
        lease.head = max(lease.acknowledged, min(touched, len(lease.span)))
        told = self.told(lease.worker, lease.incarnation)
        lease.last = told if told > lease.told else 0
        self._lose_unmet(lease)
        pieces = self._taken_back(lease)
        self._leases.ended(lease)
        return pieces

    def ended(self) -> list[Piece]:
        """The job has ended, and nobody goes on with the leases that are open.

        Returns what counts of them no more, since a server has lost it: it was to be trained again.
        """
        if not self._retrain:
            return []
        leases = [lease for lease in self._leases.loose() if lease.ended is None]
        leases.sort(key=lambda lease: lease.order)
        for lease in leases:
            self._lose_unmet(lease)
        return [piece for lease in leases for piece in lease.take_back(self._servers, self._begun)]

    def _lose_unmet(self, lease: Lease) -> None:
        # A worker that has not met a server since its restart has pushed nothing to it since.
        for server, restart in self._restarts.items():
            met = (lease.worker, lease.incarnation) in restart.met
            if restart.has is not None and not met:
                reached = self._reached(lease, restart.has.get(lease.worker), server)
                lease.lose(server, ((reached, lease.head_at(server)),), restart.since)

    def fenced(
        self,
        worker: WorkerId,
        incarnation: int,
        pushes: Sequence[AppliedPush | None],
        now: float,
    ) -> list[Piece]:
        """A worker's incarnation is over; what each server has of it last.

        What all of them are known to have of its leases, is acknowledged. Returns what is to be
        trained again, beside the rest of its lease.
        """
        key = worker, incarnation
        self._pushes.fenced(key, pushes, self._begun)
        pieces = []
        for lease in self._leases.open(key):
            lease.ended, lease.begun = now, self._begun
            lease.head = lease.acknowledged
            heads = enumerate(possible_head(lease.task, push) for push in pushes)
            lease.heads = {server: head for server, head in heads if head != lease.head}
            lease.differ(len(pushes))
            pieces += self._taken_back(lease)
        return pieces

    # ------------------------------------------------------------ what servers have

    def restored(
        self, server: int, has: Iterable[LastPush], checkpoint: int, *, meets: bool
    ) -> tuple[int, list[Piece]]:
        """A server was started again, and has these pushes, the last of each worker.

        checkpoint: that it has restored, by number; 0 for none. meets: workers that it served
        before go on, and tell what they had been told.
        Returns how many acknowledged pushes it has lost that were not known to be lost, and what
        is to be trained again.
        """
        last = {push.worker: push for push in has}
        self._restarts[server] = _Restart(self._begun, checkpoint, last if meets else None)
        return self.compared(server, last.values())

    def compared(self, server: int, has: Iterable[LastPush]) -> tuple[int, list[Piece]]:
        """A server has these pushes, the last of each worker. Returns as `restored`."""
        if not self._tracks:
            return 0, []
        last = {push.worker: push for push in has}
        restart = self._restarts.get(server)
        since, checkpoint = 0, self._foreign
        if restart is not None:
            since, checkpoint = restart.since, restart.checkpoint
        pieces = []
        for lease in self._leases.changing():
            push = last.get(lease.worker)
            reached = self._reached(lease, push, server)
            if lease.ended is not None and lease.heads.get(server, 0) is None:
                lease.heads = {**lease.heads, server: max(reached, lease.acknowledged)}
            lease.lose(server, ((reached, lease.head_at(server)),), since)
            pieces += self._taken_back(lease)
        settled = self._settled.lost(
            server, self._servers, last, checkpoint, since, retrain=self._retrain
        )
        return self._note_lost(server, self._pushes.lost(server, last)), settled + pieces

    def met(self, server: int, told: LastPush) -> tuple[int, list[Piece]]:
        """A worker meets a server that was started again, and had been told `told` before.

        Returns as `restored`.
        """
        restart = self._restarts.get(server) if self._tracks else None
        key = told.worker, told.incarnation
        if restart is None or restart.has is None or key in restart.met:
            return 0, []
        if self._pushes.forgotten(key):
            return 0, []  # a late word, older than all checkpoints that are kept
        restart.met.add(key)
        has = restart.has.get(told.worker)
        after = sequence_of(has, told.incarnation)
        if after is None or told.sequence <= after:
            return 0, []
        pieces = []
        for lease in self._leases.changing(key):
            had = self._reached(lease, told, server)
            if told.task == lease.task.id and not told.records_done:
                had = len(lease.span)  # which records the pushes were made of is not known
            reached = self._reached(lease, has, server)
            lease.lose(server, ((reached, had),), restart.since)
            pieces += self._taken_back(lease)
        lost = [LostPushes(told.worker, told.incarnation, after, told.sequence)]
        return self._note_lost(server, lost), pieces

    def _note_lost(self, server: int, lost: Sequence[LostPushes]) -> int:
        return self.lost.setdefault(server, LostOfServer()).add(lost)

    def _reached(self, lease: Lease, push: LastPush | None, server: int) -> int:
        """The head of a lease on a server whose last push of the worker is `push`, in records."""
        has = sequence_of(push, lease.incarnation)
        # Of None, a successor has pushed: all of the lease's pushes are there that it ever got.
        if has is None or UNKNOWN < self._last(lease, server) <= has:
            return lease.head_at(server)
        if push is None or not has:
            return 0
        key = lease.worker, lease.incarnation
        if push.task == lease.task.id:
            return certain_head(lease.task, push)
        later = self._leases.order_of(key, push.task) > lease.order
        return lease.head_at(server) if later else 0

    def _last(self, lease: Lease, server: int) -> int:
        """The last push of a lease that a server had, or a later one; 0 for none; or UNKNOWN."""
        if lease.last != UNKNOWN:
            return lease.last
        return self._pushes.last_had((lease.worker, lease.incarnation), server)

    # ------------------------------------------------------------ what follows

    def _taken_back(self, lease: Lease) -> list[Piece]:
        """Take back what counts and some server lacks, if the lease has ended."""
        if not self._retrain or lease.ended is None or lease.whole:
            return []
        return lease.take_back(self._servers, self._begun)

    # ------------------------------------------------------------ checkpoints

    def checkpoint_begun(self) -> None:
        """The servers are about to be asked to fix what they hold."""
        self._begun += 1

    def checkpoint_recovered(self, number: int) -> None:
        """It was made of an older one and the log of updates, after all servers had ended."""
        self._begun += 1
        self._begun_with[number] = self._begun

    def checkpoint_taken(self, number: int, kept: Iterable[int]) -> None:
        """The checkpoint begun last is complete; these can be restored.

        What had ended before the oldest of them was begun, is in all of them.
        """
        self._begun_with[number] = self._begun
        kept = list(kept)
        self._begun_with = {n: begun for n, begun in self._begun_with.items() if n in kept}
        limit = self._begun_with.get(min(kept), 0)
        self._settled.forget(limit)
        self._settled.add(
            self._leases.settled(limit, lambda lease: lease.final(limit)),
            self._servers,
            self._last,
        )
        forgotten = self._pushes.forget(limit, self._leases.holds, self.lost)
        for restart in self._restarts.values():
            restart.met -= forgotten

    # ------------------------------------------------------------ servers come and leave

    def have_servers(self, servers: int, present: Collection[int]) -> None:
        """The job has so many servers from now on, and each has what all others have.

        present: those that are not absent, by index. The others begin anew when they are back.
        """
        for lease in self._leases.loose():
            if lease.heads or lease.losses or lease.takings:
                lease.servers = lease.servers or self._servers
        self._servers = servers
        self._pushes.have_servers(servers)
        self._restarts = {at: each for at, each in self._restarts.items() if at in present}

    # ------------------------------------------------------------ resuming

    def in_shards(self, number: int, shards: Sequence[Iterable[LastPush]]) -> list[Interval]:
        """Return the training records in checkpoint `number`, as "trained" and "touched" intervals.

        shards: for the shard of each server, the last push of each worker in it.
        """
        before = self._begun_with.get(number, math.inf)
        found = self._settled.at(before).intervals()
        if number == self._foreign:
            return found  # of other servers than those that the leases since were pushed to
        last = [{push.worker: push for push in shard} for shard in shards]
        for lease in self._leases:
            there, counted = in_shards(lease, heads_in(lease, last, self._reached), before)
            for kind, ranges in (("trained", counted), ("touched", minus(union(*there), counted))):
                found += [
                    Interval(kind, lease.task.epoch, part_of(lease.span, start, end))
                    for start, end in ranges
                ]
        return found

    def unreported(self, pushes: Iterable[LastPush]) -> Lease | None:
        """A lease that has not ended here, of whose worker there is a push of a later one.

        A worker pushes nothing of the next task before the report of the last one is answered.
        """
        for push in pushes:
            key = push.worker, push.incarnation
            order = self._leases.order_of(key, push.task)
            for lease in self._leases.open(key):
                if lease.order < order:
                    return lease
        return None

    def resumed(
        self,
        servers: int,
        number: int,
        shards: Sequence[Iterable[LastPush]],
        in_model: Iterable[Interval],
        now: float,
    ) -> None:
        """The job goes on with so many new servers, from the model that these shards are.

        number: of their checkpoint. in_model: what is in it. shards: none of a new model, and with
        --sync, where in_model says all.
        """
        before = self._begun_with.get(number, math.inf)
        self._restarts = {}
        same_servers = bool(shards) and servers == self._servers and number != self._foreign
        if not shards:
            self._servers, self._foreign = servers, 0
            self._leases.clear()
            self._pushes.resumed(self.lost, same_servers=same_servers)
            self._settled.begin(in_model)
            return
        self._settled = self._settled.at(before)
        if number == self._foreign:
            self._leases.clear()
        else:
            self._cut(shards, before, now)
        if not same_servers:
            # No push counts as applied there: what the new servers have, these leases do not say.
            # What older checkpoints have is not known any more.
            self._settled.add(self._leases, self._servers, self._last)
            self._leases.clear()
            self._servers, self._foreign = servers, number
            self._begun_with = {number: self._begun_with.get(number, self._begun)}
            self._settled.stand_on(number, servers)
        self._pushes.resumed(self.lost, same_servers=same_servers)

    def _cut(self, shards: Sequence[Iterable[LastPush]], before: float, now: float) -> None:
        """Cut all leases to these shards of a checkpoint; before: as in `in_shards`."""
        last = [{push.worker: push for push in shard} for shard in shards]
        for lease in self._leases.changing():
            if lease.ended is None:
                lease.begun = self._begun
            lease.only(heads_in(lease, last, self._reached), before, now)
        self._pushes.cut(last)

    # ------------------------------------------------------------ the other end of it

    def differences(self) -> list[Difference]:
        """The records that a server has more or less often than they count, at this moment."""
        # Of those that are packed, every server has what counts.
        leases = self._leases.loose()
        open_now = [each for lease in leases for each in differences_of(lease, self._servers)]
        return [*self._settled.differences, *open_now]

    @property
    def lacked(self) -> dict[int, int]:
        """Records that count and a server lacks, by server; of leases that have ended."""
        lacked: dict[int, int] = {}
        for each in self.differences():
            if each.kind == "lost":
                lacked[each.server] = lacked.get(each.server, 0) + len(each.span)
        return lacked
