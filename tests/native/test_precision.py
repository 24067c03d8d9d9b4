"""16-bit rows: stochastic rounding is unbiased, seeded, and safe at the edges."""

import numpy as np
import pytest

from shoal.native.gradients import from_bfloat16, from_float16, to_bfloat16, to_float16
from shoal.native.initializers import InitializerSpec
from tests.native.strategies import store

FORMATS = {"bfloat16": (to_bfloat16, from_bfloat16), "float16": (to_float16, from_float16)}


def rounded_once(value_dtype, target, count=100_000, seed=3):
    """Add ``target`` to zero in many rows, each rounded on its own."""
    table = store(4, "sgd", "zeros", seed=seed, value_dtype=value_dtype)
    gradients = np.full((count, 4), target, np.float32)
    table.update(np.arange(count), gradients, learning_rate=-1.0, step=1)
    return table.lookup(np.arange(count))


@pytest.mark.parametrize("value_dtype", FORMATS)
@pytest.mark.parametrize("target", [1.001, -0.3333, 3e-6, 1.7e-7, 1000.7])
def test_unbiased(value_dtype, target):
    """The mean over 400,000 roundings lies within five standard errors of the target."""
    found = rounded_once(value_dtype, target)
    neighbours = np.unique(found)
    assert len(neighbours) == 2
    assert neighbours[0] < np.float32(target) < neighbours[1]
    gap = float(neighbours[1]) - float(neighbours[0])
    error = found.astype(np.float64).mean() - float(np.float32(target))
    assert abs(error) < 5 * gap / 2 / np.sqrt(found.size)


@pytest.mark.parametrize("value_dtype", FORMATS)
def test_columns_and_neighbouring_ids_round_independently(value_dtype):
    found = rounded_once(value_dtype, 1.001)
    up = (found == found.max()).astype(np.float64)
    for a, b in ((up[:, 0], up[:, 1]), (up[:, 1], up[:, 2]), (up[1:, 0], up[:-1, 0])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.02


@pytest.mark.parametrize("value_dtype", FORMATS)
def test_seeded(value_dtype):
    first = rounded_once(value_dtype, 1.001, 1000)
    assert (first == rounded_once(value_dtype, 1.001, 1000)).all()
    assert (first != rounded_once(value_dtype, 1.001, 1000, seed=4)).any()


def test_small_updates_accumulate():
    """Rounding to nearest would lose every one of these updates."""
    table = store(16, "sgd", InitializerSpec("constant", {"value": 1.0}), value_dtype="bfloat16")
    ids = np.arange(1000)
    for step in range(1, 201):
        table.update(ids, np.full((1000, 16), 1e-3, np.float32), learning_rate=1.0, step=step)
    assert table.lookup(ids).mean() == pytest.approx(0.8, abs=0.001)


@pytest.mark.parametrize("value_dtype", FORMATS)
def test_exact_values_stay_and_extremes_saturate(value_dtype):
    assert (rounded_once(value_dtype, 0.5, 100) == 0.5).all()
    largest = {"bfloat16": 3.3895314e38, "float16": 65504.0}[value_dtype]
    assert (rounded_once(value_dtype, 3.4e38, 100) == np.float32(largest)).all()
    assert (rounded_once(value_dtype, -np.inf, 100) == -np.inf).all()
    assert np.isnan(rounded_once(value_dtype, np.nan, 100)).all()


@pytest.mark.parametrize("value_dtype", FORMATS)
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "rowwise_adagrad"])
def test_slots_stay_float32_and_rows_follow_the_float32_ones(value_dtype, optimizer):
    half = store(7, optimizer, "normal", value_dtype=value_dtype)
    full = store(7, optimizer, "normal")
    ids, random = np.arange(500), np.random.default_rng(0)
    encode, decode = FORMATS[value_dtype]
    assert (half.lookup(ids) == decode(encode(full.lookup(ids)))).all()
    for step in range(1, 11):
        gradients = random.standard_normal((500, 7)).astype(np.float32)
        half.update(ids, gradients, learning_rate=0.01, step=step)
        full.update(ids, gradients, learning_rate=0.01, step=step)
    np.testing.assert_allclose(half.lookup(ids), full.lookup(ids), atol=0.01)
    for a, b in zip(half.export(), full.export(), strict=True):
        for name in half.slot_names:
            assert (a[2][name] == b[2][name]).all()


@pytest.mark.parametrize("value_dtype", FORMATS)
def test_half_the_memory_of_values(value_dtype):
    half, full = store(64, "sgd", value_dtype=value_dtype), store(64, "sgd")
    for table in (half, full):
        table.insert(np.arange(200_000))
    assert half.memory_bytes() < 0.65 * full.memory_bytes()
