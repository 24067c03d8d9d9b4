"""Rows as vectors of ids before a step, and gradients of vectors as rows' after it.

An engine of the host's sees one vector for each id of a call, so that shapes follow from the batch
alone. Owns the two native passes around its step, and NumPy's clipping of what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.native.gradients import gather_rows, sum_by_inverse
from shoal.worker.servers.ids import TableIds

Float32 = npt.NDArray[np.float32]


def gathered(
    rows: Sequence[Float32], ids: Sequence[TableIds], calls: Sequence[int]
) -> list[Float32]:
    """The vectors of each call, float32 [ids of the call, dim].

    rows, ids: of each table, as pulled. calls: the position of the table of each call, in the order
    of the calls.
    """
    remaining = [list(each.inverses) for each in ids]
    return [gather_rows(rows[table], remaining[table].pop(0)) for table in calls]


def summed(
    gradients: Sequence[Float32 | None],
    ids: Sequence[TableIds],
    calls: Sequence[int],
    dims: Sequence[int],
) -> list[Float32]:
    """The gradients of each table's rows, float32 [unique, dim].

    gradients: of the vectors of each call, float32 [ids of the call, dim]; None for zeros. dims:
    length of a row of each table.
    """
    found = []
    for table, (of_table, dim) in enumerate(zip(ids, dims, strict=True)):
        own = [gradients[call] for call, its in enumerate(calls) if its == table]
        parts = [
            (gradient, inverse)
            for gradient, inverse in zip(own, of_table.inverses, strict=True)
            if gradient is not None
        ]
        if not parts:
            found.append(np.zeros((of_table.unique.size, dim), np.float32))
            continue
        values, inverse = parts[0]
        if len(parts) > 1:
            values = np.concatenate([each for each, _ in parts])
            inverse = np.concatenate([each for _, each in parts])
        found.append(sum_by_inverse(np.ascontiguousarray(values), inverse, of_table.unique.size))
    return found


def clipped(
    gradients: Sequence[Float32 | None], limits: Mapping[str, float]
) -> list[Float32 | None]:
    """Gradients within an optimizer's limits, as Keras clips them; None stays None.

    limits: by the names of the optimizer's arguments, of which the first that is here counts:
    clipvalue, clipnorm (of each gradient), global_clipnorm.
    """
    if limit := limits.get("clipvalue"):
        return [None if each is None else np.clip(each, -limit, limit) for each in gradients]
    if limit := limits.get("clipnorm"):
        return [
            None if each is None else _by_norm(each, _norm([each]), limit) for each in gradients
        ]
    if limit := limits.get("global_clipnorm"):
        norm = _norm([each for each in gradients if each is not None])
        return [None if each is None else _by_norm(each, norm, limit) for each in gradients]
    return list(gradients)


def _norm(gradients: Sequence[Float32]) -> float:
    """The norm of all of them together, summed in float64."""
    return float(np.sqrt(sum(np.square(each, dtype=np.float64).sum() for each in gradients)))


def _by_norm(gradient: Float32, norm: float, limit: float) -> Float32:
    if not norm > limit:
        return gradient
    return gradient * np.float32(limit / norm)
