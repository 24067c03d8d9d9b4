"""Floats that are too large to be ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.worker.engines.host.float_ids import float_refused


@given(st.lists(st.integers(-(2**31), 2**31), max_size=5), st.booleans())
def test_ids_of_floats_that_pass_are_those_of_the_column(ids, doubles):
    column = np.array(ids, np.float64).astype(np.float64 if doubles else np.float32)
    if float_refused("user", column) is None:
        assert column.astype(np.int64).tolist() == ids


@pytest.mark.parametrize(
    ("dtype", "most"), [(np.float16, 2**11), (np.float32, 2**24), (np.float64, 2**53)]
)
def test_the_first_number_that_stands_for_two_is_refused_by_name(dtype, most):
    assert float_refused("user", np.array([1 - most, 0.5, most - 1], dtype)) is None
    for wrong in (most, -most):
        reason = float_refused("user", np.array([3, wrong], dtype))
        assert f"feature 'user' is {wrong} as {np.dtype(dtype)}" in reason
        assert f"from {most:,} on" in reason
    assert "is nan as" in float_refused("user", np.array([np.nan], dtype))
