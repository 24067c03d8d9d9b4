"""Elements of the dense variables that move, where a new table divides them among other servers.

They are sent while no push is taken, and lie beside the server's slices until the new table holds.
Owns which elements go where, how they travel, and the new slices that are made of them; a log has
the same frames. When that is done is moving.py's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shoal.proto import frames
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.routing import slice_of
from shoal.proto.transport import LARGEST_SLICE_BYTES
from shoal.ps.tables import ServerModel

Float32 = npt.NDArray[np.float32]

PIECE = 1 << 20
"""Elements in a frame, at most."""


def moving(
    model: ServerModel, head: pb.TakeRowsRequest, target: int, servers: int
) -> Iterator[frames.Pieces]:
    """Frames of TakeRows with what server `target` of `servers` gets of this server's elements.

    head: has the epoch and the attempt. No push may be under way.
    """
    theirs = [slice_of(size, target, servers) for size in model.dense.sizes]
    for vector, (values, at) in enumerate(_vectors(model)):
        wanted = theirs[vector == _vector_count(model) - 1]
        start, stop = max(at.start, wanted.start), min(at.stop, wanted.stop)
        for first in range(start, stop, PIECE):
            header = pb.TakeRowsRequest(
                dense=pb.DensePiece(vector=vector, start=first, servers=servers)
            )
            header.MergeFrom(head)
            piece = values[first - at.start : min(first + PIECE, stop) - at.start]
            yield frames.pieces(header, [piece])


def _vectors(model: ServerModel) -> list[tuple[Float32, slice]]:
    """The server's part of each vector, as DensePiece counts them, and where it is in the whole."""
    block = model.dense.block
    trainable, state = model.dense.slices
    slots = [block.slots[name] for name in sorted(block.slots)]
    return [*((each, trainable) for each in (block.values, *slots)), (model.dense.state, state)]


def _vector_count(model: ServerModel) -> int:
    return 2 + len(model.dense.block.slots)


class ComingSlices:
    """The slices that a server is to have by another table, while their elements come.

    servers: among which that table divides the vectors. epoch: of the table.
    """

    def __init__(self, model: ServerModel, servers: int, epoch: int) -> None:
        """Raises WireError: DENSE_NOT_INITIALIZED, BAD_REQUEST if they are too large."""
        self.servers = servers
        self.epoch = epoch
        self._model = model
        self._at = model.dense.slices_among(servers)
        lengths = [each.stop - each.start for each in self._at]
        if 4 * sum(lengths) > LARGEST_SLICE_BYTES:
            raise WireError(
                pb.BAD_REQUEST,
                f"one of {servers} servers would have {sum(lengths):,} elements of the dense "
                f"variables; {LARGEST_SLICE_BYTES / 1e9:.1f} GB are the most",
            )
        count = _vector_count(model)
        self._vectors = [np.zeros(lengths[k == count - 1], np.float32) for k in range(count)]
        self._came = [np.zeros(each.size, np.bool_) for each in self._vectors]
        # Its own elements it keeps: nobody sends them, and they change until the table holds.
        for vector, (_, at) in enumerate(_vectors(model)):
            self._came[vector][self._inside(vector, at)] = True

    def _inside(self, vector: int, at: slice) -> slice:
        """Where elements of the whole vector are in the coming one; those that are there."""
        mine = self._at[vector == len(self._vectors) - 1]
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
        """Whether all elements are there."""
        return all(came.all() for came in self._came)

    def hold(self) -> None:
        """Have the model's slices be these. No push may be under way; all must have come."""
        dense = self._model.dense
        for vector, (values, at) in enumerate(_vectors(self._model)):
            inside = self._inside(vector, at)
            first = self._at[vector == len(self._vectors) - 1].start + inside.start - at.start
            self._vectors[vector][inside] = values[first : first + inside.stop - inside.start]
        values, *slots, state = self._vectors
        trainable = {"values": values, **dict(zip(sorted(dense.block.slots), slots, strict=True))}
        dense.replace(self.servers, trainable, state, self.epoch)
