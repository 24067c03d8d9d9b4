"""The answers to pulls: rows of the caller's ids, and the dense slices where they are newer.

Owns what of the model one answer holds, and how many whole answers there are at a time. How rows
travel is rows.py's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import values
from shoal.native.answering import Answerer
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.budget import Budget
from shoal.proto.errors import WireError
from shoal.proto.wire import frames
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.rows import rows_in_blocks
from shoal.ps.model.unpack import ids_of_tables
from shoal.ps.ownership import Ownership
from shoal.ps.registration import Registration

Array = npt.NDArray[Any]

ANSWER_BYTES = 256 << 20
"""Of answers to pulls of --sync, which are made as a whole; beyond it pulls have to come again."""


class Pulls:
    """The pulls of one server; those that its Answerer leaves to Python."""

    def __init__(
        self,
        registration: Registration,
        ownership: Ownership,
        pending: PendingGradients,
        answerer: Answerer,
    ) -> None:
        """registration: has the model. pending: has updates of --sync apart from whole answers."""
        self._registration = registration
        self._ownership = ownership
        self._pending = pending
        self._answers = Budget("whole answers that nobody has taken yet", ANSWER_BYTES)
        self._answerer = answerer
        self._answered = 0

    @property
    def answered(self) -> int:
        """Pulls that were answered, here or without Python."""
        return self._answered + sum(self._answerer.durations(methods.PULL.kind)[0])

    def answer(self, frame: bytes | memoryview) -> frames.Pieces:
        """Rows of each table's ids and, if newer than the caller's, the dense slices.

        frame: of a pb.PullRequest. Raises WireError.
        """
        request, arrays = frames.decode(frame, pb.PullRequest)
        if request.HasField("caller"):
            self._registration.workers.require(request.caller)
        ids = ids_of_tables(arrays, request)
        if not request.whole_updates:
            # A pull waits for nobody: see ServerModel.
            return self._read(request, arrays, ids)
        self._answers.check()
        with self._pending.whole.reading(request.after):
            # Read as a whole, so that no update waits for who takes it slowly.
            whole = self._read(request, arrays, ids).joined()
        return frames.Pieces(len(whole), self._answers.giving(whole))

    def _read(
        self, request: pb.PullRequest, arrays: list[Array], ids: list[Array]
    ) -> frames.Pieces:
        self._ownership.check(request.routing_epoch, arrays)
        self._answerer.note_load(arrays)
        model = self._registration.model
        # Read before the rows: a push that lands in between makes the caller count
        # one push too many as missed, never one too few.
        caller = request.caller
        moment = model.moment(
            caller.worker, caller.incarnation, request.dense_version, request.routing_epoch
        )
        dense = moment.dense or ()
        header = pb.PullReply(
            version=moment.version,
            applied=moment.applied,
            has_dense=moment.dense is not None,
            time=model.time(),
            update=self._pending.update,
        )
        self._answered += 1
        tables = [
            (position, own, _value_dtype(request.value_type, model.value_dtype(position)))
            for position, own in zip(request.tables, ids, strict=True)
        ]

        def check() -> None:
            # Rows that have moved away meanwhile are not there to be looked up.
            self._ownership.check(request.routing_epoch, ())

        return rows_in_blocks(model, header, tables, dense, check, training=request.training)


def _value_dtype(value_type: pb.DataType, held: str) -> np.dtype[Any]:
    """The dtype of rows on the wire. held: that of the table, by name."""
    if value_type == pb.DATA_TYPE_UNSPECIFIED:
        return values.DTYPES[held]
    if value_type not in (pb.FLOAT32, pb.BFLOAT16, pb.FLOAT16):
        raise WireError(pb.BAD_REQUEST, f"rows cannot travel as type {value_type}")
    return frames.DTYPES[value_type]
