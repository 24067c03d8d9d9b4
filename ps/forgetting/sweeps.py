"""Which rows a sweep of a table removes: those that expired, or those worth least.

Owns the choice, by the headers of rows alone, and the parts in which it is carried out. The choice
is a function of what was pushed, the same in every process that has the table: how many there
are of each age and use count, and where that leaves a rest, an order of ids that is the same
everywhere. When a sweep is made, and what follows from it, is lifecycle.py's.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.native.census import LEAST_AGES, ORDER_CLASSES
from shoal.native.choices import ORDERS, Choice, order_of
from shoal.native.rowstore import MAX_BOUNDS, USE_CLASSES, RowStore
from shoal.proto import shoal_pb2 as pb

Int64 = npt.NDArray[np.int64]

PART_IDS = 4096
"""Most ids of a part, about: what is removed between two pushes."""

PART_FILL = 3500
"""Of a part, on average: ids are spread over parts at random."""

LARGEST = 16
"""The part of a table that one sweep may remove as expired, unless that is below PART_IDS: models
do not take it well if much goes at once."""

WEIGHTS = np.arange(1, USE_CLASSES + 1)
"""How much older than a row of one use a row may be, by its class of use counts: that of uses u
is worth 1 + floor(log2(u))."""

EVEN = np.ones(USE_CLASSES, np.int64)
"""The same, of rows whose uses do not count."""

_EXACT = 1 << 16
"""Up to so many candidates, a number of them is taken exactly."""

_ROWS, _COUNTS = 0, 1

ALL = 1 << 32
"""The end of cursors of a table."""


@dataclass(frozen=True)
class Found:
    """A choice, how many ids it is, and whether it is all that was wanted."""

    choice: Choice | None
    count: int
    all: bool = True


def expired(store: RowStore, cut: int) -> tuple[Found, Found]:
    """The rows, and the counted ids, that were last used before the step `cut`.

    At most a part of each: then the oldest.
    """
    below = [int(each[0].sum()) for each in store.histogram(np.array([cut], np.int64))]
    found = []
    for kind, (count, there) in enumerate(zip(below, (len(store), store.counting), strict=True)):
        most = _most(there)
        if count <= most:
            found.append(Found(Choice.older_than(cut) if count else None, count))
        else:
            chosen = _oldest(store, kind, cut, most)
            found.append(Found(chosen.choice, chosen.count, all=False))
    return found[_ROWS], found[_COUNTS]


def _most(there: int) -> int:
    """The most of so many that one sweep removes as expired."""
    return max(PART_IDS, there // LARGEST)


def expired_of(cut: int, counts: Int64, there: int) -> Found:
    """Find what `expired` does, of one kind, by counts of what was last used before the cut.

    counts: int64 [ages, ORDER_CLASSES], as a Census has them. there: how many there are at all.
    Where more have expired than one sweep may remove, the oldest are chosen, as far as ages are
    told apart, and of the last age whole classes of orders: what is left by this sweep is not
    counted on again.
    """
    earlier = np.cumsum(counts[::-1].sum(axis=1))  # up to each age, from the greatest one on
    count, most = int(earlier[-1]), _most(there)
    if count <= most:
        return Found(Choice.older_than(cut) if count else None, count)
    level = int(np.searchsorted(earlier, most, "right"))
    certain = int(earlier[level - 1]) if level else 0
    orders = counts[::-1][level]
    classes = int(np.searchsorted(certain + np.cumsum(orders), most, "right"))
    if not certain:
        classes = max(classes, 1 + int(np.flatnonzero(orders)[0]))
    count = certain + int(orders[:classes].sum())
    return Found(_classes_of(cut, level, classes, EVEN), count, all=False)


def excess_of(cut: int, counts: Int64, excess: int, weights: Int64) -> Found:
    """The oldest of one kind, no fewer than `excess` if there are so many.

    cut, counts: as `expired_of`, of all that there are. weights: by which the ages of each class of
    use counts were divided. Of the last age whole classes of orders, as there.
    """
    earlier = np.cumsum(counts[::-1].sum(axis=1))
    count = int(earlier[-1])
    if not excess or count <= excess:
        return Found(Choice.older_than(cut), count) if excess and count else Found(None, 0)
    level = int(np.searchsorted(earlier, excess))
    certain = int(earlier[level - 1]) if level else 0
    orders = counts[::-1][level]
    classes = 1 + int(np.searchsorted(certain + np.cumsum(orders), excess))
    count = certain + int(orders[:classes].sum())
    return Found(_classes_of(cut, level, classes, weights), count)


def _classes_of(cut: int, level: int, classes: int, weights: Int64) -> Choice:
    """All above an age, and of that age so many classes of orders.

    level: of the age, from the greatest one on.
    """
    first, last = (
        np.maximum(cut - age * weights, 0) for age in LEAST_AGES[::-1][[level - 1, level]]
    )
    if classes == ORDER_CLASSES:
        return Choice(last, last)
    return Choice(first if level else first * 0, last, ORDERS // ORDER_CLASSES * classes)


def least_used(store: RowStore, count: int, now: int) -> Found:
    """So many rows, about, that are worth least at the step `now`."""
    bins = MAX_BOUNDS - 2
    first = _first_step(store, _ROWS, now)
    width = max(1, -(-(now + 1 - first) // bins))
    # Ages as multiples of `width`, so that each level's cuts are where the rows are counted.
    ages = np.arange(bins, -1, -1)[:, None] * WEIGHTS
    cuts = now + 1 - np.minimum(ages, bins + 1) * width
    return _level(store, _ROWS, np.maximum(cuts, 0), count)


def oldest_counts(store: RowStore, count: int, now: int) -> Found:
    """So many ids, about, that are counted and have no row, the oldest."""
    return _oldest(store, _COUNTS, now + 1, count)


def _oldest(store: RowStore, kind: int, end: int, count: int) -> Found:
    """So many, about, of what was last used before `end`, the oldest."""
    first = _first_step(store, kind, end - 1)
    cuts = np.unique(np.linspace(first, end, MAX_BOUNDS - 1).astype(np.int64))
    return _level(store, kind, np.repeat(cuts[:, None], USE_CLASSES, axis=1), count)


def _first_step(store: RowStore, kind: int, last: int) -> int:
    """A step before which hardly anything was last used."""
    bounds = np.unique(np.linspace(0, last + 1, MAX_BOUNDS - 1).astype(np.int64))
    there = np.flatnonzero(store.histogram(bounds)[kind].sum(axis=1))
    return int(bounds[max(0, there[0] - 1)]) if there.size else last


def _level(store: RowStore, kind: int, levels: Int64, count: int) -> Found:
    """The choice of so many ids by the first of these levels at which there are as many.

    levels: int64 [l, USE_CLASSES], the steps of choices that include one another, ever larger.
    """
    bounds, places = np.unique(levels, return_inverse=True)
    places = places.reshape(levels.shape)
    earlier = np.cumsum(store.histogram(bounds)[kind], axis=0)  # than each bound
    counts = earlier[places, np.arange(USE_CLASSES)].sum(axis=1)
    enough = np.flatnonzero(counts >= count)
    level = int(enough[0]) if enough.size else len(levels) - 1
    sure, certain = (levels[level - 1], int(counts[level - 1])) if level else (levels[0] * 0, 0)
    rest = int(counts[level]) - certain
    wanted = min(count - certain, rest)
    if wanted == rest:
        return Found(Choice(levels[level], levels[level]), int(counts[level]))
    below = ORDERS * wanted // rest
    if certain + rest <= _EXACT:
        # So few may all be on one side of it.
        every = [Choice(sure, levels[level], order) for order in (ORDERS - 1, 0)]
        left, others = (_collected(store, *_of_kind(kind, each)) for each in every)
        orders = np.sort(order_of(np.setdiff1d(left, others)))
        below = int(orders[wanted])
    return Found(Choice(sure, levels[level], below), certain + wanted)


def _of_kind(kind: int, choice: Choice) -> tuple[Choice | None, Choice | None]:
    return (choice, None) if kind == _ROWS else (None, choice)


def _collected(store: RowStore, rows: Choice | None, counts: Choice | None) -> Int64:
    """The ids that are chosen now."""
    return np.concatenate([ids for ids, _ in _pieces(store, rows, counts, 0, ALL)])


def _pieces(
    store: RowStore, rows: Choice | None, counts: Choice | None, cursor: int, until: int
) -> Iterator[tuple[Int64, int]]:
    """The ids that are chosen now, from a cursor to another, and how far each piece reaches."""
    at: int | None = cursor
    while at is not None and at < until:
        ids, at = store.collect(rows, counts, at, 1 << 16, until)
        yield ids, ALL if at is None else at


def planned(table: int, step: int, rows: Found, counts: Found, *, eviction: bool) -> pb.SweepPlan:
    """The plan of a sweep. step: after which it is made."""
    return pb.SweepPlan(
        table=table,
        step=step,
        eviction=eviction,
        rows=_message(rows.choice),
        counts=_message(counts.choice),
        parts=max(1, -(-(rows.count + counts.count) // PART_FILL)),
    )


def _message(choice: Choice | None) -> pb.SweepChoice:
    if choice is None:
        return pb.SweepChoice()
    return pb.SweepChoice(
        sure=choice.sure.tolist(), maybe=choice.maybe.tolist(), below=choice.below
    )


def _choice(message: pb.SweepChoice) -> Choice | None:
    if not message.sure:
        return None
    sure, maybe = (np.array(each, np.int64) for each in (message.sure, message.maybe))
    return Choice(sure, maybe, message.below)


def is_all(choice: pb.SweepChoice, cut: int) -> bool:
    """True if a choice leaves nothing of what `expired` finds before `cut`."""
    return not choice.sure or (choice.sure[0] == choice.maybe[0] == cut)


def sweep_plan(message: str) -> pb.SweepPlan:
    """The plan in a shard's manifest."""
    return pb.SweepPlan.FromString(base64.b64decode(message))


class Candidates:
    """The ids that a plan may remove, by its parts."""

    def __init__(self, store: RowStore, plan: pb.SweepPlan, until: int = ALL) -> None:
        """Collects them, with the headers that they have now. until: as `collect`."""
        self._store, self._parts = store, plan.parts
        self._rows, self._counts = _choice(plan.rows), _choice(plan.counts)
        self._cursor = 0
        self._pieces: list[tuple[Int64, Int64]] = []
        self.collect(until)

    def collect(self, until: int) -> None:
        """Collect those up to soon behind a cursor of the table; all cursors are below 2^32."""
        pieces = _pieces(self._store, self._rows, self._counts, self._cursor, until)
        for ids, reached in pieces:
            self._cursor = reached
            part = parts_of(ids, self._parts)
            ends = np.cumsum(np.bincount(part, minlength=self._parts))
            self._pieces.append((ids[np.argsort(part, kind="stable")], np.append(0, ends)))

    def remove(self, part: int) -> tuple[Int64, Int64]:
        """Remove those of a part that still are to go: rows, and counted ids, int64 [n] each.

        In the order of ids, as the store finds them in another order in each process. Raises
        MemoryError.
        """
        found = [ids[ends[part] : ends[part + 1]] for ids, ends in self._pieces]
        ids = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
        rows, _ = self._store.remove_chosen(ids, self._rows, None)
        counts, _ = self._store.remove_chosen(ids, None, self._counts)
        return rows, counts


def parts_of(ids: Int64, parts: int) -> Int64:
    """The part of each id, from 0, int64 [n]: the same in every process."""
    low = order_of(ids) & np.uint64(0xFFFFFFFF)
    return (low * np.uint64(parts) >> np.uint64(32)).astype(np.int64)
