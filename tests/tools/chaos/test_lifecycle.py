"""What rows that expire or have a cap are to be, against a table kept by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.tools.chaos.lifecycle import LATE, capped, expiring


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 1000))
def test_a_row_has_its_pushes_since_it_was_last_removed(drawn, span):
    # An id for each LATE records, so that some gaps are short and others long.
    keys = np.repeat(np.array(drawn, np.int64), LATE)
    ids = np.unique(keys)
    rows, last = {}, {}
    for moment, key in enumerate(keys.tolist()):
        if moment - last.get(key, moment) > span + LATE / 2:  # a clock that is a little late
            rows.pop(key)
        rows[key], last[key] = rows.get(key, 0) + 1, moment
    rows = {key: n for key, n in rows.items() if len(keys) - last[key] <= span + LATE / 2}
    found = np.array([rows.get(key, 0) for key in ids.tolist()])
    least, most = expiring(keys, ids, span)
    assert (least <= found).all()
    assert (found <= most).all()


def test_what_is_used_all_along_stays_and_what_is_not_goes():
    keys = np.concatenate([np.zeros(10), np.ones(5000), np.zeros(3)]).astype(np.int64)
    ids = np.array([0, 1])
    least, most = expiring(keys, ids, 1000)
    assert least.tolist() == most.tolist() == [3, 5000]
    least, most = expiring(keys[:-3], ids, 1000)
    assert least.tolist() == most.tolist() == [0, 5000]


def test_a_cap_holds_and_the_newest_rows_stay():
    records = np.arange(5000)
    assert capped(records[-1000:], records, 1000) == []
    assert "2,000 rows are left where the cap is 1,000" in capped(records[-2000:], records, 1000)[0]
    # As if a server that came by a move had a cap of one row.
    assert capped(records[-300:], records, 1000) == ["300 rows are left where the cap is 1,000"]
    assert "10 of the newest 250 records have no row" in capped(records[-900:-10], records, 1000)[0]
