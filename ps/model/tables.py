"""A server's shard of the model: row stores, the dense slice, the version.

Owns the values and how a push changes them. Knows arrays, not frames (service.py),
and leaves the arithmetic to native/.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.native.initializers import InitializerSpec
from shoal.native.moments import Moments
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.distribution import Distribution
from shoal.proto.values.missing_rows import missing_row
from shoal.proto.values.model_bounds import check_model
from shoal.ps.model.dense import DenseSlices
from shoal.ps.model.gradients import Gradients, Ticket, Update
from shoal.ps.model.lifecycle import Lifecycle, Record, lives
from shoal.ps.model.measured import Measured

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


PIECE_BYTES = 16 << 20
"""Of rows that are read at once, about: a message has to hold them."""


AT_ONCE = 2048
"""Rows that a store may give at once; a piece ends as soon as it has no room for so many."""


def row_bytes(table: RowStore) -> int:
    """The bytes of a row in a piece: its values, its slots, and what is known of its use."""
    return 4 * (table.dim + len(table.slot_names) * table.slot_width) + 16


def rows_of(table: RowStore, size: int) -> int:
    """The room for pieces of about `size` bytes of a table's rows with their slots."""
    return size // row_bytes(table) + AT_ONCE


MAX_EPOCH = (1 << 63) - 1
"""Of routing tables; no slices are of a later one."""


@dataclass(frozen=True)
class Moment:
    """The values beside the rows that a pull is told.

    version: pushes applied. applied: sequence of the caller's last one among them, 0 for none.
    dense: trainable and non-trainable slice, float32, if the caller is to have them.
    """

    version: int
    applied: int | None
    dense: tuple[Float32, Float32] | None


@dataclass(frozen=True)
class FrozenDense:
    """The dense slices at one moment, copied.

    trainable: "values" and each optimizer slot -> float32 [n]. state: float32 [m].
    version: pushes applied. step: the last one taken.
    """

    trainable: dict[str, Float32]
    state: Float32
    version: int
    step: int


def given_tables(spec: pb.ModelSpec) -> list[int]:
    """The positions of the tables whose rows the user's model brings; `ServerModel` keeps them."""
    return [
        position
        for position, table in enumerate(spec.tables)
        if InitializerSpec.from_json(table.initializer).given
    ]


class ServerModel:
    """The shard of a model that a server holds: slices of dense variables, and rows.

    Pulls and pushes may run in any number of threads: rows are guarded by the row
    store's own locks, the dense slice by its own. A pull that runs beside a push
    sees each row wholly before or wholly after it, and the dense slice element by
    element: asynchronous training tolerates that, and a copy under a lock would
    stall every pull behind every push.

    tables: by position. given: positions of those whose rows the user's model brings. dense: the
    slices of the dense variables. memory: of each table.
    moments: step, version, senders and how stale pushes were, which native/ changes too.
    lifecycle: the sweeps of tables whose rows expire or have a cap; None where none has.
    epoch: of the routing table that the checkpoint has from which it was restored; 0: of none.
    gained: slots are the server's now that were not then; how their rows came a log has.
    """

    def __init__(self, spec: pb.ModelSpec, server: int, servers: int, slots: int) -> None:
        """The slices are those of server `server` of `servers`, its rows of so many `slots`.

        Raises WireError(BAD_REQUEST) if the spec is out of bounds, or of no use to native/.
        """
        self.spec = spec
        self.epoch = 0
        self.gained = False
        try:
            check_model(spec)  # before memory is reserved for any of it
            self.tables = [
                RowStore(
                    table.dim,
                    OptimizerSpec.from_json(table.optimizer),
                    InitializerSpec.from_json(table.initializer),
                    table.seed,
                    value_dtype=table.value_dtype or "float32",
                    admit_after=table.admit_after or 1,
                )
                for table in spec.tables
            ]
            self.moments = Moments(self.tables)
            self.dense = DenseSlices(spec, server, servers, self.moments)
        except (ValueError, TypeError, RecursionError) as error:
            raise WireError(pb.BAD_REQUEST, f"model spec: {error}") from error
        self.given = given_tables(spec)
        self.memory = [Measured(table.memory_bytes) for table in self.tables]
        self._of_tables = {each.optimizer for each in self.tables}
        self.lifecycle = Lifecycle(spec, self.tables, slots, self.moments) if lives(spec) else None
        self._frozen = False
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        """Pushes applied."""
        return self.moments.version

    @property
    def step(self) -> int:
        """The optimizers' last step."""
        return self.moments.step

    def continue_from(self, known: int, *, whole: bool) -> None:
        """Raise the version above `known`, which a worker has seen of an earlier incarnation.

        So versions never go back for the worker, and it takes the dense values anew. whole: all
        that was answered was done again. Then a version that is no newer than ours is as the
        worker saw it: another one would only be one more step of a schedule, without a push.
        """
        if not whole or known > self.version:
            self.moments.exceed(known)

    def freeze(self) -> FrozenDense:
        """Fix all rows as they are for their `snapshot`, and copy the dense slices.

        No push may be under way. Raises WireError(DENSE_NOT_INITIALIZED), MemoryError,
        and ValueError if the model is frozen already.
        """
        with self._lock:
            if self._frozen:
                raise ValueError("a checkpoint is being written already")
            self._frozen = True
        try:
            # Without the lock: pulls take it, and would wait for the copy of a large slice.
            copies = self.dense.copies()
        except BaseException:
            self._frozen = False
            raise
        try:
            for table in self.tables:
                table.begin_snapshot()
        except MemoryError:
            self.thaw()
            raise
        return FrozenDense(*copies, self.version, self.step)

    def has_saved(self, step: int) -> None:
        """A complete checkpoint has the model as it was after this step."""
        if self.lifecycle is not None:
            self.lifecycle.removals.saved(step)

    def thaw(self) -> None:
        """End what `freeze` began."""
        for table in self.tables:
            table.end_snapshot()
        self._frozen = False

    def restore(
        self,
        version: int,
        step: int,
        trainable: dict[str, Float32],
        state: Float32,
        senders: dict[int, tuple[int, int]],
    ) -> None:
        """Set the dense slices with their slots, version and step, as frozen; rows are assigned.

        senders: of each worker, the incarnation and sequence of its last push in the version.
        Only for a new model.
        """
        self.dense.restore(trainable, state)
        self.moments.restore(version, step, senders)

    def _table(self, position: int) -> RowStore:
        if not 0 <= position < len(self.tables):
            raise WireError(
                pb.BAD_REQUEST, f"there is no table {position}: the model has {len(self.tables)}"
            )
        return self.tables[position]

    def dim(self, position: int) -> int:
        """Length of a table's rows. Raises WireError(BAD_REQUEST) if there is no such table."""
        return self._table(position).dim

    def value_dtype(self, position: int) -> str:
        """Dtype of a table's rows. Raises WireError(BAD_REQUEST) if there is no such table."""
        return self._table(position).value_dtype

    def lookup(self, position: int, ids: Int64, out: Float32, *, training: bool) -> None:
        """Write the rows of `ids` to `out`, float32 [n, dim]; creates none."""
        table = self._table(position)
        missing = missing_row(self.spec.tables[position], training=training)
        table.lookup(ids, out, missing=missing)

    def moment(
        self, worker: int, incarnation: int, dense_version: int, epoch: int = MAX_EPOCH
    ) -> Moment:
        """The model's version now, and the dense slices if they changed after `dense_version`.

        epoch: of the routing table by which the caller asks. Raises WireError(STALE_ROUTING) if the
        slices are those of a later one.
        dense_version: -1 always gets the slices, -2 never. Version, the worker's last push and
        the non-trainable slice are of one moment; the trainable slice is a view of the live
        values, to be copied before the next call. Raises WireError(DENSE_NOT_INITIALIZED).
        """
        block = None if dense_version == -2 else self.dense.block
        version, applied, state = self.moments.at(worker, incarnation, dense_version)
        if dense_version != -2 and epoch < self.moments.dense_epoch:
            raise WireError(pb.STALE_ROUTING, f"the dense slices have moved since epoch {epoch}")
        if block is None or state is None:
            return Moment(version, applied, None)
        return Moment(version, applied, (block.values, state))

    def check_learning_rates(self, learning_rate: float, of_tables: Sequence[float]) -> None:
        """Raises ValueError for a rate that one of the model's optimizers cannot use.

        of_tables: by position; empty: all have `learning_rate`. All are checked, so that every
        server says the same of a step, whichever rows it is to update, and because an update of
        --sync takes the rates of one of its pushes.
        """
        self.dense.optimizer.check_learning_rate(learning_rate)
        if of_tables:
            for table, rate in zip(self.tables, of_tables, strict=True):
                table.optimizer.check_learning_rate(rate)
        else:
            for optimizer in self._of_tables:
                optimizer.check_learning_rate(learning_rate)

    def ticket(self, push: Gradients) -> Ticket:
        """Admit a push to be applied, as `enter` does."""
        return self.enter(push.sender[0], push.pulled_version, push.event_time)

    def enter(self, worker: int, pulled_version: int, time: int | None) -> Ticket:
        """Admit a push of a worker to be applied: the next one is another step. `leave` ends it.

        time: its event time. Raises MemoryError, before anything is changed.
        """
        if self.lifecycle is None:
            return Ticket(*self.moments.ticket(worker, pulled_version))
        return Ticket(*self.lifecycle.enter(worker, pulled_version, time))

    def leave(self, record: Record | None) -> None:
        """End a push that had a ticket, as Lifecycle.leave. Raises MemoryError as `apply`."""
        if self.lifecycle is not None:
            self.lifecycle.leave(record)

    def suspend_sweeps(self, suspended: bool) -> None:
        """Make no sweep from now on, or again."""
        if self.lifecycle is not None:
            self.lifecycle.suspend(suspended)

    def settle(self, record: Record) -> None:
        """Sweep what is due as an earlier incarnation, or a move, has ended.

        No push may be under way.
        """
        if self.lifecycle is not None and self.lifecycle.owes():
            self.lifecycle.do_part(record)

    def sweep_again(self, step: int, frame: bytes | memoryview) -> None:
        """Do a part of a sweep again, with the ids of its log.

        Raises WireError or ValueError before anything is changed.
        """
        if self.lifecycle is None:
            raise ValueError("a sweep of tables whose rows stay for good")
        self.lifecycle.again(step, frame)
        self.moments.reach(step)

    def apply(self, push: Gradients, ticket: Ticket, *, again: bool = False) -> None:
        """Apply a push that was checked (checks.py).

        again: it was applied once by an earlier incarnation, with this ticket, and counted.

        Raises MemoryError where there is none for its rows. The model may then have a part of
        the push, and is of no more use: what else it raises is an error of ours, with the same
        effect.
        """
        step, others = ticket.step, ticket.others(push)
        # Here and not at the worker, as only now the staleness is known. 0 and 1 are alike:
        # the rate is never raised.
        divisor = max(1, others) if push.modulate_rate else 1
        for position, rows in push.tables.items():
            rate = push.table_rates[position] if push.table_rates else push.learning_rate
            self.tables[position].update(*rows, learning_rate=rate / divisor, step=step)
            if not again:
                faults.point("push-half-applied")
        if push.dense is not None:
            self.dense.update(push.dense[0], push.learning_rate / divisor, step)
        if again:
            self.moments.reach(step)
            if self.lifecycle is not None:
                self.lifecycle.pushed_again(step, push.event_time)
        # Each worker moves the statistics it pulled, and has moved since, by its own batch's
        # share. Moves from one value add up: whole, they would go beyond what they aim at, a
        # variance below zero. Divided, they are that of one larger batch.
        change = push.dense[1] if push.dense is not None else None
        # Of a pull from other servers, before rows moved, the time is not known.
        age = self.time() - push.pulled_time if push.pulled_time else 0.0
        stale = [] if again else [(ticket.staleness, age)]
        self.moments.count(stale, change, others, push.sender)

    def apply_update(
        self, update: Update, record: Record = lambda *_: None, *, again: bool = False
    ) -> None:
        """Apply an average of gradients. Not beside `apply`; again, and raises: as that.

        record: as `leave` takes it.
        """
        step, version = self.moments.next_step(), self.version
        for position, rows in update.tables.items():
            rate = update.table_rates[position] if update.table_rates else update.learning_rate
            self.tables[position].update(*rows, learning_rate=rate, step=step)
            if not again:
                faults.point("push-half-applied")
        change = None
        if update.dense is not None:
            gradient, change = update.dense
            self.dense.update(gradient, update.learning_rate, step)
        now = self.time()
        stale = [(max(0, version - pulled), now - at) for pulled, at in update.pulled]
        self.moments.count([] if again else stale, change)
        if (lifecycle := self.lifecycle) is not None:
            for time in update.event_times:
                lifecycle.clock.note(step, time)
            if again:
                # A cap may have been another one then: what was removed the log has.
                lifecycle.pushed_again(step, None)
            elif lifecycle.is_due():
                lifecycle.do_part(record)

    @staticmethod
    def time() -> float:
        """The clock by which the age of pulled values is measured, seconds."""
        return time.monotonic()

    def distributions(self) -> tuple[pb.Distribution, pb.Distribution]:
        """Staleness in pushes, and age of the values in seconds, of the pushes applied."""
        staleness, age = self.moments.distributions()
        return Distribution.of(*staleness).to_message(), Distribution.of(*age).to_message()

    def assign(self, position: int, ids: Int64, rows: Float32) -> None:
        """Set rows as they are; slots get their initial values.

        Raises WireError(BAD_REQUEST) if there is no such table, or the rows are not its.
        """
        table = self._table(position)
        if rows.shape != (ids.size, table.dim) or rows.dtype != np.float32:
            raise WireError(
                pb.BAD_REQUEST,
                f"table {self.spec.tables[position].name!r}: rows of shape {rows.shape} "
                f"({rows.dtype}) for {ids.size} ids; float32 of dim {table.dim} are wanted",
            )
        table.assign(ids, rows)

    def read_table(self, position: int) -> Iterator[tuple[Int64, Float32]]:
        """All rows of a table in pieces: ids int64 [n], rows float32 [n, dim]."""
        table = self._table(position)
        for piece in table.export(rows_of(table, PIECE_BYTES)):
            yield piece[0], piece[1]
