"""The rows and vectors of a checkpoint, compared with all that its manifests say of them.

The only way to them: what restores, exports, shows or verifies a checkpoint reads it here, so
that none of these takes what another refuses. The files' form is arrow.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import arrow
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.manifests import CheckpointError
from shoal.native import ids as native_ids
from shoal.native.optimizers import OptimizerSpec
from shoal.proto.routing import flat_size, slice_of

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def table_pieces(checkpoint: Checkpoint, server: int, position: int) -> Iterator[dict[str, Array]]:
    """A table's rows in the share of `server`, in pieces, by column.

    `id` int64 [n], `values` float32 [n, dim], each optimizer slot float32 [n, width] under
    its name after arrow.SLOT, `version` and `uses` uint32 [n]. Raises CheckpointError naming
    a file that is not as written; after the last piece, too.
    """
    share = checkpoint.shares[server]
    described, rows = share["files"][position], share["rows"][position]
    path = checkpoint.folder.path(described["name"])
    table = checkpoint.model.tables[position]
    columns = arrow.table_columns(table.dim, OptimizerSpec.from_json(table.optimizer))
    found = 0
    for piece in arrow.read(checkpoint.folder, described, columns):
        ids = piece["id"]
        if (checkpoint.routing.owners[native_ids.slot_of(ids)] != server).any():
            raise CheckpointError(f"{path}: holds rows of another server")
        found += ids.size
        yield piece
    if found != rows:
        raise CheckpointError(f"{path}: {found} rows, not {rows}")


def dense_slices(checkpoint: Checkpoint, server: int) -> dict[str, Float32]:
    """The slice of the trainable variables in a share, as "values", and of each slot of theirs.

    float32 [elements of the slice]. Raises CheckpointError as `table_pieces`.
    """
    model = checkpoint.model
    names = OptimizerSpec.from_json(model.dense_optimizer).slot_names
    size = flat_size(model.trainable)
    return _vectors(checkpoint, server, -2, ["values", *names], size)


def state_slice(checkpoint: Checkpoint, server: int) -> Float32:
    """The slice of the non-trainable variables in a share. As `dense_slices`."""
    size = flat_size(checkpoint.model.non_trainable)
    return _vectors(checkpoint, server, -1, ["values"], size)["values"]


def _vectors(
    checkpoint: Checkpoint, server: int, file: int, names: list[str], size: int
) -> dict[str, Float32]:
    described = checkpoint.shares[server]["files"][file]
    path = checkpoint.folder.path(described["name"])
    ours = slice_of(size, server, len(checkpoint.shares))
    pieces = list(arrow.read(checkpoint.folder, described, arrow.vector_columns(names)))
    if len(pieces) != 1 or any(each.size != ours.stop - ours.start for each in pieces[0].values()):
        raise CheckpointError(f"{path}: not the {ours.stop - ours.start} elements of its slice")
    return pieces[0]


def verify(checkpoint: Checkpoint) -> None:
    """Read all of it. Raises CheckpointError naming a file that is not as written."""
    for server in range(len(checkpoint.shares)):
        for position in range(len(checkpoint.model.tables)):
            for _ in table_pieces(checkpoint, server, position):
                pass
        dense_slices(checkpoint, server)
        state_slice(checkpoint, server)
