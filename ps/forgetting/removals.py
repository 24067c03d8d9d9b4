"""Which ids sweeps have removed, for checkpoints, for deltas and for `shoal explain`.

Owns the lists, of each table, and what of them is still to be told: the rows that were removed
since the last complete checkpoint, and those since the last published delta. No I/O.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.native import ids as native_ids

logger = logging.getLogger(__name__)

Int64 = npt.NDArray[np.int64]

RECENT = 1 << 18
"""Ids of a table that are remembered although a complete checkpoint has them: for `find`."""

MOST = 1 << 22
"""Ids of a table that are remembered at all: a job without checkpoints tells them to
nobody. A shard says how many it lacks."""


NEVER = (1 << 63) - 1
"""A step that none reaches."""

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class Removal:
    """Rows of one table that were removed in one step.

    event_time: of the clock at that step; None without one. eviction: for max_rows.
    """

    step: int
    event_time: int | None
    eviction: bool
    ids: Int64


class Removals:
    """The removed rows of each table of one server."""

    def __init__(self, tables: int) -> None:
        self._lock = threading.Lock()
        self._lists: list[list[Removal]] = [[] for _ in range(tables)]
        self._saved = 0  # step up to which a complete checkpoint has them
        self._published = NEVER  # the same of deltas; nobody publishes before it is said
        self._lost = [0] * tables  # step of the last one that is not remembered
        self._forgotten = [(0, 0)] * tables  # step of the last one, and ids, that none will have

    def add(self, table: int, removal: Removal) -> None:
        """Rows were removed."""
        if removal.ids.size:
            with self._lock:
                self._lists[table].append(removal)
                self._trim(table)

    def saved(self, step: int) -> None:
        """A complete checkpoint has those up to a step."""
        with self._lock:
            self._saved = max(self._saved, step)
            self._forgotten = [each if each[0] > step else (0, 0) for each in self._forgotten]
            for table in range(len(self._lists)):
                self._trim(table)

    def published(self, step: int) -> None:
        """Deltas have those up to a step; those after it are kept for the next one."""
        with self._lock:
            self._published = step

    def since(self, first: int, last: int) -> list[Int64] | None:
        """The ids of each table that were removed in the steps from `first` to `last`, int64 [n].

        None if some of them are not remembered.
        """
        with self._lock:
            if max(self._lost, default=0) >= first:
                return None
            return [
                np.concatenate([_NOTHING, *(a.ids for a in each if first <= a.step <= last)])
                for each in self._lists
            ]

    def pending(self, table: int) -> list[Removal]:
        """The removals that no complete checkpoint has, in the order of their steps."""
        with self._lock:
            return [each for each in self._lists[table] if each.step > self._saved]

    def forgotten(self, table: int) -> int:
        """Ids removed since the last complete checkpoint that `pending` has no more."""
        with self._lock:
            return self._forgotten[table][1]

    def find(self, table: int, key: int) -> Removal | None:
        """The last removal of an id, as far as it is remembered."""
        with self._lock:
            removals = self._lists[table][:]
        return next((each for each in reversed(removals) if (each.ids == key).any()), None)

    def _trim(self, table: int) -> None:
        """Forget the oldest. Under the lock."""
        removals = self._lists[table]
        size = sum(each.ids.size for each in removals)
        told = min(self._saved, self._published)
        while removals and size > (RECENT if removals[0].step <= told else MOST):
            gone = removals.pop(0)
            size -= gone.ids.size
            self._lost[table] = gone.step
            if gone.step > self._saved:
                if not self._forgotten[table][1]:
                    logger.warning("of table %d the next checkpoint lacks removed ids", table)
                self._forgotten[table] = gone.step, self._forgotten[table][1] + gone.ids.size


def owned_of(removals: list[Removal], owns: npt.NDArray[np.bool_]) -> list[Removal]:
    """The removals of ids whose slots are among `owns`, bool [16384]."""
    found = [replace(each, ids=each.ids[owns[native_ids.slot_of(each.ids)]]) for each in removals]
    return [each for each in found if each.ids.size]


def columns_of(removals: list[Removal], room: int) -> Iterator[dict[str, npt.NDArray[np.generic]]]:
    """Removals as columns: id, step and event_time int64, 0 without one; eviction bool.

    In pieces of about `room` ids.
    """
    held: list[Removal] = []
    for removal in removals:
        held.append(removal)
        if sum(each.ids.size for each in held) >= room:
            yield _columns(held)
            held = []
    if held:
        yield _columns(held)


def _columns(removals: list[Removal]) -> dict[str, npt.NDArray[np.generic]]:
    sizes = [each.ids.size for each in removals]
    return {
        "id": np.concatenate([each.ids for each in removals]),
        "step": np.repeat(np.array([each.step for each in removals], np.int64), sizes),
        "event_time": np.repeat(
            np.array([each.event_time or 0 for each in removals], np.int64), sizes
        ),
        "eviction": np.repeat(np.array([each.eviction for each in removals]), sizes),
    }
