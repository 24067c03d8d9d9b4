"""The expected rows where rows expire or are evicted, by the data alone: bounds, in NumPy.

For a job that trains its data once and in order (--shuffle time); a record's number is its time
in seconds. Owns no row: servers compute the same from steps and clocks (ps/forgetting/clock.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

LATE = 256
"""Records between a push and those that come after it, at most: batches that are under way."""

NEWEST = 4
"""One in so many rows of a cap is of the newest records, and stays."""


def expiring(keys: Int64, ids: Int64, span: float) -> tuple[Int64, Int64]:
    """Least and most pushes that each row has, int64 [ids] both; no row has 0.

    keys: the id of each record, int64 [records], in the order of time. ids: ascending. span:
    seconds after its last push at which a row is removed. The clock is up to a 64th of that late.
    """
    least, most = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    order = np.argsort(keys, kind="stable")
    starts = np.searchsorted(keys[order], ids)
    for place, moments in enumerate(np.split(order, starts[1:])):
        gaps = np.diff(moments, append=len(keys))
        # Behind the last gap that removed the row for certain, and behind the last that may have.
        certain = np.flatnonzero(gaps > span * 1.1 + LATE)
        possible = np.flatnonzero(gaps > span - LATE)
        first, last = (each[-1] + 1 if len(each) else 0 for each in (certain, possible))
        most[place], least[place] = len(moments) - first, len(moments) - last
    return least, most


def capped(found: Int64, records: Int64, cap: int) -> list[str]:
    """The faults in the rows of a table with a cap, in words.

    found: the ids of the table. records: those of the data, each trained once, in this order.
    """
    wrong = []
    # Each server has a part of the cap, by its slots, and a push comes before its sweep.
    if not cap // 2 <= len(found) <= cap + LATE:
        wrong.append(f"{len(found):,} rows are left where the cap is {cap:,}")
    newest = records[-cap // NEWEST :]
    if gone := len(np.setdiff1d(newest, found)):
        wrong.append(f"{gone:,} of the newest {len(newest):,} records have no row")
    return wrong
