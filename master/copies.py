"""Which server has the gradients of which training records: counted from both ends.

Every record that the ledger calls trained is to be on every server, once. One end is what the
master knows was acknowledged: of each lease by heartbeats, reports and fences, of each worker
by the number of its last push. The other end is what a server says it has: the last push of
each worker, which stands for all before it, since a worker's pushes are applied in their order.
A server that was started again says so when it registers; all servers are asked at the end.

Owns the comparison, for all incarnations of all workers since the oldest checkpoint that a
server could still restore, and what follows from it as ranges: what a server lacks ("lost") and
what it has once more than counts ("repeated"). What becomes of lost records is flow.py's.
No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.master.applied import AppliedPush, LastPush
from shoal.master.ids import WorkerId
from shoal.master.lost_pushes import LostOfServer, LostPushes
from shoal.master.ranges import Ranges, minus, overlap, union
from shoal.master.spans import Interval
from shoal.master.work import Span, Task


@dataclass
class Lease:
    """A training task as one worker had it. Heads and ranges are records of its span, from 0.

    order: rises from lease to lease. before: head of the span that earlier leases had trained
        in part. began, ended: when, in the job's seconds; ended is None while the worker holds
        it. last: the worker's last push of it, by sequence; 0 if not known. begun: how many
        checkpoints had been begun when it ended.
    acknowledged: head that counts as trained. head: that the servers have, which is more where
        only some records of a push are known; heads: of servers that differ; None where a server
        could not be asked.
    lost: what servers have no more. taken_back: what does not count any more, as it is trained
        again.
    """

    worker: WorkerId
    incarnation: int
    task: int
    order: int
    epoch: int
    span: Span
    before: int
    began: float
    ended: float | None = None
    last: int = 0
    begun: int = 0
    acknowledged: int = 0
    head: int = 0
    heads: dict[int, int | None] = field(default_factory=dict)
    lost: dict[int, Ranges] = field(default_factory=dict)
    taken_back: Ranges = ()

    def head_at(self, server: int) -> int:
        """The head that a server has had."""
        if self.ended is None:
            return self.acknowledged
        head = self.heads.get(server, self.head)
        return self.acknowledged if head is None else head

    def there(self, server: int) -> Ranges:
        """What a server has."""
        return minus(((0, self.head_at(server)),), self.lost.get(server, ()))

    @property
    def counted(self) -> Ranges:
        """What counts as trained by this lease."""
        return minus(((0, self.acknowledged),), self.taken_back)

    def lacked(self, servers: int) -> Ranges:
        """What counts and some of so many servers lacks."""
        lacking = (minus(self.counted, self.there(server)) for server in range(servers))
        return union(*lacking)

    def lose(self, server: int, ranges: Iterable[tuple[int, int]]) -> None:
        """A server has these no more."""
        lost = union(self.lost.get(server, ()), ranges)
        if lost:
            self.lost[server] = lost


@dataclass(frozen=True)
class Piece:
    """Records that are to be trained again, which counted as trained.

    repeated: so many of them counted as repeated. elsewhere: some server has them still.
    """

    epoch: int
    span: Span
    repeated: int
    elsewhere: bool


@dataclass(frozen=True)
class Difference:
    """Records that a server has not as often as they count.

    kind: "lost" (it has them no more) or "repeated" (once more than counts). server: of how many
    (servers) its index is. worker: whose pushes they are; None if that is not kept. began, ended:
    of the lease, in the job's seconds.
    """

    kind: str
    server: int
    servers: int
    worker: WorkerId | None
    incarnation: int
    epoch: int
    span: Span
    began: float
    ended: float


class Copies:
    """The leases of a job with `servers` servers, and what each of these has of them.

    tracks: not with --sync, where all servers have the same updates, or the job ends.
    retrain: what a server lost is taken back, to be trained again.
    lost: pushes that each server has lost by its deaths, by its index.
    """

    def __init__(self, servers: int, *, tracks: bool, retrain: bool) -> None:
        self._servers = servers
        self._tracks = tracks
        self._retrain = retrain
        self._order = 0
        self._leases: dict[tuple[WorkerId, int], dict[int, Lease]] = {}
        self._open: dict[int, Lease] = {}
        self._acknowledged: dict[tuple[WorkerId, int], int] = {}
        self._fenced: dict[tuple[WorkerId, int], tuple[int, ...]] = {}
        # Of servers that were started again: what they had then, and who has met them since.
        self._base: dict[int, dict[WorkerId, LastPush]] = {}
        self._met: dict[int, set[tuple[WorkerId, int]]] = {}
        # How many checkpoints were begun, and by number, how many had been with this one.
        self._begun = 0
        self._begun_with: dict[int, int] = {}
        # Of leases that every checkpoint has which can be restored: what counts of them, by epoch
        # and source, the last of each worker's pushes that each server has, and where they differ.
        self._settled: dict[tuple[int, str], Ranges] = {}
        self._settled_upto: dict[int, dict[WorkerId, tuple[int, int]]] = {}
        self._differences: list[Difference] = []
        self.lost: dict[int, LostOfServer] = {}

    # ------------------------------------------------------------ what is acknowledged

    def begun(self, worker: WorkerId, incarnation: int, task: Task, now: float) -> None:
        """A worker has leased a training task."""
        if not self._tracks:
            return
        assert task.span is not None
        self._order += 1
        lease = Lease(
            worker,
            incarnation,
            task.id,
            self._order,
            task.epoch,
            task.span,
            task.trained_before,
            now,
        )
        self._open[task.id] = lease
        self._leases.setdefault((worker, incarnation), {})[task.id] = lease

    def progressed(self, task_id: int, done: int) -> None:
        """All servers have acknowledged the first records of a leased task."""
        if (lease := self._open.get(task_id)) is not None:
            lease.acknowledged = max(lease.acknowledged, min(done, len(lease.span)))

    def acknowledged(self, worker: WorkerId, incarnation: int, sequence: int) -> None:
        """All servers have acknowledged a worker's pushes up to this one."""
        if sequence > self.told(worker, incarnation):
            self._acknowledged[worker, incarnation] = sequence

    def told(self, worker: WorkerId, incarnation: int) -> int:
        """The last push of a worker that all servers are known to have acknowledged."""
        return self._acknowledged.get((worker, incarnation), 0)

    def reported(self, task_id: int, done: int, touched: int, now: float) -> list[Piece]:
        """A lease has ended by its worker's report: so many records are on all servers.

        touched: head that may be on all of them. Returns what is to be trained again.
        """
        lease = self._open.pop(task_id, None)
        if lease is None:
            return []
        self._end(lease, done, now)
        lease.head = max(lease.acknowledged, min(touched, len(lease.span)))
        lease.last = self.told(lease.worker, lease.incarnation)
        # A worker that has not met a server since its restart has pushed nothing to it since.
        for server, base in self._base.items():
            if (lease.worker, lease.incarnation) not in self._met[server]:
                reached = self._reached(lease, base.get(lease.worker), server)
                lease.lose(server, ((reached, lease.head_at(server)),))
        return self._taken_back([lease])

    def fenced(
        self,
        worker: WorkerId,
        incarnation: int,
        pushes: Sequence[AppliedPush | None],
        now: float,
    ) -> list[Piece]:
        """A worker's incarnation is over; what each server has of it last.

        Returns what is to be trained again, beside the rest of its lease.
        """
        key = worker, incarnation
        self._fenced[key] = tuple(0 if push is None else push.sequence for push in pushes)
        leases = [lease for lease in self._leases.get(key, {}).values() if lease.ended is None]
        for lease in leases:
            del self._open[lease.task]
            heads = [_head(lease, push) for push in pushes]
            known = [lease.acknowledged if head is None else head for head in heads]
            # As applied_heads: what was acknowledged counts, whatever the servers say now, and so
            # does what all of them have, if it is known which records that is.
            common = [lease.acknowledged if push is None else _done(lease, push) for push in pushes]
            self._end(lease, min(common, default=0), now)
            lease.head = lease.acknowledged
            lease.heads = {
                server: head
                for server, head in enumerate(heads)
                if head is None or known[server] != lease.head
            }
        return self._taken_back(leases)

    def _end(self, lease: Lease, done: int, now: float) -> None:
        lease.acknowledged = max(lease.acknowledged, min(done, len(lease.span)))
        lease.ended, lease.begun = now, self._begun

    # ------------------------------------------------------------ what servers have

    def restored(
        self, server: int, has: Iterable[LastPush], *, meets: bool
    ) -> tuple[int, list[Piece]]:
        """A server was started again, and has these pushes, the last of each worker.

        meets: workers that it served before go on, and tell what they had been told.
        Returns how many acknowledged pushes it has lost that were not known to be lost, and what
        is to be trained again.
        """
        last = {push.worker: push for push in has}
        self._base.pop(server, None)
        self._met.pop(server, None)
        if meets:
            self._base[server], self._met[server] = last, set()
        return self.compared(server, last.values())

    def compared(self, server: int, has: Iterable[LastPush]) -> tuple[int, list[Piece]]:
        """A server has these pushes, the last of each worker. Returns as `restored`."""
        if not self._tracks:
            return 0, []
        last = {push.worker: push for push in has}
        leases = list(self._all())
        for lease in leases:
            push = last.get(lease.worker)
            reached = self._reached(lease, push, server)
            if lease.ended is not None and lease.heads.get(server, 0) is None:
                lease.heads[server] = max(reached, lease.acknowledged)
            lease.lose(server, ((reached, lease.head_at(server)),))
        lost = []
        for key in self._acknowledged.keys() | self._fenced.keys():
            worker, incarnation = key
            fenced = self._fenced.get(key, ())[server : server + 1]
            upto = max((self.told(*key), *fenced))
            after = _sequence(last.get(worker), incarnation)
            if after is not None and upto > after:
                lost.append(LostPushes(worker, incarnation, after, upto))
        settled = self._settled_lost(server, last)
        return self._note_lost(server, lost), settled + self._taken_back(leases)

    def met(self, server: int, told: LastPush) -> tuple[int, list[Piece]]:
        """A worker meets a server that was started again, and had been told `told` before.

        Returns as `restored`.
        """
        base = self._base.get(server)
        key = told.worker, told.incarnation
        if base is None or key in self._met[server]:
            return 0, []
        self._met[server].add(key)
        has = base.get(told.worker)
        after = _sequence(has, told.incarnation)
        if after is None or told.sequence <= after:
            return 0, []
        leases = list(self._leases.get(key, {}).values())
        for lease in leases:
            had = self._reached(lease, told, server)
            if told.task == lease.task and not told.records_done:
                had = len(lease.span)  # which records the pushes were made of is not known
            lease.lose(server, ((self._reached(lease, has, server), had),))
        lost = [LostPushes(told.worker, told.incarnation, after, told.sequence)]
        return self._note_lost(server, lost), self._taken_back(leases)

    def _note_lost(self, server: int, lost: Sequence[LostPushes]) -> int:
        return self.lost.setdefault(server, LostOfServer()).add(lost)

    def _reached(self, lease: Lease, push: LastPush | None, server: int) -> int:
        """How much of a lease is on a server whose last push of its worker is `push`."""
        if push is None or push.incarnation < lease.incarnation:
            return 0
        key = lease.worker, lease.incarnation
        if push.incarnation > lease.incarnation:
            # A successor has pushed: all of the lease's pushes are there that the server ever got.
            return lease.head_at(server)
        if 0 < self._last(lease, server) <= push.sequence:
            return lease.head_at(server)
        if push.task == lease.task:
            return _done(lease, push)
        at = self._leases[key].get(push.task)
        return lease.head_at(server) if at is not None and at.order > lease.order else 0

    def _last(self, lease: Lease, server: int) -> int:
        """The last push of a lease that a server had, by sequence, or a later one; 0: unknown."""
        fenced = self._fenced.get((lease.worker, lease.incarnation), ())
        return lease.last or (fenced[server] if server < len(fenced) else 0)

    def _all(self) -> Iterator[Lease]:
        for leases in self._leases.values():
            yield from leases.values()

    # ------------------------------------------------------------ what follows

    def _taken_back(self, leases: Iterable[Lease]) -> list[Piece]:
        """Take back what counts and some server lacks, of those that have ended."""
        pieces: list[Piece] = []
        for lease in leases:
            if not self._retrain or lease.ended is None:
                continue
            if not (missing := lease.lacked(self._servers)):
                continue
            there = union(*(lease.there(server) for server in range(self._servers)))
            lease.taken_back = union(lease.taken_back, missing)
            for elsewhere, ranges in (
                (True, overlap(missing, there)),
                (False, minus(missing, there)),
            ):
                for start, end in ranges:
                    repeated = max(0, min(end, lease.before) - start)
                    span = _part(lease.span, start, end)
                    pieces.append(Piece(lease.epoch, span, repeated, elsewhere))
        return pieces

    def _settled_lost(self, server: int, has: Mapping[WorkerId, LastPush]) -> list[Piece]:
        """What a server lacks of what every checkpoint has: all of it, or nothing."""
        reached = {worker: (push.incarnation, push.sequence) for worker, push in has.items()}
        settled_upto = self._settled_upto.get(server, {})
        if all(reached.get(each, (0, 0)) >= upto for each, upto in settled_upto.items()):
            return []
        del self._settled_upto[server]
        settled = [
            (epoch, Span(source, start, end))
            for (epoch, source), ranges in self._settled.items()
            for start, end in ranges
        ]
        self._differences = [
            each for each in self._differences if (each.server, each.kind) != (server, "repeated")
        ]
        if not self._retrain:
            self._differ("lost", [server], settled)
            return []
        self._settled.clear()
        others = [each for each in range(self._servers) if each != server]
        self._differ("repeated", others, settled)
        return [Piece(epoch, span, 0, bool(others)) for epoch, span in settled]

    def _differ(
        self, kind: str, servers: Iterable[int], settled: Iterable[tuple[int, Span]]
    ) -> None:
        for epoch, span in settled:
            for server in servers:
                where = server, self._servers, None, 0, epoch, span
                self._differences.append(Difference(kind, *where, 0.0, 0.0))

    # ------------------------------------------------------------ checkpoints

    def checkpoint_begun(self) -> None:
        """The servers are about to be asked to fix what they hold."""
        self._begun += 1

    def checkpoint_taken(self, number: int, kept: Iterable[int]) -> None:
        """The checkpoint begun last is complete; these can be restored.

        What had ended before the oldest of them was begun, is in all of them.
        """
        self._begun_with[number] = self._begun
        kept = list(kept)
        self._begun_with = {n: begun for n, begun in self._begun_with.items() if n in kept}
        limit = self._begun_with.get(min(kept), 0)
        self._settle(
            [each for each in self._all() if each.ended is not None and each.begun < limit]
        )

    def _settle(self, leases: Sequence[Lease]) -> None:
        settled: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for lease in leases:
            del self._leases[lease.worker, lease.incarnation][lease.task]
            self._differences += _differences(lease, self._servers)
            at = lease.span.start
            spans = [(at + start, at + end) for start, end in lease.counted]
            settled.setdefault((lease.epoch, lease.span.source), []).extend(spans)
            for server in range(self._servers):
                there = lease.there(server)
                if there:
                    whole = there[-1][1] == lease.head_at(server)
                    upto = self._settled_upto.setdefault(server, {})
                    last = lease.incarnation, self._last(lease, server) if whole else 1
                    upto[lease.worker] = max(upto.get(lease.worker, (0, 0)), last)
        for key, ranges in settled.items():
            self._settled[key] = union(self._settled.get(key, ()), ranges)
        self._leases = {key: held for key, held in self._leases.items() if held}

    # ------------------------------------------------------------ resuming

    def in_shares(self, shares: Sequence[Iterable[LastPush]]) -> list[Interval]:
        """What of the training records is in a checkpoint, as "trained" and "touched".

        shares: the last push of each worker that each server's share has.
        """
        found = [
            Interval("trained", epoch, Span(source, start, end))
            for (epoch, source), ranges in self._settled.items()
            for start, end in ranges
        ]
        repeated = {
            (each.epoch, each.span) for each in self._differences if each.kind == "repeated"
        }
        found += [Interval("touched", epoch, span) for epoch, span in sorted(repeated, key=str)]
        for lease in self._all():
            there, counted = self._in_shares(lease, shares)
            for kind, ranges in (("trained", counted), ("touched", minus(union(*there), counted))):
                found += [
                    Interval(kind, lease.epoch, _part(lease.span, start, end))
                    for start, end in ranges
                ]
        return found

    def _in_shares(
        self, lease: Lease, shares: Sequence[Iterable[LastPush]]
    ) -> tuple[list[Ranges], Ranges]:
        """What of a lease each share may have, and what counts as trained with them."""
        there: list[Ranges] = []
        common = lease.counted if lease.ended is not None else ((0, len(lease.span)),)
        for server, share in enumerate(shares):
            push = next((each for each in share if each.worker == lease.worker), None)
            certain = head = self._reached(lease, push, server)
            if push is not None and push.incarnation == lease.incarnation and not head:
                head = _head(lease, AppliedPush(push.sequence, push.task, push.records_done)) or 0
            lost = lease.lost.get(server, ())
            there.append(minus(((0, head),), lost))
            common = overlap(common, minus(((0, certain),), lost))
        return there, common

    def resumed(
        self,
        servers: int,
        shares: Sequence[Iterable[LastPush]],
        in_model: Iterable[Interval],
        now: float,
    ) -> None:
        """The job goes on with so many new servers, from the model that these shares are.

        in_model: what is in it. shares: none of a new model, and with --sync, where in_model
        says all.
        """
        self._base, self._met = {}, {}
        self._acknowledged = {}
        if not shares:
            self._servers = servers
            self._leases, self._open, self._fenced = {}, {}, {}
            self._settled, self._settled_upto, self._differences = {}, {}, []
            for each in in_model:
                if each.kind == "trained":
                    key = each.epoch, each.span.source
                    spans = ((each.span.start, each.span.end),)
                    self._settled[key] = union(self._settled.get(key, ()), spans)
            return
        shares = [list(share) for share in shares]
        for lease in self._all():
            self._only(lease, *self._in_shares(lease, shares), now)
        last = [{push.worker: push for push in share} for share in shares]
        for (worker, incarnation), before in self._fenced.items():
            kept = (_sequence(has.get(worker), incarnation) for has in last)
            self._fenced[worker, incarnation] = tuple(
                number if there is None else there
                for number, there in zip(before, kept, strict=False)
            )
        self._open = {}
        if servers != self._servers:
            # No push counts as applied there: what the new servers have, these leases do not say.
            self._settle(list(self._all()))
            self._servers, self._fenced, self._settled_upto = servers, {}, {}

    def _only(self, lease: Lease, there: list[Ranges], counted: Ranges, now: float) -> None:
        """Of a lease servers have just this, and this counts as trained."""
        heads = [ranges[-1][1] if ranges else 0 for ranges in there]
        if lease.ended is None:
            lease.ended, lease.begun = now, self._begun
            lease.acknowledged = lease.head = counted[-1][1] if counted else 0
        lease.taken_back = minus(((0, lease.acknowledged),), counted)
        for server, (head, ranges) in enumerate(zip(heads, there, strict=True)):
            head = max(head, lease.acknowledged)
            lease.heads[server] = head
            lease.lost[server] = minus(((0, head),), ranges)

    # ------------------------------------------------------------ the other end of it

    def differences(self) -> list[Difference]:
        """Where servers have records not as often as they count, at this moment."""
        open_now = [each for lease in self._all() for each in _differences(lease, self._servers)]
        return [*self._differences, *open_now]

    @property
    def lacked(self) -> dict[int, int]:
        """Records that count and a server lacks, by server; of leases that have ended."""
        lacked: dict[int, int] = {}
        for each in self.differences():
            if each.kind == "lost":
                lacked[each.server] = lacked.get(each.server, 0) + len(each.span)
        return lacked


def _done(lease: Lease, push: AppliedPush | LastPush) -> int:
    """Head of a lease that a server has for certain, whose last push of its worker this is."""
    if not push.sequence or push.task != lease.task:
        return 0
    return min(push.records_done, len(lease.span))


def _head(lease: Lease, push: AppliedPush | None) -> int | None:
    """Head of a lease that a server may have; None if it could not be asked."""
    if push is None:
        return None
    # A feed that shuffles says 0 until it is through: any record may be in a push.
    touched = push.sequence and push.task == lease.task
    return _done(lease, push) or (len(lease.span) if touched else 0)


def _sequence(push: LastPush | None, incarnation: int) -> int | None:
    """The last push of a worker's incarnation that a server has; None for all there were."""
    if push is None or push.incarnation < incarnation:
        return 0
    return push.sequence if push.incarnation == incarnation else None


def _part(span: Span, start: int, end: int) -> Span:
    return Span(span.source, span.start + start, span.start + end)


def _differences(lease: Lease, servers: int) -> Iterator[Difference]:
    counted = lease.counted
    same = lease.ended is None or lease.head == lease.acknowledged
    if same and not lease.lost and not lease.heads and not lease.taken_back:
        return
    ended = lease.began if lease.ended is None else lease.ended
    for server in range(servers):
        there = lease.there(server)
        for kind, ranges in (("lost", minus(counted, there)), ("repeated", minus(there, counted))):
            for start, end in ranges:
                span = _part(lease.span, start, end)
                who = lease.worker, lease.incarnation, lease.epoch
                yield Difference(kind, server, servers, *who, span, lease.began, ended)
