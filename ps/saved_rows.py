"""What a job begins with, read by its servers: their shards of what --restore-from names.

An export or a checkpoint does not fit into a worker, so each server reads its own shard, as
soon as a worker has told it what the model is: at the job's beginning, and again where it
is started again and there is no checkpoint. Owns the thread that does this; the form of the files
is shoal.checkpoints.saved's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from shoal.checkpoints.saved import Export, Part, SavedCheckpoint, dense_value, open_saved
from shoal.checkpoints.storage import Storage
from shoal.checkpoints.threads import for_each
from shoal.native import ids as native_ids
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.routing import Routing, slice_of
from shoal.ps.progress import Progress
from shoal.ps.tables import ServerModel

Flags = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)


class SavedRows:
    """The shard of server `server` in what is at `location`.

    opened: as `newest_shard` takes it. failure: why it cannot be had; then the server is of
    no use.
    """

    def __init__(
        self,
        location: str,
        server: int,
        routing: Routing,
        progress: Progress,
        opened: Callable[[str], Storage],
    ) -> None:
        self._location = location
        self._progress = progress
        self._opened = opened
        self._server = server
        self._routing = routing
        self._thread: threading.Thread | None = None
        self._model: ServerModel | None = None
        self.failure: Exception | None = None

    def model(self, spec: pb.ModelSpec) -> ServerModel:
        """The model of `spec` with its rows and dense values.

        Begins to read them at the first call. Raises WireError(NOT_READY) until they are
        read, so that nobody holds a thread of the server meanwhile. Not by two threads at once.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(spec,), name="saved-rows")
            self._thread.daemon = True
            self._thread.start()
        self.check_ready()
        assert self._model is not None
        return self._model

    def check_ready(self) -> None:
        """Raises WireError(NOT_READY) while it is being read, and if it could not be."""
        if self._thread is not None and self._model is None:
            raise WireError(pb.NOT_READY, f"the server is to read {self._location} first")

    def _run(self, spec: pb.ModelSpec) -> None:
        try:
            self._model = self._read(spec)
            logger.info("has its shard of %s", self._location)
        except Exception as error:
            # For the process's own thread, which ends it, and says why.
            self.failure = error
        finally:
            self._progress.end()

    def _read(self, spec: pb.ModelSpec) -> ServerModel:
        """The model with its rows and dense values.

        Raises UserError naming the variable, table or file at fault, StorageError, StoppedError;
        WireError for a model that this version does not know.
        """
        model = ServerModel(spec, self._server, self._routing.servers)
        saved = open_saved(self._location, self._opened)
        owned = self._routing.owners == self._server
        values = saved.dense()
        model.dense.initialize(
            self._slice(values, spec.trainable, saved.kind),
            self._slice(values, spec.non_trainable, saved.kind),
        )
        size = sum(saved.size(table.name, table.dim, owned) for table in spec.tables)
        self._progress.begin("read the rows of --restore-from", size)
        self._read_tables(saved, model, owned)
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
        return flat[slice_of(flat.size, self._server, self._routing.servers)]

    def _read_tables(
        self, saved: Export | SavedCheckpoint, model: ServerModel, owned: Flags
    ) -> None:
        parts: dict[int, list[Part]] = {}

        def find(position: int) -> None:
            table = model.spec.tables[position]
            found = saved.parts(table.name, table.dim, owned, self._progress.advance)
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
            self._progress.advance(part.bytes)

        def count(position: int) -> None:
            table = model.spec.tables[position]
            for ids, uses in saved.counted(table.name, table.dim, owned):
                ours = owned[native_ids.slot_of(ids)]
                versions = np.zeros(int(ours.sum()), np.int64)  # this job has no step yet
                model.tables[position].assign_counting(ids[ours], versions, uses[ours])

        for_each(find, range(len(model.spec.tables)))
        for_each(read, chain(*([(i, part) for part in parts[i]] for i in sorted(parts))))
        for_each(count, range(len(model.spec.tables)))
