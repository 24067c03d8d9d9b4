"""Rows that a job begins with, read by the servers; all else of them begins anew.

They are of what `--restore-from` names, with its dense values, or were brought by the user's model.
The form of the files is shoal.checkpoints.saved's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from shoal.checkpoints.saved import Export, Part, SavedCheckpoint, dense_value, open_saved
from shoal.checkpoints.threads import for_each
from shoal.errors import UserError
from shoal.native import ids as native_ids
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.beginning import Given

Flags = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]


class SavedRows(Given):
    """The values of an export or a checkpoint."""

    def read(self, spec: pb.ModelSpec) -> ServerModel:
        """The model, as `Given.read` gives it."""
        model = ServerModel(spec, self.server, self.routing.dense, self.routing.slots(self.server))
        saved = open_saved(self.location, self.opened)
        owned = self.routing.owners == self.server
        values = saved.dense()
        model.dense.initialize(
            self._slice(values, spec.trainable, saved.kind),
            self._slice(values, spec.non_trainable, saved.kind),
        )
        size = sum(saved.size(table.name, table.dim, owned) for table in spec.tables)
        self.progress.begin("read the rows of --restore-from", size)
        self._read_tables(saved, model, owned, range(len(spec.tables)))
        return model

    def _slice(
        self, values: dict[str, Float32], variables: Iterable[pb.VariableSpec], kind: str
    ) -> Float32:
        """Its slice of the flat vector of these variables, float32 [n]."""
        parts = [
            dense_value(values, each.name, tuple(each.shape), kind).reshape(-1)
            for each in variables
        ]
        flat = np.concatenate([np.zeros(0, np.float32), *parts])
        return flat[self.routing.dense_slice(flat.size, self.server)]

    def _read_tables(
        self,
        saved: Export | SavedCheckpoint,
        model: ServerModel,
        owned: Flags,
        positions: Sequence[int],
    ) -> None:
        parts: dict[int, list[Part]] = {}

        def find(position: int) -> None:
            table = model.spec.tables[position]
            found = saved.parts(table.name, table.dim, owned, self.progress.advance)
            # An export's parts have rows of all servers, an equal number of each, about.
            rows = sum(part.rows for part in found)
            ours = rows if saved.by_slots else rows * int(owned.sum()) // owned.size
            model.tables[position].reserve(ours)
            parts[position] = found

        def read(item: tuple[int, Part]) -> None:
            position, part = item
            for ids, rows in part.read():
                ours = owned[native_ids.slot_of(ids)]
                if not ours.all():
                    ids, rows = ids[ours], rows[ours]
                model.assign(position, np.ascontiguousarray(ids), np.ascontiguousarray(rows))
                faults.point("rows-assigned")
            self.progress.advance(part.bytes)

        def count(position: int) -> None:
            table = model.spec.tables[position]
            for ids, uses in saved.counted(table.name, table.dim, owned):
                ours = owned[native_ids.slot_of(ids)]
                versions = np.zeros(int(ours.sum()), np.int64)  # this job has no step yet
                model.tables[position].assign_counting(ids[ours], versions, uses[ours])

        for_each(find, positions)
        for_each(read, chain(*([(i, part) for part in parts[i]] for i in sorted(parts))))
        for_each(count, positions)


class FirstRows(SavedRows):
    """The rows that the user's model brings, as worker/outputs/first_rows.py wrote them."""

    def read(self, spec: pb.ModelSpec) -> ServerModel:
        """The model, as `Given.read` gives it; a worker gives the dense values."""
        model = ServerModel(spec, self.server, self.routing.dense, self.routing.slots(self.server))
        self.fill(model)
        return model

    def fill(self, model: ServerModel) -> None:
        """Give a model that has no rows yet those that it begins with. Raises as `read`."""
        if not model.given:
            return
        try:
            saved = Export(self.location, self.opened)
            owned = self.routing.owners == self.server
            tables = [model.spec.tables[i] for i in model.given]
            size = sum(saved.size(table.name, table.dim, owned) for table in tables)
            self.progress.begin("read the rows that the model brings", size)
            self._read_tables(saved, model, owned, model.given)
        except UserError as error:
            why = str(error).removeprefix("--restore-from: ")
            raise UserError(f"the rows that the model brings cannot be read: {why}") from error
