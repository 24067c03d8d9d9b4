"""The answer of a pull: rows that are looked up while those before them travel.

Owns the order of the arrays and the size of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import values
from shoal.proto import shoal_pb2 as pb
from shoal.proto.wire import frames
from shoal.ps.model.tables import ServerModel

Array = npt.NDArray[Any]
FLOAT32 = np.dtype(np.float32)

BLOCK_BYTES = 512 << 10
"""Of rows that are sent together; see docs/notes/server.md."""


def rows_in_blocks(
    model: ServerModel,
    header: pb.PullReply,
    tables: Sequence[tuple[int, Array, np.dtype[Any]]],
    dense: Sequence[Array],
    check: Callable[[], object],
    *,
    training: bool,
) -> frames.Pieces:
    """The frame of a pull's answer, whose rows are looked up as they are sent.

    tables: of each its position, ids, int64 [n], and the dtype of its rows on the wire. dense: the
    dense slices, sent from where they are; may be empty. check: is called when rows were looked up
    and before they are sent, and raises if they may not be what was asked for. training: as
    ServerModel.lookup.

    Raises WireError(BAD_REQUEST) if there is no such table.
    """
    shapes = [(dtype, (ids.size, model.dim(position))) for position, ids, dtype in tables]
    layout = frames.Layout(header, shapes + [(FLOAT32, part.shape) for part in dense])
    paddings = iter(layout.paddings)
    block = np.empty(min(layout.size, BLOCK_BYTES), np.uint8)

    def buffers() -> Iterator[list[frames.Buffer]]:
        ready: list[frames.Buffer] = [layout.head]
        used = 0
        for (position, ids, dtype), (_, (count, dim)) in zip(tables, shapes, strict=True):
            ready.append(next(paddings))
            width = dim * dtype.itemsize
            start = 0
            while start < count:
                taken = min(count - start, (block.size - used) // width)
                if not taken and used:
                    check()
                    yield ready
                    ready, used = [], 0
                    continue
                taken = max(taken, 1)  # of rows larger than a block
                end = used + taken * width
                place = block[used:end] if end <= block.size else np.empty(end, np.uint8)
                rows = place.view(dtype).reshape(taken, dim)
                some = ids[start : start + taken]
                if dtype == FLOAT32:
                    model.lookup(position, some, rows, training=training)
                else:
                    found = np.empty(rows.shape, np.float32)
                    model.lookup(position, some, found, training=training)
                    values.encode(found, rows)
                ready.append(rows)
                start += taken
                used = end + -end % frames.ALIGNMENT
        for part in dense:
            ready += [next(paddings), part]
        check()
        yield ready

    return frames.Pieces(layout.size, buffers())
