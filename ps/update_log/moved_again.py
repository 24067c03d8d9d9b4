"""Entries of a log that are done again: those of a move of slots, and an end in the middle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from shoal.errors import Error
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import from_bits
from shoal.proto.wire import frames
from shoal.ps import moved_rows
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.moved_dense import ComingSlices, elements_in

logger = logging.getLogger(__name__)


class HalfAppliedError(Error):
    """A push of the log was applied in part: the model is of no use. at: its place in the log."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(at, why)
        self.at = at
        self.why = why


@contextmanager
def whole(at: int, entry: pb.LogEntry, frame: bytes | memoryview) -> Iterator[None]:
    """Apply an entry. Raises HalfAppliedError for whatever is raised."""
    try:
        yield
    except Exception as error:
        logger.exception("an entry of the log was applied in part")
        why = f"{name_of(entry, frame)} cannot be done again: {error!r}"
        raise HalfAppliedError(at, why) from error


def name_of(entry: pb.LogEntry, frame: bytes | memoryview) -> str:
    """An entry in words."""
    what = "move" if entry.move else "sweep" if entry.sweep else "update"
    return f"the {what} of step {entry.step} ({len(frame):,} bytes)"


class Coming:
    """The dense slices of a log's moves, until the table of their move holds.

    epoch: of the last table whose rows are in the model, or of which an entry was done again.
    """

    def __init__(self, model: ServerModel) -> None:
        self._model = model
        self._attempt = 0
        self._slices: ComingSlices | None = None
        self.epoch = model.epoch

    def take(self, header: pb.TakeRowsRequest, elements: npt.NDArray[Any]) -> None:
        """Elements came. Raises WireError."""
        slices = self._slices
        if slices is None or (slices.epoch, self._attempt) != (header.epoch, header.attempt):
            slices = ComingSlices(self._model, header.dense.servers, header.epoch)
            self._slices, self._attempt = slices, header.attempt
        slices.take(header.dense, elements)

    def hold(self, epoch: int, servers: int) -> bool:
        """Let the slices of this epoch hold, if all came; return True if they do.

        servers: the number of servers among which they are divided.
        """
        slices, self._slices = self._slices, None
        if slices is None or (slices.epoch, slices.servers) != (epoch, servers):
            # What came was for another attempt; for this one the server may have got no elements.
            slices = ComingSlices(self._model, servers, epoch)
        if slices.complete:
            slices.hold()
        return slices.complete


def moved_again(
    at: int,
    entry: pb.LogEntry,
    frame: bytes | memoryview,
    model: ServerModel,
    pushes: PushRegister,
    pending: PendingGradients | None,
    coming: Coming,
) -> bool:
    """Do a part of a move of slots again, unless the checkpoint is of a later table.

    Whether the rows' move was completed the log need not say: what is another server's goes when
    this one registers.
    """
    if entry.move <= model.epoch:
        return False
    coming.epoch = max(coming.epoch, entry.move)
    if entry.moved == pb.JOINED:
        request = pb.JoinRequest.FromString(bytes(frame))
        moved_rows.join(model, pushes, request)
        if pending is not None:
            pending.begin(request.update)
    elif entry.moved == pb.SLOTS_EMPTIED:
        slots = from_bits(frame)
        with whole(at, entry, frame):
            moved_rows.remove(model, slots)
    elif entry.moved == pb.SLICES_TAKEN:
        servers = pb.DensePiece.FromString(bytes(frame)).servers
        with whole(at, entry, frame):
            if not coming.hold(entry.move, servers):
                raise ValueError("not all elements of the dense variables are in the log")
    elif frames.header_of(frame, pb.TakeRowsRequest).HasField("dense"):
        coming.take(*elements_in(frame))
    else:
        header, arrays = moved_rows.rows_in(model, frame)
        with whole(at, entry, frame):
            # With --sync the log counts its own entries.
            step = entry.step - 1 if pending is None else model.step
            moved_rows.take(model, header, arrays, step)
    return True
