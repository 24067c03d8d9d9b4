"""The values of a ServerGroup, without servers: for `shoal check` and `shoal export`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.saved import SavedCheckpoint
from shoal.errors import UserError
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.missing_rows import missing_row
from shoal.proto.values.routing import Routing

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

ROWS_PER_PIECE = 65_536


def store_of(table: pb.TableSpec) -> RowStore:
    """An empty store of a table."""
    return RowStore(
        table.dim,
        OptimizerSpec.from_json(table.optimizer),
        InitializerSpec.from_json(table.initializer),
        table.seed,
        value_dtype=table.value_dtype or "float32",
        admit_after=table.admit_after or 1,
    )


class LocalServers:
    """A ServerGroup of no servers. version: of the model."""

    def __init__(self) -> None:
        self.version = 0
        self._routing = Routing.even(1)
        self._held: list[pb.TableSpec] = []
        self._tables: list[RowStore] = []
        self._of_tables: list[pb.TableSpec] = []
        self._dense = (np.zeros(0, np.float32), np.zeros(0, np.float32))

    def register(self, spec: pb.ModelSpec, trainable: Float32, state: Float32) -> None:
        """Hold the model's first values."""
        self._held = list(spec.tables)
        self._tables = [store_of(table) for table in spec.tables]
        self._of_tables = list(spec.tables)
        self._dense = (trainable, state)

    def pull(self, calls: Sequence[Sequence[Int64]], *, training: bool) -> Any:
        """The rows for the ids of a batch, as of ServerGroup.pull, and the dense vectors."""
        from shoal.worker.servers.ids import group_ids
        from shoal.worker.servers.pulling import Pulled

        ids = [group_ids(each, self._routing) for each in calls]
        rows = [
            table.lookup(each.unique, missing=missing_row(spec, training=training))
            for table, spec, each in zip(self._tables, self._of_tables, ids, strict=True)
        ]
        return Pulled(ids, rows, *self._dense, [0], [0.0], [0], [0], self._routing)

    def rows(self, table: int, ids: Int64) -> Float32:
        """The rows of a table, float32 [n, dim]; where there is none, what evaluation reads."""
        missing = missing_row(self._of_tables[table], training=False)
        rows: Float32 = self._tables[table].lookup(ids, missing=missing)
        return rows

    def hold(self, table: int, ids: Int64, rows: Float32) -> None:
        """Assign float32 rows for an export, whatever dtype the table has."""
        spec = pb.TableSpec()
        spec.CopyFrom(self._held[table])
        spec.value_dtype = ""
        self._tables[table] = store_of(spec)
        self.assign_rows(table, ids, rows)

    def assign_rows(self, table: int, ids: Int64, rows: Float32) -> None:
        """Set rows of a table: ids int64 [n] without repeats, rows float32 [n, dim]."""
        self._tables[table].assign(ids, rows)


class CheckpointServers(LocalServers):
    """The values of a checkpoint, as the servers that wrote it had them.

    Rows are read from the checkpoint's files when they are asked for, not held.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.version = checkpoint.version
        self.saved = SavedCheckpoint(checkpoint)
        self._checkpoint = checkpoint
        self._specs = {table.name: table for table in checkpoint.model.tables}
        self._names: list[str] = []

    def register(self, spec: pb.ModelSpec, trainable: Float32, state: Float32) -> None:
        """Take the model's dense values. Raises UserError if it has other tables."""
        where = self._checkpoint.folder.location
        self._names = [table.name for table in spec.tables]
        if sorted(self._names) != sorted(self._specs):
            raise UserError(
                f"the model has the tables {_listed(self._names)}, and the checkpoint {where} "
                f"{_listed(self._specs)}: is it of another model, or of another "
                "--embedding-threshold?"
            )
        for table in spec.tables:
            found = self._specs[table.name]
            if (table.dim, table.vocabulary) != (found.dim, found.vocabulary):
                raise UserError(
                    f"table {table.name!r} of the model has dim {table.dim} and "
                    f"{table.vocabulary or 'any'} ids, that of the checkpoint {where} dim "
                    f"{found.dim} and {found.vocabulary or 'any'} ids"
                )
        # With the seeds that the job had, whatever is configured now.
        super().register(
            pb.ModelSpec(tables=[self._specs[name] for name in self._names]), trainable, state
        )

    def counts(self) -> list[int]:
        """Rows of each table in an export."""
        files = {table.name: i for i, table in enumerate(self._checkpoint.model.tables)}
        return [
            self._specs[name].vocabulary
            or sum(shard["rows"][files[name]] for shard in self._checkpoint.shards)
            for name in self._names
        ]

    def pieces(self, position: int) -> Iterator[tuple[Int64, Float32]]:
        """All rows of a table, in pieces; of a given number of ids, those never trained too.

        Raises UserError naming a file that cannot be read.
        """
        spec = self._specs[self._names[position]]
        untrained = np.ones(spec.vocabulary, bool)
        for ids, rows in self.saved.rows(spec.name, spec.dim):
            if spec.vocabulary:
                untrained[ids] = False
            yield ids, rows
        missing = np.flatnonzero(untrained)
        for start in range(0, missing.size, ROWS_PER_PIECE):
            ids = missing[start : start + ROWS_PER_PIECE]
            yield ids, self.rows(position, ids)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "(none)"
