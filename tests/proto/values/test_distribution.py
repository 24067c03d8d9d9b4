"""Distributions: exact but for the buckets, and the same merged as whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.values.distribution import Distribution

VALUES = st.lists(st.integers(0, 2**40), max_size=30)


def of(values, unit=1.0):
    made = Distribution(unit)
    for value in values:
        made.add(value)
    return made


@given(VALUES, VALUES)
def test_merged_parts_are_the_whole(left, right):
    whole, merged = (
        of(left + right),
        Distribution.merged([of(left).to_message(), of(right).to_message()]),
    )
    assert merged.to_json() == whole.to_json()
    assert sum(whole.histogram) == whole.count == len(left + right)
    if whole.count:
        assert whole.mean == pytest.approx(sum(left + right) / whole.count)
        assert whole.histogram[-1] > 0


def test_buckets_double_in_width():
    assert of([0, 1, 2, 3, 4, 7, 8]).histogram == [1, 1, 2, 2, 1]
    assert of([0.0004, 0.0015, 0.003], unit=0.001).histogram == [1, 1, 1]
    assert of([-1.0]).to_json() == {"mean": 0.0, "maximum": 0.0, "histogram": [1]}
