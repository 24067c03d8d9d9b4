"""The sweeps of a server's tables: when they run, between which pushes, and their record.

Owns the place of each part of a sweep among the pushes: after a step, when all pushes up to it are
applied and none is begun. So it is a function of the pushes, and a server that was killed makes the
same sweeps as one that was not. A part has a step of its own, under which it is logged with the
ids that it removed. sweeps.py chooses the ids, clock.py keeps the times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.checkpoints.folders import text
from shoal.native.between import NEVER, Between
from shoal.native.moments import Moments
from shoal.native.rowstore import RowStore
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import SLOTS
from shoal.proto.wire import frames
from shoal.ps.forgetting import sweeps
from shoal.ps.forgetting.clock import SECOND, EventClock
from shoal.ps.forgetting.compaction import Compactor
from shoal.ps.forgetting.removals import Int64, Removal, Removals
from shoal.ps.forgetting.sweeps import CAP_FREE, COUNTS_PER_ROW, Candidates, Found, sweep_plan
from shoal.ps.model.unpack import check_ids, exactly

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import LifecycleState, RemovedCounts

logger = logging.getLogger(__name__)

NOTHING = Found(None, 0)

Record = Callable[[int, bytes], object]
"""Has a part of a sweep logged: its step, and its frame."""


def share_of(max_rows: int, slots: int) -> int:
    """The most rows of a table that a server with so many of the routing slots may hold."""
    return max(1, max_rows * slots // SLOTS)


def lives(spec: pb.ModelSpec) -> bool:
    """True if rows of any table of a model may be removed."""
    return any(table.expire_after or table.max_rows for table in spec.tables)


class Lifecycle:
    """The sweeps of one server's tables.

    between: where pushes enter and leave. clock: event time, of the pushes so far. removals: what
    was removed. removed: how much, of each table.
    """

    def __init__(
        self, spec: pb.ModelSpec, tables: Sequence[RowStore], slots: int, moments: Moments
    ) -> None:
        """slots: how many of the routing slots the tables are of, until `own` says otherwise.

        moments: have the steps of pushes.
        """
        self._most = {
            position: table.max_rows for position, table in enumerate(spec.tables) if table.max_rows
        }
        self.between = Between(moments, [tables[position] for position in self._most])
        self.clock = EventClock(
            {
                position: table.expire_after * SECOND
                for position, table in enumerate(spec.tables)
                if table.expire_after
            },
            self.between,
        )
        self.removals = Removals(len(tables))
        self.removed = [pb.RemovedIds() for _ in tables]
        self._tables, self._moments = tables, moments
        self._suspended = False
        self._plan: pb.SweepPlan | None = None
        self._part = 0  # of the plan, the next one
        self._owing = False  # the last step is a push of a log, after which a part may be due
        self._candidates: Candidates | None = None
        self._compactor = Compactor()
        self.own(slots)

    def own(self, slots: int) -> None:
        """The tables are of so many of the routing slots."""
        self._caps = {position: share_of(most, slots) for position, most in self._most.items()}
        self._tell()

    def suspend(self, suspended: bool) -> None:
        """Make no sweep, while rows come and go by themselves, or again."""
        self._suspended = suspended
        self._tell()

    def _tell(self) -> None:
        """Say which pushes are plain from now on."""
        self.between.lock()
        try:
            self.between.cap((cap, COUNTS_PER_ROW * cap) for cap in self._caps.values())
            self._say()
        finally:
            self.between.unlock()

    def _say(self) -> None:
        """As `_tell`, within, by event times alone."""
        now, lines = self.clock.now, self.clock.lines.values()
        due = self._plan is not None or any(now is not None and line.due(now) for line in lines)
        self.between.say(
            until=self.clock.until,
            leap=self.clock.leap,
            due_from=0 if due and not self._suspended else NEVER,
            suspended=self._suspended,
        )

    # ------------------------------------------------------------ between pushes

    def enter(self, worker: int, pulled_version: int, time: int | None) -> tuple[int, int]:
        """Let a push with this event time on its way; returns its step and staleness.

        Once no part of a sweep is in its way. `leave` ends it. Raises MemoryError.
        """
        ticket = self.between.enter(worker, pulled_version, time)
        if ticket is None:
            assert time is not None  # or it had been plain
            with self.between as between:
                ticket = self._moments.ticket(worker, pulled_version)
                self.clock.note(ticket[0], time)
                self._say()
                between.go(ticket[0])
        return ticket

    def leave(self, record: Record | None) -> None:
        """A push that entered is applied: do a part if that is due, and no other is under way.

        record: has a part of a sweep logged; None where the push failed. Raises MemoryError,
        after which a part may have been done that is not logged.
        """
        if self.between.leave(record is not None) and record is not None:
            self.do_part(record)

    def do_part(self, record: Record) -> None:
        """Do what is due, and open the way of pushes again. Raises as `leave`."""
        try:
            self.sweep(record)
        finally:
            self._tell()
            self.between.open()

    def is_due(self) -> bool:
        """True if a part of a sweep is to be done before the next push begins."""
        now = self.clock.now
        return not self._suspended and (
            self._plan is not None
            or any(now is not None and line.due(now) for line in self.clock.lines.values())
            or self._over() is not None
        )

    def sweep(self, record: Record) -> None:
        """Do what is due now: a part, and as many more as it takes until no cap is exceeded.

        No push may be under way. Raises as `leave`.
        """
        while True:
            if self._plan is None:
                self._begin(self._due_plan(self._moments.step))
            if self._plan is None:
                self._owing = False
                return
            plan, part = self._plan, self._part
            if self._candidates is None:
                self._candidates = Candidates(self._tables[plan.table], plan)
            rows, counts = self._candidates.remove(part)
            taken = self._moments.next_step()
            faults.point("sweep-half-done")
            record(taken, frames.encode(pb.Sweep(plan=plan, part=part), [rows, counts]))
            faults.point("sweep-logged")
            self._note(taken, rows, counts)
            if self._over() is None:
                self._owing = False
                return

    def pushed_again(self, step: int, event_time: int | None) -> None:
        """A push of a log is applied again."""
        if event_time is not None:
            self.clock.note(step, event_time)
            self._tell()
        self._owing = True

    def owes(self) -> bool:
        """True if a part is to be done, after a log was done again, before the next push.

        A sweep after a push is owed until it was done once; with caps, until none is exceeded.
        """
        return (self._owing and self.is_due()) or self._over() is not None

    def again(self, step: int, frame: bytes | memoryview) -> None:
        """Do a part again that was logged, in its place among the pushes.

        Raises WireError or ValueError before anything is changed.
        """
        sweep, arrays = frames.decode(frame, pb.Sweep)
        rows, counts = exactly(arrays, 2)
        check_ids(rows)
        check_ids(counts)
        plan = sweep.plan
        if plan.table >= len(self._tables) or sweep.part >= plan.parts:
            raise ValueError(f"a part {sweep.part} of a sweep of table {plan.table}")
        self._begin(plan)
        self._part, self._owing = sweep.part, False
        if not sweep.part and not plan.eviction:
            self._planned(plan)
        table = self._tables[plan.table]
        there = len(table), table.counting
        removed = table.remove(rows) + table.remove(counts)
        if (len(table), table.counting) != (there[0] - rows.size, there[1] - counts.size):
            logger.error(
                "the sweep of step %d removed %d ids, and %d when it was done again",
                *(step, rows.size + counts.size, removed),
            )
        self._note(step, rows, counts)
        self._tell()

    def _begin(self, plan: pb.SweepPlan | None) -> None:
        self._plan, self._part, self._candidates = plan, 0, None

    def _note(self, step: int, rows: Int64, counts: Int64) -> None:
        """The next part of the plan is done."""
        plan = self._plan
        assert plan is not None
        removed = self.removed[plan.table]
        if plan.eviction:
            removed.evicted += rows.size
        else:
            removed.expired += rows.size
        removed.counts += counts.size
        self.removals.add(plan.table, Removal(step, self.clock.now, plan.eviction, rows))
        self._part += 1
        if self._part == plan.parts:
            self._begin(None)
            self._compactor.consider(self._tables[plan.table])

    def _over(self) -> int | None:
        """The first table whose cap is exceeded."""
        for position, cap in self._caps.items():
            table = self._tables[position]
            if len(table) > cap or table.counting > COUNTS_PER_ROW * cap:
                return position
        return None

    def _due_plan(self, step: int) -> pb.SweepPlan | None:
        """The plan of the next sweep that is due after this step; None for none."""
        now = self.clock.now
        for position, line in self.clock.lines.items():
            if now is not None and line.due(now):
                rows, counts = sweeps.expired(self._tables[position], line.cut(now))
                plan = sweeps.planned(position, step, rows, counts, eviction=False)
                self._planned(plan)
                # Although it may find nothing: without a record of that, a server that does a log
                # again would plan the next one earlier.
                return plan
        over = self._over()
        if over is None:
            return None
        table, cap = self._tables[over], self._caps[over]
        most = COUNTS_PER_ROW * cap
        rows = counts = NOTHING
        if len(table) > cap:
            rows = sweeps.least_used(table, len(table) - cap + cap // CAP_FREE, step)
        if table.counting > most:
            counts = sweeps.oldest_counts(table, table.counting - most + most // CAP_FREE, step)
        return sweeps.planned(over, step, rows, counts, eviction=True)

    def _planned(self, plan: pb.SweepPlan) -> None:
        """A sweep of what has expired was planned now."""
        line, now = self.clock.lines[plan.table], self.clock.now
        assert now is not None
        line.planned, cut = line.entries[-1][0], line.cut(now)
        if all(sweeps.is_all(each, cut) for each in (plan.rows, plan.counts)):
            line.swept = cut

    def describe(self, status: pb.ServerStatus) -> None:
        """Put what is to be shown into a status that has the tables."""
        for table, removed in zip(status.tables, self.removed, strict=True):
            table.removed.CopyFrom(removed)
        if self.clock.now is not None:
            status.event_time = self.clock.now
        status.clock_doubt = self.clock.doubt

    # ------------------------------------------------------------ checkpoints

    def state(self) -> LifecycleState:
        """All of it but the removed ids, as a shard's manifest has it."""
        return {
            "clock": self.clock.state(),
            "plan": None if self._plan is None else text(self._plan),
            "part": self._part,
            "owing": self._owing,
            "removed": [
                {"expired": each.expired, "evicted": each.evicted, "counts": each.counts}
                for each in self.removed
            ],
        }

    def restore(self, saved: LifecycleState, step: int) -> None:
        """Go on from what `state` gave, of a server with the same rows. step: its last one."""
        self.clock.restore(saved["clock"])
        if saved["plan"] is not None:
            self._plan, self._part = sweep_plan(saved["plan"]), saved["part"]
        self._owing = saved["owing"]
        self._tell()
        self.take_counts(saved["removed"])
        self.removals.saved(step)

    def take_counts(self, removed: Sequence[RemovedCounts]) -> None:
        """Count what another server, whose tables these are now, has removed."""
        for ours, theirs in zip(self.removed, removed, strict=True):
            ours.expired += theirs["expired"]
            ours.evicted += theirs["evicted"]
            ours.counts += theirs["counts"]
