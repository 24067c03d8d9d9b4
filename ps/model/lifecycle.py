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

import numpy as np

from shoal.checkpoints.folders import text
from shoal.native.between import NEVER, Between
from shoal.native.moments import Moments
from shoal.native.rowstore import RowStore
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.wire import frames
from shoal.ps.forgetting import planning as plans
from shoal.ps.forgetting import sweeps
from shoal.ps.forgetting.caps import Caps, began_of
from shoal.ps.forgetting.clock import SECOND, EventClock
from shoal.ps.forgetting.compaction import Compactor
from shoal.ps.forgetting.planning import Planning
from shoal.ps.forgetting.removals import Int64, Removal, Removals
from shoal.ps.forgetting.sweeps import Candidates, Found, sweep_plan
from shoal.ps.model.unpack import check_ids, exactly

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import LifecycleState, RemovedCounts

logger = logging.getLogger(__name__)

NOTHING = Found(None, 0)

Record = Callable[[int, bytes], object]
"""Has a part of a sweep logged: its step, and its frame."""


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
        self._caps = Caps(spec, tables, slots)
        self.between = Between(moments, [tables[position] for position in self._caps])
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
        self._next = 0  # the step behind which that is due
        self._planning: Planning | None = None
        self._owing = False  # the last step is a push of a log, after which a part may be due
        self._candidates: Candidates | None = None
        self._compactor = Compactor()
        self._tell()

    def own(self, slots: int) -> None:
        """The tables are of so many of the routing slots."""
        self._caps.own(slots)
        self._tell()

    def suspend(self, suspended: bool) -> None:
        """Make no sweep, while rows come and go by themselves, or again."""
        self._suspended = suspended
        self._tell()

    def _tell(self) -> None:
        """Say which pushes are plain from now on."""
        self.between.lock()
        try:
            self.between.cap(self._bounds(position, near=True) for position in self._caps)
            self._say()
        finally:
            self.between.unlock()

    def _say(self) -> None:
        """Say it by clock and plans alone; within `between`."""
        self.between.say(
            until=self.clock.until,
            leap=self.clock.leap,
            due_from=NEVER if self._suspended else self._due_from(),
            suspended=self._suspended,
        )

    def _due_from(self) -> int:
        """The step behind which, or behind a later one, there is something to be done."""
        if self._planning is not None:
            return self._planning.next
        if self._plan is not None:
            return self._next
        return NEVER if self._expiring() is None else 0

    def _bounds(self, position: int, *, near: bool) -> tuple[int, int]:
        """The rows and counted ids of a table at more of which a part, or a slice, is due.

        near: behind a push. Otherwise as well before the next one.
        """
        caps, began = self._caps, self._caps.began
        if (planning := self._planning) is not None:
            # Once it is complete they stay: it waits for a place that is the same where a log is
            # done again.
            done, of = planning.progress
            if planning.table == position and planning.excess is not None:
                return caps.planning(position, began, done, of)
            return caps.waiting(position, began, done, 2 * of)
        if (plan := self._plan) is None:
            return caps.near(position) if near else caps.most(position)
        if not plan.eviction or plan.table != position:
            bounds = caps.waiting(position, began, plan.parts + self._part, 2 * plan.parts)
        else:
            bounds = caps.during(plan, self._part)
        if near:
            rows, counts = map(min, bounds, caps.near(position))
            return rows, counts
        return bounds

    def _over(self, *, near: bool = False) -> int | None:
        """The first table that has more than its bounds."""
        for position in self._caps:
            if self._caps.exceeds(position, self._bounds(position, near=near)):
                return position
        return None

    def _expiring(self) -> int | None:
        """The first table of which a sweep of what has expired is to be planned."""
        now = self.clock.now
        for position, line in self.clock.lines.items():
            if now is not None and line.due(now):
                return position
        return None

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
        """End what `enter` began: a push is applied. Do a part if it is due, and this the last one.

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
        return not self._suspended and (
            self._moments.step >= self._due_from() or self._over(near=True) is not None
        )

    def sweep(self, record: Record) -> None:
        """Do what is due now: a part, and as many more as it takes until a push may come.

        No push may be under way. Raises as `leave`.
        """
        while self._do_next(record) and self._over() is not None:
            pass
        self._owing = False

    def _do_next(self, record: Record) -> bool:
        """Do the next part of a sweep, or of its plan; returns False if there is none."""
        if self._plan is None and self._planning is None:
            self._begin_next(record)
        planning = self._planning
        if planning is not None and not planning.complete:
            planning.look()
            return True
        if planning is not None:
            self._carry_out(planning)
        plan, part = self._plan, self._part
        if plan is None:
            return False
        if self._candidates is None:
            self._candidates = Candidates(self._tables[plan.table], plan)
        rows, counts = self._candidates.remove(part)
        taken = self._moments.next_step()
        faults.point("sweep-half-done")
        self._record(record, taken, pb.Sweep(plan=plan, part=part), rows, counts)
        self._note(taken, rows, counts)
        return True

    def _record(self, record: Record, step: int, sweep: pb.Sweep, *ids: Int64) -> None:
        record(step, frames.encode(sweep, ids))
        faults.point("sweep-logged")

    def pushed_again(self, step: int, event_time: int | None) -> None:
        """A push of a log is applied again."""
        if event_time is not None:
            self.clock.note(step, event_time)
            self._tell()
        self._owing = True

    def owes(self) -> bool:
        """True if a part is to be done, after a log was done again or a move, before the next push.

        A sweep after a push is owed until it was done once; with caps, until none is exceeded.
        """
        over = not self._suspended and self._over() is not None
        return over or (self._owing and self.is_due())

    def again(self, step: int, frame: bytes | memoryview) -> None:
        """Do a part again that was logged, in its place among the pushes.

        Raises WireError or ValueError before anything is changed.
        """
        sweep, arrays = frames.decode(frame, pb.Sweep)
        rows, counts = exactly(arrays, 2)
        check_ids(rows)
        check_ids(counts)
        plan = sweep.plan
        expiring = plan.table in self.clock.lines and self.clock.now is not None
        begins = not plan.parts and (plan.table in self._caps if plan.eviction else expiring)
        if plan.table >= len(self._tables) or (sweep.part >= plan.parts and not begins):
            raise ValueError(f"a part {sweep.part} of a sweep of table {plan.table}")
        self._owing = False
        if begins:
            self._begin_planning(plan, at_once=True)
            self._tell()
            return
        if self._planning is not None:
            self._carry_out(self._planning)
        elif not sweep.part and not plan.eviction:
            self._planned(plan)
        self._begin(plan)
        self._part = sweep.part
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

    def _begin(self, plan: pb.SweepPlan | None, candidates: Candidates | None = None) -> None:
        if plan is None:
            self._caps.began = {}
        elif not self._caps.began:
            self._caps.began = self._caps.numbers()
        self._plan, self._part, self._candidates, self._next = plan, 0, candidates, 0

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
        self._next = step + plans.EVERY
        if self._part == plan.parts:
            self._begin(None)
            self._compactor.consider(self._tables[plan.table])

    def _begin_next(self, record: Record) -> None:
        """Begin the next sweep that is due, if there is one, or its plan."""
        expiring = self._expiring()
        position = self._caps.fullest() if expiring is None else expiring
        if position is None:
            return
        table, step = self._tables[position], self._moments.step
        if plans.slices_of(table) > 1:
            self._plan_slowly(position, record, eviction=expiring is None)
        elif expiring is None:
            self._begin(self._eviction(position, step))
        else:
            now = self.clock.now
            assert now is not None
            cut = self.clock.lines[position].cut(now)
            plan = sweeps.planned(position, step, *sweeps.expired(table, cut), eviction=False)
            self._planned(plan)
            # Although it may find nothing: without a record of that, a server that does a log
            # again would plan the next one earlier.
            self._begin(plan)

    def _eviction(self, position: int, step: int) -> pb.SweepPlan:
        """The plan for a cap of a small table that is exceeded."""
        table, (rows, counts) = self._tables[position], self._caps.excess(position)
        return sweeps.planned(
            position,
            step,
            sweeps.least_used(table, rows, step) if rows else NOTHING,
            sweeps.oldest_counts(table, counts, step) if counts else NOTHING,
            eviction=True,
        )

    def _plan_slowly(self, position: int, record: Record, *, eviction: bool) -> None:
        """Begin the plan of a large table's sweep, in its place among the pushes."""
        # By the cap of now: it may be another one when a log is done again.
        rows, counts = self._caps.excess(position) if eviction else (0, 0)
        step = self._moments.next_step()
        faults.point("sweep-half-done")
        begun = pb.SweepPlan(
            table=position, step=step, eviction=eviction, excess_rows=rows, excess_counts=counts
        )
        nothing = np.empty(0, np.int64)
        self._record(record, step, pb.Sweep(plan=begun), nothing, nothing)
        self._begin_planning(begun, at_once=False)

    def _begin_planning(self, begun: pb.SweepPlan, *, at_once: bool) -> None:
        """Begin a plan. at_once: as `Planning`."""
        table, step = self._tables[begun.table], begun.step
        self._caps.began = self._caps.numbers()
        if begun.eviction:
            # A push that comes has a later step.
            cut, excess = step, (begun.excess_rows, begun.excess_counts)
            self._planning = Planning(begun.table, table, step, cut, excess, at_once=at_once)
            return
        line, now = self.clock.lines[begun.table], self.clock.now
        assert now is not None
        line.planned = line.entries[-1][0]
        cut = line.cut(now)
        self._planning = Planning(begun.table, table, step, cut, at_once=at_once)

    def _carry_out(self, planning: Planning) -> None:
        """Begin the sweep whose plan is complete."""
        self._planning = None
        self._begin(planning.plan, planning.candidates)
        if planning.excess is None:
            self._swept(planning.plan, planning.cut)

    def _planned(self, plan: pb.SweepPlan) -> None:
        """A sweep of what has expired was planned now."""
        line, now = self.clock.lines[plan.table], self.clock.now
        assert now is not None
        line.planned = line.entries[-1][0]
        self._swept(plan, line.cut(now))

    def _swept(self, plan: pb.SweepPlan, cut: int) -> None:
        """A sweep is carried out, of what was last used before `cut`, or of a part of that."""
        if all(sweeps.is_all(each, cut) for each in (plan.rows, plan.counts)):
            self.clock.lines[plan.table].swept = cut

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
            "next": self._next,
            "planning": None if self._planning is None else self._planning.state(),
            "caps": self._caps.state(self._caps.began),
            "owing": self._owing,
            "removed": [
                {"expired": each.expired, "evicted": each.evicted, "counts": each.counts}
                for each in self.removed
            ],
        }

    def restore(self, saved: LifecycleState, step: int) -> None:
        """Go on from what `state` gave, of a server with the same rows. step: its last one.

        But for a sweep for a cap that is another one now.
        """
        self.clock.restore(saved["clock"])
        caps = saved.get("caps")
        plan = None if saved["plan"] is None else sweep_plan(saved["plan"])
        if plan is not None and (not plan.eviction or self._caps.same(plan.table, caps)):
            self._plan, self._part = plan, saved["part"]
            self._next = saved.get("next", 0)
        spans = {each["table"]: each["span"] for each in saved["clock"]["lines"]}
        lines = {position: line.span for position, line in self.clock.lines.items()}
        if (planning := saved.get("planning")) is not None:
            at = planning["table"]
            same = at in lines and lines[at] == spans[at]
            if self._caps.same(at, caps) if planning.get("excess") else same:
                self._planning = Planning.restored(planning, self._tables[at])
        if self._plan is not None or self._planning is not None:
            self._caps.began = began_of(caps)
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
