"""The order of records: of tasks, and with --shuffle buffer:N of the records within windows.

A window is up to N records that follow one another in a source. A task's records are numbered by
their positions in the shuffled order, of which this is the only definition: the master gives out,
counts and requeues positions, and a worker reads the records that are at them. So the head of a
task that was trained stays exact, whatever the order. Pure functions of their arguments.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def drawn_order(seed: int, what: str, count: int) -> npt.NDArray[Any]:
    """The numbers below `count` in an order that depends on the seed and on `what` alone."""
    # By a hash of a text: neighbouring seeds and epochs give unrelated orders. RandomState:
    # its numbers are the same in every version of numpy.
    digest = hashlib.sha512(f"{seed}/{what}".encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, "<u4")).permutation(count)


def window_order(seed: int, epoch: int, source: str, first: int, count: int) -> Int64:
    """The records of a window in order, as their offsets in it, int64 [count].

    first: the number of the window's first record.
    """
    return drawn_order(seed, f"{epoch}/{source}/{first}", count).astype(np.int64)


@lru_cache(maxsize=1024)
def window_edges(records: int, units: Sequence[tuple[int, int]], size: int) -> Int64:
    """The places where a source's windows begin, then the source's end, int64 [windows + 1].

    units: pieces of the source that are decoded as a whole, as (records, how many of these follow
    one another); empty for none. size: records of a window at most. A window ends where a unit
    does, unless it is within one.
    """
    if not units:
        edges = np.append(np.arange(0, records, size, dtype=np.int64), records)
    else:
        ends = unit_edges(units)
        found = [0]
        while found[-1] < records:
            goal = min(found[-1] + size, records)
            place = int(np.searchsorted(ends, found[-1], "right"))
            if ends[place] < goal:  # several units fit
                goal = int(ends[np.searchsorted(ends, goal, "right") - 1])
            found.append(goal)
        edges = np.array(found, np.int64)
    edges.flags.writeable = False  # it is kept for the next source like this one
    return edges


def unit_edges(units: Sequence[tuple[int, int]]) -> Int64:
    """The record behind each unit, int64. Units without records are left out."""
    lengths = np.array([each for each, _ in units], np.int64)
    edges = np.cumsum(np.repeat(lengths, [times for _, times in units]))
    return np.asarray(edges[np.diff(edges, prepend=0) > 0], np.int64)


def by_numbers(name: str) -> tuple[tuple[str | int, ...], str]:
    """A key that sorts names by the numbers in them: day=2 before day=10."""
    parts = re.split(r"(\d+)", name)
    return tuple(int(each) if place % 2 else each for place, each in enumerate(parts)), name
