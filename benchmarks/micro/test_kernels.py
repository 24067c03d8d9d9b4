"""Microbenchmarks of native/ in this process: what a server and a worker call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.micro.conftest import Measure, Sizes
from benchmarks.server.parts import RATE, filled
from shoal.native import ids as native_ids
from shoal.native.dense import DenseBlock
from shoal.native.gradients import sum_by_inverse, to_bfloat16, to_float16
from shoal.native.optimizers import OptimizerSpec

DIMS = (1, 8, 16, 64)
OPTIMIZERS = ("sgd", "momentum", "adagrad", "rowwise_adagrad", "rmsprop", "adam", "ftrl")


def gradients(sizes: Sizes, dim: int) -> np.ndarray:
    """Gradients of one call, float32 [ids, dim]."""
    return np.random.default_rng(1).normal(size=(sizes.ids, dim)).astype(np.float32)


@pytest.mark.benchmark(group="row store: update")
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_update(
    measure: Measure, sizes: Sizes, batches: list[np.ndarray], optimizer: str, dim: int
) -> None:
    store = filled(dim, optimizer, sizes.rows)
    given = gradients(sizes, dim)
    before = store.lookup(batches[0])
    measure(lambda ids: store.update(ids, given, learning_rate=RATE, step=1), batches)
    assert np.abs(store.lookup(batches[0]) - before).max() > 0


@pytest.mark.benchmark(group="row store: update of 16-bit values")
@pytest.mark.parametrize("value_dtype", ["bfloat16", "float16"])
def test_update_of_halves(
    measure: Measure, sizes: Sizes, batches: list[np.ndarray], value_dtype: str
) -> None:
    store = filled(16, "adagrad", sizes.rows, value_dtype)
    given = gradients(sizes, 16)
    measure(lambda ids: store.update(ids, given, learning_rate=RATE, step=1), batches)
    assert np.isfinite(store.lookup(batches[0])).all()


@pytest.mark.benchmark(group="row store: lookup")
@pytest.mark.parametrize("dim", DIMS)
def test_lookup(measure: Measure, sizes: Sizes, batches: list[np.ndarray], dim: int) -> None:
    store = filled(dim, "sgd", sizes.rows)
    out = np.empty((sizes.ids, dim), np.float32)
    measure(lambda ids: store.lookup(ids, out), batches)
    np.testing.assert_array_equal(store.lookup(batches[0], out), store.lookup(batches[0]))


@pytest.mark.benchmark(group="row store: insert")
def test_insert(measure: Measure, sizes: Sizes, batches: list[np.ndarray]) -> None:
    store = filled(16, "adagrad", 1)
    calls = iter(range(1, 1_000_000))
    # Every call brings ids of its own; the store grows as it would at the start of a job.
    measure(lambda ids: store.insert(ids + sizes.rows * next(calls)), batches)
    assert len(store) > sizes.ids


@pytest.mark.benchmark(group="dense block: update, of --rows elements")
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "rowwise_adagrad"])
def test_dense_update(measure: Measure, sizes: Sizes, optimizer: str) -> None:
    block = DenseBlock(np.zeros(sizes.rows, np.float32), OptimizerSpec(optimizer))
    given = np.random.default_rng(1).normal(size=sizes.rows).astype(np.float32)
    measure(lambda each: block.update(each, learning_rate=RATE, step=1), [given])
    assert np.abs(block.values).max() > 0


@pytest.mark.benchmark(group="worker: ids")
def test_deduplicate(measure: Measure, repeated: list[np.ndarray]) -> None:
    measure(native_ids.unique, repeated)
    unique, inverse = native_ids.unique(repeated[0])[:2]
    np.testing.assert_array_equal(unique[inverse], repeated[0])


@pytest.mark.benchmark(group="worker: gradients summed by id")
def test_sum(measure: Measure, sizes: Sizes, repeated: list[np.ndarray]) -> None:
    unique, inverse = native_ids.unique(repeated[0])[:2]
    given = gradients(sizes, 16)
    measure(lambda each: sum_by_inverse(given, each, len(unique)), [inverse])
    summed = sum_by_inverse(given, inverse, len(unique))
    np.testing.assert_allclose(summed.sum(0), given.sum(0), rtol=1e-2, atol=0.1)


@pytest.mark.benchmark(group="worker: values to 16 bits")
@pytest.mark.parametrize("convert", [to_bfloat16, to_float16], ids=["bfloat16", "float16"])
def test_halves(measure: Measure, sizes: Sizes, convert: Any) -> None:
    given = gradients(sizes, 16)
    measure(lambda _: convert(given), [np.arange(sizes.ids)])
    assert convert(given).shape == given.shape
