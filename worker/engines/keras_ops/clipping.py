"""The clipping of what comes out of a step as one vector and the rows of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.proto import shoal_pb2 as pb
from shoal.worker.model.built import Optimizers

Float32 = npt.NDArray[np.float32]


def clipped_flat(
    optimizers: Optimizers,
    manifest: Sequence[pb.VariableSpec],
    dense: Float32,
    tables: Sequence[Float32],
) -> tuple[Float32, list[Float32]]:
    """The gradient of the flat trainable vector and those of all tables, clipped.

    manifest: of the variables in `dense`.
    """
    parts = [
        dense[each.offset : each.offset + math.prod(each.shape)].reshape(tuple(each.shape))
        for each in manifest
    ]
    clipped, rows = optimizers.clip(parts, tables)
    if all(one is other for one, other in zip(clipped, parts, strict=True)):
        return dense, list(rows)
    flat = [each.reshape(-1) for each in clipped]
    return np.concatenate([np.zeros(0, np.float32), *flat]), list(rows)
