"""The order in which an update goes about its rows changes nothing that can be read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.strategies import store

# Rows whose order depends on the table's size, and how many of them make a large table (64 MiB).
wide = st.sampled_from([("adam", 32, 174_763), ("adagrad", 64, 131_072), ("adam", 64, 87_382)])
batch_sizes = st.sampled_from([0, 1, 15, 16, 17, 56, 57, 300, 2048, 2500])  # about the pipeline's


def held(table):
    """Rows below 10**6 as (ids, values, slots, versions, use counts), by id."""
    ids, values, slots, *headers = zip(*table.export(), strict=True)
    columns = [np.concatenate(each) for each in (ids, values, *headers)]
    columns += [np.concatenate([s[name] for s in slots]) for name in table.slot_names]
    ours = np.flatnonzero(columns[0] < 10**6)
    order = ours[np.argsort(columns[0][ours])]
    return [column[order] for column in columns]


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    kind=wide,
    sizes=st.lists(batch_sizes, min_size=1, max_size=3),
    span=st.sampled_from([1, 40, 5000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_large_table_is_updated_as_a_small_one(kind, sizes, span, seed):
    random = np.random.default_rng(seed)
    optimizer, dim, large_from = kind
    small, large = store(dim, optimizer), store(dim, optimizer)
    large.insert(np.arange(10**6, 10**6 + large_from))
    for step, size in enumerate(sizes, 1):
        ids = random.integers(0, span, size)
        gradients = random.normal(size=(size, dim)).astype(np.float32)
        for table in (small, large):
            table.update(ids, gradients, learning_rate=0.1, step=step)
            table.remove(ids[: size // 9])
        np.testing.assert_array_equal(small.lookup(ids), large.lookup(ids))
    small.insert(np.array([10**6]))  # an export of nothing has no columns
    for ours, theirs in zip(held(small), held(large), strict=True):
        np.testing.assert_array_equal(ours, theirs)
