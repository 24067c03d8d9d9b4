"""Which rows or counted ids of a store are chosen, by their headers alone (expiry.h)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.native.ids import mix64
from shoal.native.rowstore import USE_CLASSES

Int64 = npt.NDArray[np.int64]

ORDERS = 1 << 64
"""What an order is below."""


@dataclass(frozen=True, eq=False)
class Choice:
    """By the step of the last use, which depends on how often an id was used.

    sure, maybe: int64 [USE_CLASSES], a step for each class of use counts, floor(log2(uses)); sure
    is nowhere above maybe. Chosen is what was last used before `sure`, and of what was last used
    before `maybe` the ids whose order is below `below`.
    """

    sure: Int64
    maybe: Int64
    below: int = 0

    @classmethod
    def older_than(cls, step: int) -> Choice:
        """All that was last used before a step, however often."""
        cuts = np.full(USE_CLASSES, step, np.int64)
        return cls(cuts, cuts)


def order_of(ids: Int64) -> npt.NDArray[np.uint64]:
    """A place of each id among all 2^64, which is the same in every process. int64 [n]."""
    return mix64(mix64(ids).view(np.int64))
