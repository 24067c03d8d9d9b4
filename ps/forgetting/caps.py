"""The most rows and counted ids that a server may have of the tables with `max_rows`.

Owns a server's share of each cap, and where it is near: the plan of a large table's sweep begins
there, so that it is complete when there is no more room. One sweep is made at a time, and the room
of tables that wait for it is shared out, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.native.rowstore import RowStore
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import SLOTS
from shoal.ps.forgetting import planning

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import CapState

FREE = 10
"""The part of a cap that a sweep makes free."""

NEAR = 32
"""The part of a large cap that is left where a plan begins. The smaller it is, the more of a plan
each row that comes meanwhile has to wait for: with this one, about 2 us."""

COUNTS_PER_ROW = 4
"""Ids that are counted and have no row, for each of max_rows: their cap."""

Began = Mapping[int, tuple[int, int]]
"""The rows and counted ids of each table with a cap, as a plan or a sweep began."""


def share_of(max_rows: int, slots: int) -> int:
    """The most rows of a table that a server with so many of the routing slots may hold."""
    return max(1, max_rows * slots // SLOTS)


class Caps:
    """The caps of one server's tables; each is of rows, and of counted ids.

    Iterates over the positions of the tables that have one. began: `numbers` as the sweep that is
    under way began, or its plan; empty if there is none.
    """

    def __init__(self, spec: pb.ModelSpec, tables: Sequence[RowStore], slots: int) -> None:
        """slots: how many of the routing slots the tables are of, until `own` says otherwise."""
        self._max_rows = {
            position: table.max_rows for position, table in enumerate(spec.tables) if table.max_rows
        }
        self._tables = tables
        self.began: Began = {}
        self.own(slots)

    def __iter__(self) -> Iterator[int]:
        return iter(self._max_rows)

    def state(self, began: Began) -> list[CapState]:
        """The caps by which sweeps are planned, for `same`, and what `began` is for `began_of`."""
        return [
            {"table": at, "max_rows": most, "began": list(began[at]) if at in began else None}
            for at, most in self._max_rows.items()
        ]

    def same(self, position: int, saved: Sequence[CapState] | None) -> bool:
        """True if a table has the cap that it had where `saved` is the state of another server.

        None: of a version of shoal that did not save it; then any cap is.
        """
        of = None if saved is None else {each["table"]: each["max_rows"] for each in saved}
        most = self._max_rows.get(position)
        return most is not None and (of is None or of.get(position) == most)

    def own(self, slots: int) -> None:
        """The tables are of so many of the routing slots."""
        self._rows = {position: share_of(most, slots) for position, most in self._max_rows.items()}

    def most(self, position: int) -> tuple[int, int]:
        """The cap of a table."""
        return self._rows[position], COUNTS_PER_ROW * self._rows[position]

    def near(self, position: int) -> tuple[int, int]:
        """The numbers at more of which its next sweep begins."""
        rows, counts = self.most(position)
        return _near(rows), _near(counts)

    def numbers(self) -> Began:
        """The rows and counted ids that there are, of each table."""
        return {at: (len(self._tables[at]), self._tables[at].counting) for at in self._max_rows}

    def planning(self, position: int, began: Began, done: int, of: int) -> tuple[int, int]:
        """The numbers that a table is to have at most where so much of its plan is done.

        began: `numbers` as it began.
        """
        return self._on_the_way(position, began, self.near(position), done, of)

    def waiting(self, position: int, began: Began, done: int, of: int) -> tuple[int, int]:
        """The numbers that a table is to have at most where so much of another sweep is done.

        Of the room that was left as that sweep began, it takes half, or as even a part as there
        are tables near their caps. In the rest there is room for the sweep of this one.
        """
        near = sum(
            any(there > _last_part(most) for there, most in zip(each, self.most(at), strict=True))
            for at, each in began.items()
        )
        rows, counts = self.most(position)
        last = _last_part(rows), _last_part(counts)
        return self._on_the_way(position, began, last, done, of * max(2, near))

    def _on_the_way(
        self, position: int, began: Began, near: tuple[int, int], done: int, of: int
    ) -> tuple[int, int]:
        """Go from what there was, up to the cap.

        Where slots came or went since, or few were there, that says nothing of the room that is
        left: then from `near`.
        """
        found = []
        for there, start, most in zip(
            began.get(position, near), near, self.most(position), strict=True
        ):
            start = there if start <= there <= most else start
            found.append(start + (most - start) * done // of)
        return found[0], found[1]

    def during(self, plan: pb.SweepPlan, part: int) -> tuple[int, int]:
        """The numbers that a table is to have at most where so many parts of its sweep are done.

        From the cap down to near it: so there is room for the next plan when the sweep is over,
        however fast the table grows.
        """
        rows, counts = (
            most - (most - near) * part // plan.parts if choice.sure else most
            for most, near, choice in zip(
                self.most(plan.table), self.near(plan.table), (plan.rows, plan.counts), strict=True
            )
        )
        return rows, counts

    def exceeds(self, position: int, bounds: tuple[int, int]) -> bool:
        """True if a table has more than these."""
        table = self._tables[position]
        return len(table) > bounds[0] or table.counting > bounds[1]

    def fullest(self) -> int | None:
        """The table that has least of its cap left, of those near theirs; None if none is."""
        near = [at for at in self if self.exceeds(at, self.near(at))]
        return max(near, key=self._fullness, default=None)

    def _fullness(self, position: int) -> float:
        there, most = self.numbers()[position], self.most(position)
        return max(each / of for each, of in zip(there, most, strict=True))

    def excess(self, position: int) -> tuple[int, int]:
        """The numbers that a sweep which begins now is to remove."""
        table = self._tables[position]
        rows, counts = (
            there - most + most // FREE if there > near else 0
            for there, most, near in zip(
                (len(table), table.counting), self.most(position), self.near(position), strict=True
            )
        )
        return rows, counts


def _near(most: int) -> int:
    """Near a cap; the cap itself, if a table of so many is planned at once."""
    near = _last_part(most)
    return near if near >= planning.SLICE else most


def _last_part(most: int) -> int:
    return most - most // NEAR


def began_of(saved: Sequence[CapState] | None) -> Began:
    """The numbers in what `Caps.state` gave."""
    found = {each["table"]: each.get("began") for each in saved or ()}
    return {at: (began[0], began[1]) for at, began in found.items() if began is not None}
