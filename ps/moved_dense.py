"""Elements of the dense variables that move, where a new table divides them among other servers.

They are sent while no push is taken, and lie beside the server's slices until the new table holds.
Owns which elements go where, how they travel, and the new slices that are made of them; a log has
the same frames. When that is done is moving.py's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import slice_of
from shoal.proto.wire import frames
from shoal.proto.wire.transport import LARGEST_SLICE_BYTES
from shoal.ps.model.tables import ServerModel
from shoal.ps.model.unpack import exactly

Float32 = npt.NDArray[np.float32]

PIECE = 1 << 20
"""Elements in a frame, at most."""


def moving(
    model: ServerModel, head: pb.TakeRowsRequest, target: int, servers: int
) -> Iterator[frames.Pieces]:
    """Frames of TakeRows with what server `target` of `servers` gets of this server's elements.

    head: has the epoch and the attempt. No push may be under way.
    """
    theirs = _of_vectors(model, *(slice_of(size, target, servers) for size in model.dense.sizes))
    parts = zip(_vectors(model), _of_vectors(model, *model.dense.slices), theirs, strict=True)
    for vector, (values, at, wanted) in enumerate(parts):
        start, stop = max(at.start, wanted.start), min(at.stop, wanted.stop)
        for first in range(start, stop, PIECE):
            header = pb.TakeRowsRequest(
                dense=pb.DensePiece(vector=vector, start=first, servers=servers)
            )
            header.MergeFrom(head)
            piece = values[first - at.start : min(first + PIECE, stop) - at.start]
            yield frames.pieces(header, [piece])


def elements_in(frame: bytes | memoryview) -> tuple[pb.TakeRowsRequest, Float32]:
    """The elements in a frame of TakeRows. Raises WireError(BAD_REQUEST)."""
    header, arrays = frames.decode(frame, pb.TakeRowsRequest)
    (elements,) = exactly(arrays, 1)
    return header, elements


def _vectors(model: ServerModel) -> list[Float32]:
    """The server's part of each vector, as DensePiece counts them."""
    block = model.dense.block
    return [block.values, *(block.slots[name] for name in sorted(block.slots)), model.dense.state]


def _of_vectors(model: ServerModel, trainable: slice, state: slice) -> list[slice]:
    """For each of `_vectors`, which of these is its: slots are as the trainable variables are."""
    return [*[trainable] * (1 + len(model.dense.block.slots)), state]


class ComingSlices:
    """The slices that a server is to have by another table, while their elements come.

    servers: among which that table divides the vectors. epoch: of the table.
    """

    def __init__(self, model: ServerModel, servers: int, epoch: int) -> None:
        """Raises WireError: DENSE_NOT_INITIALIZED, BAD_REQUEST if they are too large."""
        self.servers = servers
        self.epoch = epoch
        self._model = model
        trainable, state = model.dense.slices_among(servers)
        lengths = [each.stop - each.start for each in (trainable, state)]
        if 4 * sum(lengths) > LARGEST_SLICE_BYTES:
            raise WireError(
                pb.BAD_REQUEST,
                f"one of {servers} servers would have {sum(lengths):,} elements of the dense "
                f"variables; {LARGEST_SLICE_BYTES / 1e9:.1f} GB are the most",
            )
        self._at = _of_vectors(model, trainable, state)
        self._vectors = [np.zeros(each.stop - each.start, np.float32) for each in self._at]
        self._came = [np.zeros(each.size, np.bool_) for each in self._vectors]
        # Its own elements it keeps: nobody sends them, and they change until the table holds.
        for vector, at in enumerate(_of_vectors(model, *model.dense.slices)):
            self._came[vector][self._inside(vector, at)] = True

    def _inside(self, vector: int, at: slice) -> slice:
        """The slice of the coming vector that holds those of elements `at` of the whole one."""
        mine = self._at[vector]
        start = min(max(at.start, mine.start), mine.stop)
        return slice(start - mine.start, max(start, min(at.stop, mine.stop)) - mine.start)

    def take(self, piece: pb.DensePiece, elements: Float32) -> None:
        """Elements come. Raises WireError(BAD_REQUEST) if they are none of these slices."""
        vector = piece.vector
        if vector < len(self._vectors) and elements.dtype == np.float32 and elements.ndim == 1:
            inside = self._inside(vector, slice(piece.start, piece.start + elements.size))
            if inside.stop - inside.start == elements.size and piece.servers == self.servers:
                self._vectors[vector][inside] = elements
                self._came[vector][inside] = True
                return
        raise WireError(
            pb.BAD_REQUEST,
            f"{elements.size} elements from {piece.start} of dense vector {vector} among "
            f"{piece.servers} servers are none of this server's",
        )

    @property
    def complete(self) -> bool:
        """True if all elements are there."""
        return all(came.all() for came in self._came)

    def hold(self) -> None:
        """Replace the model's slices by these. No push may be under way; all must have come."""
        dense = self._model.dense
        own = zip(_vectors(self._model), _of_vectors(self._model, *dense.slices), strict=True)
        for vector, (values, at) in enumerate(own):
            inside = self._inside(vector, at)
            first = self._at[vector].start + inside.start - at.start
            self._vectors[vector][inside] = values[first : first + inside.stop - inside.start]
        values, *slots, state = self._vectors
        trainable = {"values": values, **dict(zip(sorted(dense.block.slots), slots, strict=True))}
        dense.replace(self.servers, trainable, state, self.epoch)
