"""Vectors of ids around a step, and clipping, against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.values.routing import Routing
from shoal.worker.engines.host.vectors import clipped, gathered, summed
from shoal.worker.servers.ids import group_tables


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=6),
    seed=st.integers(0, 2**16),
    absent=st.integers(0, 6),
)
def test_each_call_has_its_rows_and_each_row_the_sum_of_its_gradients(sizes, seed, absent):
    rng = np.random.default_rng(seed)
    dims = [1, 3, 4]
    calls = [table for table, _ in sizes]
    given_ids = [rng.integers(-5, 5, size) for _, size in sizes]
    none = np.zeros(0, np.int64)
    tables = [
        [ids for own, ids in zip(calls, given_ids, strict=True) if own == t] for t in range(3)
    ]
    grouped = group_tables([each or [none] for each in tables], Routing.even(2))
    rows = [
        rng.normal(size=(each.unique.size, dim)).astype(np.float32)
        for each, dim in zip(grouped, dims, strict=True)
    ]
    vectors = gathered(rows, grouped, calls)
    gradients = [rng.normal(size=each.shape).astype(np.float32) for each in vectors]
    if absent < len(gradients):
        gradients[absent] = None
    sums = (
        summed(
            gradients,
            [each if t in calls else grouped[t] for t, each in enumerate(grouped)],
            calls,
            dims,
        )
        if all(t in calls for t in range(3))
        else None
    )
    for table, ids, vector in zip(calls, given_ids, vectors, strict=True):
        of_id = dict(zip(grouped[table].unique.tolist(), rows[table], strict=True))
        assert vector.shape == (len(ids), dims[table])
        for each, found in zip(ids.tolist(), vector, strict=True):
            np.testing.assert_array_equal(found, of_id[each])
    for table in range(3) if sums is not None else ():
        expected = np.zeros((grouped[table].unique.size, dims[table]))
        for own, ids, gradient in zip(calls, given_ids, gradients, strict=True):
            for each, of_id in zip(ids, gradient if gradient is not None else (), strict=False):
                if own == table:
                    expected[grouped[table].unique == each] += of_id
        np.testing.assert_allclose(sums[table], expected, atol=1e-4)


@pytest.mark.parametrize("limit", [0.5, 100.0])
@pytest.mark.parametrize("how", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_gradients_are_clipped_as_by_keras(how, limit):
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), (5,), (2, 2))]
    optimizer = keras.optimizers.SGD(**{how: limit})
    expected = optimizer._clip_gradients([tf.constant(each) for each in gradients])
    found = clipped([gradients[0], None, *gradients[1:]], {how: limit})
    assert found[1] is None
    for each, wanted in zip([found[0], *found[2:]], expected, strict=True):
        assert each.dtype == np.float32
        np.testing.assert_allclose(each, np.asarray(wanted), rtol=1e-6)


def test_without_a_limit_gradients_are_the_same_objects():
    gradients = [np.ones(3, np.float32), None]
    assert all(a is b for a, b in zip(clipped(gradients, {}), gradients, strict=True))
