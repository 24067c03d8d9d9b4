"""The plan of a large table's sweep, made a little at a time between pushes.

A plan is of the headers as they are where it begins, at a step. To look at all of them takes long
where a table is large, and no push may wait for that. So they are looked at in slices, each behind
a push: first what there is of which age is counted, then the ids to remove are collected. A push
that uses a row meanwhile has it counted as it was (native/census.h), and nothing that was used is
removed. So the plan is the one that would have been made at once, and the step from which on it is
carried out follows from where it began. Owns that. Which ids go is sweeps.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.native.census import Census
from shoal.native.rowstore import RowStore
from shoal.proto import shoal_pb2 as pb
from shoal.ps.forgetting.sweeps import (
    ALL,
    EVEN,
    WEIGHTS,
    Candidates,
    Int64,
    excess_of,
    expired_of,
    planned,
)

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import PlanningState

SLICE = 1 << 17
"""Rows and counted ids that are looked at behind one push: 2 to 3 ms."""

EVERY = 8
"""Steps between two slices, and two parts of a plan: pushes of others wait for few of them."""


def slices_of(store: RowStore) -> int:
    """The number of slices of a table; 1: its plan is made at once."""
    return max(1, -(-(len(store) + store.counting) // SLICE))


class Planning:
    """The plan of one table's sweep, as of its beginning.

    table: its position. step: of its beginning. cut: what was last used before this step is
    counted: what has expired, or, for a cap, all. excess: for a cap, how many rows and counted ids
    are to go; else None.
    """

    def __init__(
        self,
        table: int,
        store: RowStore,
        step: int,
        cut: int,
        excess: tuple[int, int] | None = None,
        *,
        at_once: bool,
    ) -> None:
        """at_once: count all now, as is done before a server takes pushes; slices are none then.

        No push may be under way, here and in `look`. Raises MemoryError.
        """
        self.table, self.step, self.cut, self.excess = table, step, cut, excess
        self._store = store
        self._slices = slices_of(store)
        self._there = store.counting, len(store)
        self._done = 0
        self._census: Census | None = Census(store, cut, by_worth=excess is not None)
        self._counts: Int64 | None = None
        self._candidates: Candidates | None = None
        self._plan: pb.SweepPlan | None = None
        if at_once:
            self._census.look(ALL)
            self._counted()
            self._done = 2 * self._slices

    @property
    def end(self) -> int:
        """The step from which on the plan is to be carried out."""
        return self.step + 2 * self._slices * EVERY

    @property
    def next(self) -> int:
        """The step behind which the next slice is due, or the plan is to be carried out."""
        return self.step + self._done * EVERY

    @property
    def complete(self) -> bool:
        """True if no slice is left."""
        return self._done == 2 * self._slices

    @property
    def progress(self) -> tuple[int, int]:
        """The slices that are done, and of how many."""
        return self._done, 2 * self._slices

    def look(self) -> None:
        """Look at the next slice."""
        until = ALL * (self._done % self._slices + 1) // self._slices
        if self._done < self._slices:
            assert self._census is not None
            self._census.look(until)
            if self._done + 1 == self._slices:
                self._counted()
        else:
            if self._candidates is None:
                self._candidates = Candidates(self._store, self.plan, 0)
            self._candidates.collect(until)
        self._done += 1

    def _counted(self) -> None:
        """All are counted, as they were when it began."""
        assert self._census is not None
        self._counts = self._census.counts()
        self._census.end()
        self._census = None

    @property
    def plan(self) -> pb.SweepPlan:
        """The plan, once all are counted."""
        if self._plan is None:
            assert self._counts is not None
            of_counts, of_rows = self._counts
            if self.excess is None:
                counts, rows = (
                    expired_of(self.cut, found, there)
                    for found, there in zip(self._counts, self._there, strict=True)
                )
            else:
                rows = excess_of(self.cut, of_rows, self.excess[0], WEIGHTS)
                counts = excess_of(self.cut, of_counts, self.excess[1], EVEN)
            eviction = self.excess is not None
            self._plan = planned(self.table, self.step, rows, counts, eviction=eviction)
        return self._plan

    @property
    def candidates(self) -> Candidates | None:
        """The ids that the plan may remove; None where it was not looked for them."""
        return self._candidates

    # ------------------------------------------------------------ checkpoints

    def state(self) -> PlanningState:
        """All of it, for `restored`. No push may be under way."""
        whole = self._counts is not None
        found = self._counts if self._counts is not None else self._left()
        return {
            "table": self.table,
            "step": self.step,
            "cut": self.cut,
            "excess": None if self.excess is None else list(self.excess),
            "slices": self._slices,
            "there": list(self._there),
            "whole": whole,
            "counts": found.tolist(),
        }

    def _left(self) -> Int64:
        assert self._census is not None
        return self._census.left()

    @classmethod
    def restored(cls, saved: PlanningState, store: RowStore) -> Planning | None:
        """Go on from what `state` gave, of a table with the same rows. Counts all at once.

        Returns None where a version of shoal wrote it that told other ages apart.
        """
        excess = saved.get("excess")
        made = cls(
            *(saved["table"], store, saved["step"], saved["cut"]),
            None if excess is None else (excess[0], excess[1]),
            at_once=True,
        )
        counts = np.array(saved["counts"], np.int64)
        assert made._counts is not None
        if counts.shape != made._counts.shape:
            return None
        # What was used since it began is newer now, and in no count of what is older.
        made._counts = counts if saved["whole"] else made._counts + counts
        made._slices = saved["slices"]
        made._done = 2 * made._slices
        made._there = saved["there"][0], saved["there"][1]
        return made
