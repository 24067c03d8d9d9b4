"""The most rows and counted ids that a server may have of the tables with `max_rows`.

Owns a server's share of each cap, and where it is near: the plan of a large table's sweep begins
there, so that it is complete when there is no more room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def share_of(max_rows: int, slots: int) -> int:
    """The most rows of a table that a server with so many of the routing slots may hold."""
    return max(1, max_rows * slots // SLOTS)


class Caps:
    """The caps of one server's tables; each is of rows, and of counted ids.

    Iterates over the positions of the tables that have one.
    """

    def __init__(self, spec: pb.ModelSpec, tables: Sequence[RowStore], slots: int) -> None:
        """slots: how many of the routing slots the tables are of, until `own` says otherwise."""
        self._max_rows = {
            position: table.max_rows for position, table in enumerate(spec.tables) if table.max_rows
        }
        self._tables = tables
        self.own(slots)

    def __iter__(self) -> Iterator[int]:
        return iter(self._max_rows)

    def state(self) -> list[CapState]:
        """The caps by which sweeps are planned, for `same`."""
        return [{"table": at, "max_rows": most} for at, most in self._max_rows.items()]

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
    near = most - most // NEAR
    return near if near >= planning.SLICE else most
