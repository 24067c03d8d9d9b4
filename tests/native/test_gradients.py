"""Sums, row moves, wire formats and clipping, against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native import gradients as kernels
from tests.examples import examples
from tests.native.strategies import dims


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(max_examples=examples(80), deadline=None)
@given(index=st.lists(st.integers(0, 30), max_size=200), dim=dims)
def test_sum_gather_scatter(index, dim):
    index = np.array(index, np.int32)
    rows, values = array(31, dim), array(len(index), dim, seed=1)
    values.flags.writeable = False
    expected = np.zeros((31, dim), np.float32)
    np.add.at(expected, index, values)
    assert (kernels.sum_by_inverse(values, index, 31) == expected).all()
    assert (kernels.gather_rows(rows, index) == rows[index]).all()
    expected = rows.copy()
    for place, row in zip(index.tolist(), values, strict=True):
        expected[place] = row
    assert kernels.scatter_rows(values, index, rows) is rows
    assert (rows == expected).all()


@pytest.mark.parametrize("bad", [-1, 3])
def test_indices_out_of_range_are_refused(bad):
    index, rows = np.array([0, bad], np.int32), array(2, 4)
    with pytest.raises(ValueError, match="inverse must be at least 0 and below 3"):
        kernels.sum_by_inverse(rows, index, 3)
    with pytest.raises(ValueError, match="index must be"):
        kernels.gather_rows(array(3, 4), index)
    with pytest.raises(ValueError, match="index must be"):
        kernels.scatter_rows(rows, index, array(3, 4))


def test_every_float16_and_bfloat16_survives():
    bits = np.arange(65536, dtype=np.uint16)
    for encode, decode in (
        (kernels.to_float16, kernels.from_float16),
        (kernels.to_bfloat16, kernels.from_bfloat16),
    ):
        values = decode(bits)
        finite = ~np.isnan(values)
        assert (encode(values)[finite] == bits[finite]).all()
        assert np.isnan(decode(encode(values[~finite]))).all()
    halves = kernels.from_float16(bits)
    np.testing.assert_array_equal(halves, bits.view(np.float16).astype(np.float32))
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(kernels.from_bfloat16(bits), wide)


def tricky_floats():
    """Ties, their neighbours, subnormals, overflow borders and random bit patterns."""
    random = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    halves = kernels.from_float16(np.arange(0x7C00, dtype=np.uint16)).astype(np.float64)
    middles = ((halves[:-1] + halves[1:]) / 2).astype(np.float32).view(np.uint32)
    wide = (np.arange(0x7F80, dtype=np.uint32) << 16) + 0x8000
    special = np.array([65504, 65519.996, 65520, 65536, 3.4e38, np.inf, 0], np.float32)
    bits = np.concatenate(
        [random, middles, middles + 1, middles - 1, wide, special.view(np.uint32)]
    )
    values = np.concatenate([bits, bits | 0x80000000]).view(np.float32)
    return values[~np.isnan(values)]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_float16_rounds_to_nearest_even():
    values = tricky_floats()
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(kernels.to_float16(values), expected)


def test_bfloat16_rounds_to_nearest_even():
    values = tricky_floats()
    bits = values.view(np.uint32).astype(np.uint64)
    lower, rest = bits >> 16, bits & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (lower & 1 == 1))
    np.testing.assert_array_equal(kernels.to_bfloat16(values), (lower + up).astype(np.uint16))


def test_conversions_take_any_shape_and_an_output():
    values = array(3, 5, 2)
    out = np.empty((3, 5, 2), np.uint16)
    assert kernels.to_bfloat16(values, out) is out
    assert kernels.from_bfloat16(out).shape == (3, 5, 2)
    with pytest.raises(ValueError, match="out must have shape"):
        kernels.to_float16(values, out[0])
    with pytest.raises(TypeError, match="bits must be of dtype uint16"):
        kernels.from_float16(values)


@settings(deadline=None)
@given(size=st.integers(0, 300), scale=st.sampled_from([1e-3, 1.0, 1e6]))
def test_squared_norm(size, scale):
    values = array(size) * np.float32(scale)
    expected = float((values.astype(np.float64) ** 2).sum())
    assert kernels.squared_norm(values) == pytest.approx(expected, rel=1e-12)


def test_clip_by_global_norm_equals_keras():
    import keras

    blocks = [array(7), array(3, 4, seed=1), array(2, 2, 2, seed=2)]
    norm = np.sqrt(sum(float((b.astype(np.float64) ** 2).sum()) for b in blocks))
    for limit in (0.5, 100.0):
        mine = [b.copy() for b in blocks]
        assert kernels.clip_by_global_norm(mine, limit) == pytest.approx(norm)
        theirs = keras.src.optimizers.base_optimizer.clip_by_global_norm(blocks, limit)
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, np.asarray(b), rtol=1e-6)
    with pytest.raises(ValueError, match="clip_norm must be above 0"):
        kernels.clip_by_global_norm(blocks, 0)
