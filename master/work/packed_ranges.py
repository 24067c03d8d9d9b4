"""Very many ranges of whole numbers in few bytes.

As ranges.py has them, of records that were trained: while an epoch is trained in random order,
nearly each of its tasks is a range by itself. As tuples they take a hundred bytes each, and as
long to be joined as there are of them. Bytes are part of a job's state. No I/O.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shoal.master.work.ranges import Range

Int64 = npt.NDArray[np.int64]

EMPTY = b""
"""No range."""

_LEVEL = 1


def joined(packed: bytes, added: Iterable[Range]) -> bytes:
    """All numbers of packed ranges, or of these; empty and overlapping ranges are fine."""
    rows = np.concatenate([_unpacked(packed), np.array(list(added), np.int64).reshape(-1, 2)])
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return EMPTY
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    ends = np.maximum.accumulate(rows[:, 1])
    begins = np.append(True, rows[1:, 0] > ends[:-1])
    lasts = np.append(np.flatnonzero(begins)[1:] - 1, len(rows) - 1)
    bounds = np.stack([rows[begins, 0], ends[lasts]], axis=1).ravel()
    # Differences are small numbers, which are compressed well.
    return zlib.compress(np.diff(bounds, prepend=np.int64(0)).tobytes(), _LEVEL)


def ranges_of(packed: bytes) -> list[Range]:
    """Packed ranges, sorted and apart from each other."""
    return [(start, end) for start, end in _unpacked(packed).tolist()]


def _unpacked(packed: bytes) -> Int64:
    """[ranges, 2]: first number, and the one behind the last."""
    if not packed:
        return np.zeros((0, 2), np.int64)
    return np.cumsum(np.frombuffer(zlib.decompress(packed), np.int64)).reshape(-1, 2)
