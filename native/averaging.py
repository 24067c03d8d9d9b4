"""The average of several gradients: of dense vectors, and of rows by id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.native import gradients, ids

Rows = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Ids int64 [n] without repeats, and a gradient each, float32 [n, dim]."""


def mean_of_vectors(parts: Sequence[NDArray[np.float32]], divisor: int) -> NDArray[np.float32]:
    """The sum of vectors of one length, in their order, by `divisor`. At least one part."""
    if len(parts) == divisor == 1:
        return parts[0]
    total = parts[0] + parts[1] if len(parts) > 1 else parts[0].copy()
    for part in parts[2:]:
        total += part
    total /= np.float32(divisor)
    return total


def mean_of_rows(parts: Sequence[Rows], divisor: int) -> Rows:
    """The sum by id of the gradients of all parts, in their order, by `divisor`.

    A row is divided by `divisor` however many parts have it: a part without it has a
    gradient of zero, as in the average of dense vectors. At least one part.
    """
    if len(parts) == divisor == 1:
        return parts[0]
    distinct, inverse, _ = ids.unique(np.concatenate([part[0] for part in parts]))
    total = gradients.sum_by_inverse(
        np.concatenate([part[1] for part in parts]), inverse, len(distinct)
    )
    total /= np.float32(divisor)
    return distinct, total
