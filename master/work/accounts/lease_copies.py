"""A training task as one worker holds or held it, and what each server has of it.

Owns the arithmetic of one lease: what counts, what a server has, lacks, or has once more. What
becomes known of leases, and from whom, is copies.py's. No I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.master.work.accounts.applied import LastPush, possible_head
from shoal.master.work.accounts.ranges import Ranges, minus, overlap, union
from shoal.master.work.ids import WorkerId
from shoal.master.work.units import Span, Task

UNKNOWN = -1
"""In the place of a push's sequence number."""

_NONE: Mapping[int, int | None] = {}
"""Of nearly every lease, of which there are very many: one for all of them, never changed."""


@dataclass(slots=True)
class Lease:
    """A training task as a worker holds or held it. Heads and ranges are of its records, from 0.

    order: rises from lease to lease. began, ended: when, in the job's seconds; ended is None while
        the worker holds it. told: the worker's last push before it, by sequence, or an earlier
        one. last: the worker's last push of it; 0 if it made none, as a feed may leave no record;
        UNKNOWN. begun: how many checkpoints had been begun when it ended.
    acknowledged: head that counts as trained. head: that the servers have, which is more where
        only some records of a push are known; heads: of servers that differ; None where a server
        could not be asked.
    losses: what servers have no more, each with its server and since when. takings: what does not
        count any more, as it is trained again, each since when. That is so many checkpoints had
        been begun: one that was begun later lacks it, too, and an earlier one has it.
    servers: of how many the servers are that differ, once the job has others; until then 0.
    """

    task: Task
    worker: WorkerId
    incarnation: int
    order: int = 0
    began: float = 0.0
    ended: float | None = None
    told: int = 0
    last: int = UNKNOWN
    begun: int = 0
    acknowledged: int = 0
    head: int = 0
    heads: Mapping[int, int | None] = field(default_factory=lambda: _NONE)
    losses: tuple[tuple[int, int, Ranges], ...] = ()
    takings: tuple[tuple[int, Ranges], ...] = ()
    servers: int = 0

    @property
    def span(self) -> Span:
        """The records of the task."""
        assert self.task.span is not None
        return self.task.span

    @property
    def whole(self) -> bool:
        """True if the lease has ended, all of it counts, and every server has all of it."""
        all_there = self.acknowledged == self.head == len(self.span) and not self.heads
        return self.ended is not None and all_there and not self.losses and not self.takings

    def head_at(self, server: int) -> int:
        """The head that a server has had."""
        if self.ended is None:
            return self.acknowledged
        head = self.heads.get(server, self.head)
        return self.acknowledged if head is None else head

    def there(self, server: int) -> Ranges:
        """Return the records that a server has."""
        head = self.head_at(server)
        if not self.losses:
            return ((0, head),) if head else ()
        return minus(((0, head),), self.lost(server))

    def lost(self, server: int, before: float = math.inf) -> Ranges:
        """The records that a server lost when fewer than `before` checkpoints had been begun."""
        if not self.losses:
            return ()
        return union(*(gone for since, at, gone in self.losses if at == server and since < before))

    @property
    def counted(self) -> Ranges:
        """The records that count as trained by this lease."""
        return self.counted_before(math.inf)

    def counted_before(self, before: float) -> Ranges:
        """Return the acknowledged records that are not taken back.

        before: ignore records taken back when at least so many checkpoints had been begun.
        """
        if not self.takings:  # of nearly every lease
            return ((0, self.acknowledged),) if self.acknowledged else ()
        taken = (ranges for since, ranges in self.takings if since < before)
        return minus(((0, self.acknowledged),), union(*taken))

    def final(self, before: int) -> bool:
        """True if all losses and take-backs came before so many checkpoints had been begun."""
        lost = all(since < before for since, _, _ in self.losses)
        return lost and all(since < before for since, _ in self.takings)

    def lacked(self, servers: int) -> Ranges:
        """Return the records that count and that at least one of the servers lacks."""
        lacking = (minus(self.counted, self.there(server)) for server in range(servers))
        return union(*lacking)

    def lose(self, server: int, ranges: Iterable[tuple[int, int]], since: int) -> None:
        """A server has these no more, since so many checkpoints had been begun."""
        lost = minus(union(ranges), self.lost(server))
        if lost:
            self.losses = (*self.losses, (since, server, lost))
            self.differ(server + 1)

    def differ(self, servers: int) -> None:
        """Refer to so many servers, at least, where it already refers to others than there are."""
        self.servers = self.servers and max(self.servers, servers)

    def take_back(self, servers: int, since: int) -> list[Piece]:
        """Stop counting the records that at least one of the servers lacks; return their pieces."""
        servers = max(servers, self.servers)  # also those that have left since
        if not (missing := self.lacked(servers)):
            return []
        there = union(*(self.there(server) for server in range(servers)))
        self.takings = (*self.takings, (since, missing))
        pieces = []
        for elsewhere, ranges in ((True, overlap(missing, there)), (False, minus(missing, there))):
            for start, end in ranges:
                repeated = max(0, min(end, self.task.trained_before) - start)
                span = part_of(self.span, start, end)
                pieces.append(Piece(self.task.epoch, span, repeated, elsewhere))
        return pieces

    def only(self, heads: Sequence[Head], before: float, now: float) -> None:
        """Each server has just so much of it; it ends now if it has not ended.

        before: as in `in_shards`.
        """
        self.losses = tuple(each for each in self.losses if each[0] < before)
        self.takings = tuple(each for each in self.takings if each[0] < before)
        had = [self.head_at(server) for server in range(len(heads))]
        if self.ended is None:
            # What a server lost, it had: an older checkpoint may have it still.
            had = [_end(self.lost(server)) for server in range(len(heads))]
            self.ended = now
            self.acknowledged = min(
                max(head.certain, lost) for head, lost in zip(heads, had, strict=True)
            )
            self.head = self.acknowledged
        there = (max(head.possible, had[server]) for server, head in enumerate(heads))
        left = {server: each for server, each in self.heads.items() if server >= len(heads)}
        own = {server: each for server, each in enumerate(there) if each != self.head}
        self.heads = left | own
        self.differ(len(heads))
        for since, _, lost in self.losses:
            self._take_back(since, overlap(self.counted, lost))
        # What nobody has lost and is not in this checkpoint, is in no older one.
        for server, head in enumerate(heads):
            self._take_back(0, minus(self.counted, ((0, head.certain),)))
            self.lose(server, ((head.possible, self.head_at(server)),), 0)
        # Rows of servers that have left are in these shards.
        most = max(head.possible for head in heads)
        for server in range(len(heads), self.servers):
            if server not in left:
                self.lose(server, ((most, self.head_at(server)),), 0)

    def _take_back(self, since: int, ranges: Ranges) -> None:
        if ranges:
            self.takings = (*self.takings, (since, ranges))


def _end(ranges: Ranges) -> int:
    return ranges[-1][1] if ranges else 0


@dataclass(frozen=True)
class Head:
    """The number of a lease's first records in a shard of a checkpoint, lost records included."""

    certain: int
    possible: int


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


def heads_in(
    lease: Lease,
    shards: Sequence[Mapping[WorkerId, LastPush]],
    reached: Callable[[Lease, LastPush | None, int], int],
) -> list[Head]:
    """Return the head of a lease in each shard of a checkpoint.

    shards: the last push of each worker in each shard. reached: returns the head of the lease that
    is certainly on a server, from the server's last push of the lease's worker.
    """
    heads = []
    for server, shard in enumerate(shards):
        push = shard.get(lease.worker)
        certain = head = reached(lease, push, server)
        if push is not None and push.incarnation == lease.incarnation and not head:
            head = possible_head(lease.task, push) or 0
        heads.append(Head(certain, head))
    return heads


def in_shards(lease: Lease, heads: Sequence[Head], before: float) -> tuple[list[Ranges], Ranges]:
    """Return the records of a lease that each shard may have, and those that count as trained.

    before: the number of checkpoints begun, with this one; it still has what servers lost later.
    """
    there: list[Ranges] = []
    whole = ((0, len(lease.span)),)
    common = lease.counted_before(before) if lease.ended is not None else whole
    for server, head in enumerate(heads):
        lost = lease.lost(server, before)
        there.append(minus(((0, head.possible),), lost))
        common = overlap(common, minus(((0, head.certain),), lost))
    for server in range(len(heads), lease.servers):  # their rows are in these shards
        lost = lease.lost(server, before)
        there.append(minus(((0, lease.heads.get(server) or 0),), lost))
        common = minus(common, lost)
    return there, common


def part_of(span: Span, start: int, end: int) -> Span:
    """Records `start` to `end` of a span, counted from its start."""
    return Span(span.source, span.start + start, span.start + end)


def differences_of(lease: Lease, servers: int) -> Iterator[Difference]:
    """Iterate over the records of a lease that a server has more or less often than they count.

    servers: of the job now. Rows that have moved since are as they were where they were.
    """
    counted, servers = lease.counted, lease.servers or servers
    same = lease.ended is None or lease.head == lease.acknowledged
    if same and not lease.losses and not lease.heads and not lease.takings:
        return
    ended = lease.began if lease.ended is None else lease.ended
    for server in range(servers):
        there = lease.there(server)
        for kind, ranges in (("lost", minus(counted, there)), ("repeated", minus(there, counted))):
            for start, end in ranges:
                span = part_of(lease.span, start, end)
                who = lease.worker, lease.incarnation, lease.task.epoch
                yield Difference(kind, server, servers, *who, span, lease.began, ended)
