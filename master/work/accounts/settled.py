"""Leases that every checkpoint has which can be restored, no longer one by one but in sum.

Owns which records count by them, up to which push each server has them, and where servers differ
from that. Which leases these are is copies.py's. No I/O, no clock.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shoal.master.work.accounts.applied import LastPush
from shoal.master.work.accounts.lease_copies import (
    UNKNOWN,
    Difference,
    Lease,
    Piece,
    differences_of,
)
from shoal.master.work.accounts.packed_ranges import EMPTY, Packed, joined, ranges_of
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.ids import WorkerId
from shoal.master.work.units import Span


@dataclass(frozen=True)
class _Before:
    """The state before a server lost everything that is settled.

    since: the number of checkpoints that had been begun then. counted, upto, base: the values of
    that server, as in Settled. gone, come: the differences that the loss ended and made.
    """

    since: int
    server: int
    counted: dict[tuple[int, str], Packed]
    upto: dict[WorkerId, tuple[int, int]]
    base: int
    gone: tuple[Difference, ...]
    come: tuple[Difference, ...]


class Settled:
    """The records that count by settled leases, and the differences of the servers from them.

    differences: records that some server has more or less often than they count.
    """

    def __init__(self) -> None:
        # By epoch and source, packed.
        self._counted: dict[tuple[int, str], Packed] = {}
        # By server, the last push of each worker, with its incarnation.
        self._upto: dict[int, dict[WorkerId, tuple[int, int]]] = {}
        # By server, the checkpoint that it has to stand on to have what no push tells of.
        self._base: dict[int, int] = {}
        self.differences: list[Difference] = []
        # Of losses that a checkpoint which is kept was before, in their order.
        self._before: list[_Before] = []

    def add(self, leases: Iterable[Lease], servers: int, last: Callable[[Lease, int], int]) -> None:
        """Settle these leases of a job with so many servers.

        last: the last push of a lease that a server had, or a later one; 0 for none; or UNKNOWN.
        """
        added: dict[tuple[int, str], array[int]] = {}
        for lease in leases:
            self.differences += differences_of(lease, servers)
            at = lease.span.start
            counted = added.setdefault((lease.task.epoch, lease.span.source), array("q"))
            for start, end in lease.counted:
                counted.extend((at + start, at + end))
            for server in range(servers):
                there = lease.there(server)
                if there:
                    whole = there[-1][1] == lease.head_at(server)
                    # Of one that ended as the job was resumed the last push is not known.
                    pushed = last(lease, server) if whole else UNKNOWN
                    if pushed:
                        upto = self._upto.setdefault(server, {})
                        reached = lease.incarnation, max(pushed, 1)
                        upto[lease.worker] = max(upto.get(lease.worker, (0, 0)), reached)
        self._count(added)

    def _count(self, added: Mapping[tuple[int, str], array[int]]) -> None:
        for key, bounds in added.items():
            ranges = np.frombuffer(bounds, np.int64).reshape(-1, 2)
            self._counted[key] = joined(self._counted.get(key, EMPTY), ranges)

    def lost(
        self,
        server: int,
        servers: int,
        has: Mapping[WorkerId, LastPush],
        checkpoint: int,
        since: int,
        *,
        retrain: bool,
    ) -> list[Piece]:
        """A server of so many has these pushes: all that is settled, or nothing of it.

        checkpoint: that it stands on, by number; 0 for none. since: how many checkpoints had been
        begun. Returns what is to be trained again, with `retrain`.
        """
        reached = {worker: (push.incarnation, push.sequence) for worker, push in has.items()}
        upto, base = self._upto.get(server, {}), self._base.get(server, 0)
        there = all(reached.get(each, (0, 0)) >= push for each, push in upto.items())
        if there and checkpoint >= base:
            return []
        self._upto.pop(server, None)
        self._base.pop(server, None)
        before, counted = dict(self._counted), self._spans()
        # It has nothing once more than counts, and lacks all that counts, once.
        parts = [(each, _elsewhere(each, server, servers)) for each in self.differences]
        gone = [each for each, left in parts if left != [each]]
        self.differences = [each for each, left in parts if left == [each]]
        kept = len(self.differences)
        self.differences += [part for each, left in parts if left != [each] for part in left]
        others = [each for each in range(servers) if each != server]
        if retrain:
            self._counted.clear()
            self._differ("repeated", others, servers, counted)
        else:
            self._differ("lost", [server], servers, counted)
        come = tuple(self.differences[kept:])
        self._before.append(_Before(since, server, before, upto, base, tuple(gone), come))
        return [Piece(epoch, span, 0, bool(others)) for epoch, span in counted] if retrain else []

    def _spans(self) -> list[tuple[int, Span]]:
        return [
            (epoch, Span(source, start, end))
            for (epoch, source), packed in self._counted.items()
            for start, end in ranges_of(packed)
        ]

    def _differ(
        self, kind: str, of: Iterable[int], servers: int, counted: Iterable[tuple[int, Span]]
    ) -> None:
        for epoch, span in counted:
            for server in of:
                where = server, servers, None, 0, epoch, span
                self.differences.append(Difference(kind, *where, 0.0, 0.0))

    # ------------------------------------------------------------ resuming

    def forget(self, before: int) -> None:
        """No checkpoint is kept that was begun before, when fewer had been begun."""
        self._before = [each for each in self._before if each.since >= before]

    def at(self, before: float) -> Settled:
        """The same without what servers lost when so many checkpoints had been begun, or more."""
        found = Settled()
        found._counted, found._upto = dict(self._counted), dict(self._upto)
        found._base = dict(self._base)
        found.differences = list(self.differences)
        for each in reversed(self._before):
            if each.since < before:
                found._before.insert(0, each)
                continue
            for key, packed in each.counted.items():
                found._counted[key] = joined(found._counted.get(key, EMPTY), ranges_of(packed))
            now = found._upto.get(each.server, {})
            names = now.keys() | each.upto.keys()
            none = (0, 0)
            found._upto[each.server] = {
                name: max(now.get(name, none), each.upto.get(name, none)) for name in names
            }
            if each.base:
                found._base[each.server] = each.base
            for difference in each.come:
                found.differences.remove(difference)
            found.differences += each.gone
        return found

    def intervals(self) -> list[Interval]:
        """Return the training records in every checkpoint, as "trained" and "touched" intervals."""
        found = [Interval("trained", epoch, span) for epoch, span in self._spans()]
        repeated = {(each.epoch, each.span) for each in self.differences if each.kind == "repeated"}
        return found + [
            Interval("touched", epoch, span) for epoch, span in sorted(repeated, key=str)
        ]

    def begin(self, in_model: Iterable[Interval]) -> None:
        """The model is one that has this, and no push of this job."""
        self._counted, self._upto, self.differences, self._before = {}, {}, [], []
        self._base = {}
        added: dict[tuple[int, str], array[int]] = {}
        for each in in_model:
            if each.kind == "trained":
                key = each.epoch, each.span.source
                added.setdefault(key, array("q")).extend((each.span.start, each.span.end))
        self._count(added)

    def stand_on(self, checkpoint: int, servers: int) -> None:
        """All of it is in this checkpoint, and no push counts as applied by the new servers."""
        self._upto, self._before = {}, []
        self._base = dict.fromkeys(range(servers), checkpoint)


def _elsewhere(difference: Difference, server: int, servers: int) -> list[Difference]:
    """Return the part of a difference that is not on this server, among `servers` servers.

    The difference may be of another number of servers.
    """
    if difference.servers == servers:
        return [] if difference.server == server else [difference]
    parts = math.lcm(difference.servers, servers)
    ours, theirs = (
        range(index * parts // count, (index + 1) * parts // count)
        for index, count in ((server, servers), (difference.server, difference.servers))
    )
    left = [part for part in theirs if part not in ours]
    if len(left) == len(theirs):
        return [difference]
    return [replace(difference, server=part, servers=parts) for part in left]
