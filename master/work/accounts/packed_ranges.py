"""Very many ranges of whole numbers in few bytes.

As ranges.py has them, of records that were trained: while an epoch is trained in random order,
nearly each of its tasks is a range by itself. As tuples they take a hundred bytes each, and as
long to be joined as there are of them. In parts, so that joining needs memory for one part and
not for all ranges at once. Bytes are part of a job's state. No I/O.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from shoal.master.work.accounts.ranges import Range

Int64 = npt.NDArray[np.int64]

Packed = tuple[tuple[int, bytes], ...]
"""Parts, sorted: the number at which each begins, and its ranges. The first one also has whatever
is below. A range that crosses the beginning of a part is in both of them, cut there."""

EMPTY: Packed = ()
"""No range."""

PART = 8192
"""Ranges of a part at which it is cut in two."""

_LEVEL = 1

_INT64 = np.iinfo(np.int64)


def joined(packed: Packed, added: Iterable[Range] | Int64) -> Packed:
    """All numbers of packed ranges, or of these; empty and overlapping ranges are fine.

    added: int64 [ranges, 2], or pairs.
    """
    rows = np.asarray(added if isinstance(added, np.ndarray) else list(added), np.int64)
    rows = rows.reshape(-1, 2)
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return packed
    firsts = [first for first, _ in packed] or [0]
    lows = [int(_INT64.min), *firsts[1:]]
    highs = [*firsts[1:], int(_INT64.max)]
    parts: list[tuple[int, bytes]] = []
    for place, (first, low, high) in enumerate(zip(firsts, lows, highs, strict=True)):
        present = packed[place][1] if packed else b""
        inside = np.clip(rows, low, high)
        inside = inside[inside[:, 1] > inside[:, 0]]
        if not len(inside):
            parts.append((first, present))
            continue
        whole = _union(np.concatenate([_unpacked(present), inside]))
        pieces = (
            [whole] if len(whole) <= PART else np.array_split(whole, -(-len(whole) * 2 // PART))
        )
        begins = [first, *(int(piece[0, 0]) for piece in pieces[1:])]
        parts += zip(begins, map(_packed, pieces), strict=True)
    return tuple(parts)


def ranges_of(packed: Packed) -> list[Range]:
    """Packed ranges, sorted and apart from each other."""
    return list(_ranges(packed))


def _ranges(packed: Packed) -> Iterator[Range]:
    start = end = None
    for _, part in packed:
        for first, last in _unpacked(part).tolist():
            if end is not None and first == end:
                end = last  # cut where a part begins
                continue
            if start is not None and end is not None:
                yield start, end
            start, end = first, last
    if start is not None and end is not None:
        yield start, end


def _union(rows: Int64) -> Int64:
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    ends = np.maximum.accumulate(rows[:, 1])
    begins = np.append(True, rows[1:, 0] > ends[:-1])
    lasts = np.append(np.flatnonzero(begins)[1:] - 1, len(rows) - 1)
    return np.stack([rows[begins, 0], ends[lasts]], axis=1)


def _packed(rows: Int64) -> bytes:
    # Differences are small numbers, which are compressed well.
    return zlib.compress(np.diff(rows.ravel(), prepend=np.int64(0)).tobytes(), _LEVEL)


def _unpacked(packed: bytes) -> Int64:
    """[ranges, 2]: first number, and the one behind the last."""
    if not packed:
        return np.zeros((0, 2), np.int64)
    return np.cumsum(np.frombuffer(zlib.decompress(packed), np.int64)).reshape(-1, 2)
