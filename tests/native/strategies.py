"""Hypothesis strategies and small builders shared by the native tests."""

import numpy as np
from hypothesis import strategies as st

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EXTREMES = (-1, 0, 1, INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, 2**31, -(2**31), 2**32)

any_id = st.one_of(
    st.sampled_from(EXTREMES), st.integers(-20, 20), st.integers(INT64_MIN, INT64_MAX)
)
few_ids = st.one_of(st.sampled_from(EXTREMES), st.integers(-20, 20))


def id_arrays(elements=any_id, max_size=200):
    return st.lists(elements, max_size=max_size).map(lambda ids: np.array(ids, np.int64))


# Plain widths have kernels of their own; the others take the general loop.
dims = st.one_of(
    st.sampled_from([1, 4, 8, 16, 32, 64, 128]), st.sampled_from([2, 3, 5, 7, 15, 17, 100, 300])
)


def store(dim=4, optimizer="adagrad", initializer="uniform", seed=7, **options):
    spec = optimizer if isinstance(optimizer, OptimizerSpec) else OptimizerSpec(optimizer)
    start = (
        initializer if isinstance(initializer, InitializerSpec) else InitializerSpec(initializer)
    )
    return RowStore(dim, spec, start, seed, **options)


def exported(table, batch=65536):
    """Everything a store holds: id -> (values, slots, version, uses); ids must be unique."""
    rows = {}
    for ids, values, slots, versions, uses in table.export(batch):
        for i, key in enumerate(ids.tolist()):
            assert key not in rows
            rows[key] = (
                values[i],
                {name: slot[i] for name, slot in slots.items()},
                int(versions[i]),
                int(uses[i]),
            )
    return rows
