"""The leases of which a server could still have lost something, in as few bytes as can be.

Between two checkpoints there may be hundreds of thousands. Nearly all of them have ended with
everything acknowledged, and no server has lost any of it: these are packed, a few hundred at a
time, and take about twenty bytes each instead of four hundred.

Owns where a lease is kept. What becomes of one is lease_copies.py's and copies.py's. No I/O, no
clock.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from shoal.master.work.accounts.lease_copies import Lease
from shoal.master.work.ids import WorkerId
from shoal.master.work.units import Span, Task
from shoal.proto import shoal_pb2 as pb

PACKED_TOGETHER = 512
"""Leases: enough for columns that are compressed well, and few enough to be looked through."""

_LEVEL = 1

Key = tuple[WorkerId, int]
"""A worker's incarnation."""


@dataclass(frozen=True, slots=True)
class _Pack:
    """Leases that ended when so many checkpoints had been begun.

    columns: as `_columns` makes them, of so many leases. sources: names, by their place.
    """

    begun: int
    count: int
    sources: tuple[str, ...]
    columns: bytes

    def leases(self) -> list[Lease]:
        rows = self._rows()
        times = np.ascontiguousarray(rows[-2:]).view(np.float64).tolist()
        found = []
        for index, each in enumerate(rows[:-2].T.tolist()):
            worker, incarnation, task, order, epoch, source, start, end, before, last = each
            span = Span(self.sources[source], start, end)
            records = end - start
            lease = Lease(
                Task(task, pb.TRAIN, span, epoch, trained_before=before),
                WorkerId(worker),
                incarnation,
                order,
                began=times[0][index],
                ended=times[1][index],
                last=last,
                begun=self.begun,
                acknowledged=records,
                head=records,
            )
            found.append(lease)
        return found

    def order_of(self, key: Key, task: int) -> int:
        """The order of a lease of a worker; 0 if it is not here."""
        workers, incarnations, tasks, orders = self._rows()[:4]
        at = (tasks == task) & (workers == key[0].index) & (incarnations == key[1])
        return int(orders[at][0]) if at.any() else 0

    def _rows(self) -> npt.NDArray[np.int64]:
        content = np.frombuffer(zlib.decompress(self.columns), np.int64)
        return np.cumsum(content.reshape(-1, self.count), axis=1)


def _packs(leases: Iterable[Lease]) -> Iterator[_Pack]:
    for begun, together in groupby(leases, lambda lease: lease.begun):
        group = list(together)
        sources = tuple(dict.fromkeys(lease.span.source for lease in group))
        yield _Pack(begun, len(group), sources, _columns(group, sources))


def _columns(leases: Sequence[Lease], sources: Sequence[str]) -> bytes:
    """Whole numbers and then times, each as its difference to that of the lease before."""
    numbers = [
        (
            lease.worker.index,
            lease.incarnation,
            lease.task.id,
            lease.order,
            lease.task.epoch,
            sources.index(lease.span.source),
            lease.span.start,
            lease.span.end,
            lease.task.trained_before,
            lease.last,
        )
        for lease in leases
    ]
    times = np.array([(lease.began, lease.ended) for lease in leases], np.float64)
    bits = np.ascontiguousarray(times.T).view(np.int64)
    rows = np.concatenate([np.array(numbers, np.int64).T, bits])
    return zlib.compress(np.diff(rows, axis=1, prepend=np.int64(0)).tobytes(), _LEVEL)


class LeaseBook:
    """Leases by worker and task, each known once."""

    def __init__(self) -> None:
        self._loose: dict[Key, dict[int, Lease]] = {}
        self._ended: list[Lease] = []  # of these, whole ones that are to be packed together
        self._packs: list[_Pack] = []
        self._sought: tuple[Key, int, int] | None = None

    def add(self, lease: Lease) -> None:
        """A lease begins."""
        self._loose.setdefault((lease.worker, lease.incarnation), {})[lease.task.id] = lease

    def ended(self, lease: Lease) -> None:
        """A lease has ended, and is not changed any more but through `changing`."""
        if lease.whole:
            self._ended.append(lease)
            if len(self._ended) >= PACKED_TOGETHER:
                self._pack()

    def _pack(self) -> None:
        packed = [lease for lease in self._ended if lease.whole]
        self._ended = []
        self._packs += _packs(packed)
        self._remove(packed)

    def _remove(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            key = lease.worker, lease.incarnation
            held = self._loose[key]
            del held[lease.task.id]
            if not held:
                del self._loose[key]
        self._sought = None

    def holds(self, key: Key) -> bool:
        """True if a lease of this worker is not packed."""
        return key in self._loose

    def open(self, key: Key) -> list[Lease]:
        """Return those that a worker holds, in the order in which they began."""
        return [each for each in self._loose.get(key, {}).values() if each.ended is None]

    def loose(self) -> Iterator[Lease]:
        """The leases that are not packed: open ones, or lacked in part by some server."""
        for leases in self._loose.values():
            yield from leases.values()

    def __iter__(self) -> Iterator[Lease]:
        """All of them, not to be changed."""
        yield from self.loose()
        for pack in self._packs:
            yield from pack.leases()

    def changing(self, of: Key | None = None) -> Iterator[Lease]:
        """All of them, or those of a worker's incarnation, each to be changed before the next.

        To be gone through to the end.
        """
        for key, leases in self._loose.items():
            if of in (None, key):
                yield from leases.values()
        kept: list[_Pack] = []
        changed: list[Lease] = []
        for pack in self._packs:
            leases_of_pack = pack.leases()
            for lease in leases_of_pack:
                if of in (None, (lease.worker, lease.incarnation)):
                    yield lease
            whole = [lease for lease in leases_of_pack if lease.whole]
            kept += [pack] if len(whole) == len(leases_of_pack) else _packs(whole)
            changed += [lease for lease in leases_of_pack if not lease.whole]
        self._packs = kept
        for lease in changed:
            self.add(lease)
        self._sought = None

    def order_of(self, key: Key, task: int) -> int:
        """The order of a lease; 0 if it is not known, or not any more."""
        lease = self._loose.get(key, {}).get(task)
        if lease is not None:
            return lease.order
        # The same is asked for again and again, of all leases that a server may have lost.
        if self._sought is None or self._sought[:2] != (key, task):
            found = (pack.order_of(key, task) for pack in self._packs)
            self._sought = key, task, next(filter(None, found), 0)
        return self._sought[2]

    def settled(self, before: int, final: Callable[[Lease], bool]) -> Iterator[Lease]:
        """Take those out that ended when fewer checkpoints had been begun, and are `final`.

        To be gone through to the end. A packed one is final.
        """
        self._pack()
        packs, self._packs = self._packs, []
        for pack in packs:
            if pack.begun < before:
                yield from pack.leases()
            else:
                self._packs.append(pack)
        loose = [
            each
            for each in self.loose()
            if each.ended is not None and each.begun < before and final(each)
        ]
        self._remove(loose)
        yield from loose

    def clear(self) -> None:
        """Forget all of them."""
        self._loose, self._ended, self._packs = {}, [], []
        self._sought = None
