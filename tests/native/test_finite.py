"""The check for values that are not finite, against NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.native.finite import first_not_finite


@given(
    size=st.integers(0, 5000),
    bad=st.lists(st.tuples(st.integers(0, 4999), st.sampled_from([np.nan, np.inf, -np.inf]))),
    seed=st.integers(0, 100),
)
def test_it_finds_the_first(size, bad, seed):
    values = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    for position, value in bad:
        if position < size:
            values[position] = value
    expected = np.flatnonzero(~np.isfinite(values))
    assert first_not_finite(values) == (expected[0] if expected.size else -1)


def test_extreme_values_are_finite_and_any_nan_is_not():
    largest = np.finfo(np.float32).max
    values = np.array([[largest, -largest], [1e-45, -0.0]], np.float32)
    assert first_not_finite(values) == -1
    for bits in (0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFC00000):
        values.view(np.uint32)[1, 0] = bits
        assert first_not_finite(values) == 2


def test_what_it_cannot_take_is_refused():
    with pytest.raises(TypeError, match="float32"):
        first_not_finite(np.zeros(3))
    with pytest.raises(ValueError, match="contiguous"):
        first_not_finite(np.zeros((4, 4), np.float32)[:, ::2])
