"""Packed ranges are what ranges.py makes of the same, in few bytes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.master.work.accounts import packed_ranges
from shoal.master.work.accounts.packed_ranges import EMPTY, joined, ranges_of
from shoal.master.work.accounts.ranges import union

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@pytest.mark.parametrize("part_size", [2, 3, 8192])
@given(parts=st.lists(RANGES, max_size=4))
def test_joined_bit_by_bit_they_are_the_union(part_size, parts):
    packed, whole = EMPTY, ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_ranges, "PART", part_size)
        for part in parts:
            packed, whole = joined(packed, part), union(whole, part)
            assert tuple(ranges_of(packed)) == whole


def test_large_numbers_are_kept():
    far = [(2**40, 2**40 + 3), (7, 2**33)]
    assert ranges_of(joined(EMPTY, far)) == sorted(far)


def test_an_epoch_half_trained_in_random_order_takes_few_bytes():
    tasks = list(range(100_000))
    random.Random(1).shuffle(tasks)
    packed = EMPTY
    for first in range(0, 50_000, 10_000):
        packed = joined(packed, [(10 * task, 10 * task + 10) for task in tasks[first:][:10_000]])
    found = ranges_of(packed)
    assert sum(end - start for start, end in found) == 500_000
    assert len(found) > 20_000
    assert sum(len(part) for _, part in packed) < 3 * len(found)
    assert len(packed) > 1
