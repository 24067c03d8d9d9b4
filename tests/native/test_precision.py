"""16-bit rows: stochastic rounding is unbiased, seeded, and safe at the edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.native.gradients import from_bfloat16, from_float16, to_bfloat16, to_float16
from shoal.native.initializers import InitializerSpec
from tests.native.strategies import exported, store

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


def neighbours(values, value_dtype):
    """The largest number of the format that is not above each value, and the least not below."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    numbers = FORMATS[value_dtype][1](bits)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    above = np.minimum(np.searchsorted(numbers, values, "left"), len(numbers) - 1)
    below = np.maximum(np.searchsorted(numbers, values, "right") - 1, 0)
    return numbers[below], numbers[above]


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.sampled_from([*FORMATS]), st.lists(finite, min_size=1, max_size=40), st.integers(0, 99))
def test_an_update_rounds_to_a_neighbour_and_an_assignment_to_the_nearer(value_dtype, values, seed):
    values = np.array(values, np.float32)
    below, above = neighbours(values, value_dtype)
    table = store(values.size, "sgd", "zeros", seed=seed, value_dtype=value_dtype)
    table.update(np.array([seed]), -values[None], learning_rate=1.0, step=1 + seed)
    updated = table.lookup(np.array([seed]))[0]
    assert ((updated == below) | (updated == above)).all()
    table.assign(np.array([-1]), values[None])
    wide = values.astype(np.float64)
    distance = np.abs(table.lookup(np.array([-1]))[0] - wide)
    assert (distance == np.minimum(np.abs(below - wide), np.abs(above - wide))).all()


updates = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=8),
        st.integers(-3, 3).map(lambda n: n / 7),
    ),
    max_size=12,
)


@given(st.sampled_from([*FORMATS]), st.sampled_from(["sgd", "adagrad", "adam"]), updates, updates)
def test_rows_that_were_saved_go_on_as_the_others(value_dtype, optimizer, before, after):
    """The noise is of seed, id, step and uses: what a checkpoint and a log have is all of it."""

    def train(table, course, step):
        for number, (ids, size) in enumerate(course, step):
            gradients = np.full((len(ids), 3), size, np.float32)
            table.update(np.array(ids), gradients, learning_rate=0.1, step=number)

    went_on = store(3, optimizer, "normal", value_dtype=value_dtype)
    train(went_on, before, 1)
    restored = store(3, optimizer, "normal", value_dtype=value_dtype)
    for ids, values, slots, versions, uses in went_on.export():
        restored.assign(ids, values, slots, versions, uses)
    for table in (went_on, restored):
        train(table, after, 1 + len(before))
    ours, theirs = exported(went_on), exported(restored)
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        np.testing.assert_equal(theirs[key], row)


@pytest.mark.parametrize("value_dtype", FORMATS)
def test_a_row_that_is_not_there_reads_as_it_would_be_stored(value_dtype):
    table = store(2, "sgd", InitializerSpec("constant", {"value": 0.1}), value_dtype=value_dtype)
    missing = [table.lookup(np.array([5]), missing=kind) for kind in ("initial", "default")]
    table.insert(np.array([5]))
    np.testing.assert_array_equal(missing, [table.lookup(np.array([5]))] * 2)
    assert missing[0][0, 0] != np.float32(0.1)


@pytest.mark.parametrize("value_dtype", FORMATS)
def test_a_row_of_very_many_uses_goes_on_as_it_was_saved(value_dtype):
    """Its count is saved up to a number only: from there on the step tells pushes apart."""
    ids, gradients = np.arange(16), np.full((16, 3), 1e-3, np.float32)
    went_on, restored = (store(3, "sgd", "normal", value_dtype=value_dtype) for _ in range(2))
    for step in range(1, 2101):
        went_on.update(ids, gradients, learning_rate=0.01, step=step)
    for key, values, slots, versions, uses in went_on.export():
        restored.assign(key, values, slots, versions, uses)
    for table in (went_on, restored):
        table.update(ids, gradients, learning_rate=0.01, step=2101)
    np.testing.assert_array_equal(went_on.lookup(ids), restored.lookup(ids))
