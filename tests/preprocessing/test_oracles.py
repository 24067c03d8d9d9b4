"""Each layer against NumPy, pandas or Python on random input: dense, ragged and sparse."""

from __future__ import annotations

import math

import numpy as np
import pandas
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.preprocessing import (
    ConcatenateWithOffset,
    Discretization,
    Hashing,
    IndexLookup,
    LogRound,
    Normalizer,
    RoundIdentity,
    ToNumber,
    ToRagged,
    ToSparse,
)
from tests.examples import examples
from tests.preprocessing.test_layers import expected_hash, signed

# TensorFlow takes subnormal numbers for 0.
FINITE = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False, width=32)
SMALL = st.integers(-100, 100)
HALVES = SMALL.map(lambda value: value / 2)
NUMBERS = st.floats(allow_subnormal=False) | HALVES | SMALL.map(lambda value: math.e**value)
INT64 = st.integers(-(2**63), 2**63 - 1)
WORDS = st.text(st.sampled_from("ab, ä0"), max_size=8)
FEW = st.sampled_from(["a", "b", "c", "", "ä"])


@st.composite
def hashing(draw):
    salt, bins = draw(st.integers(0, 2**70)), draw(st.none() | st.integers(1, 2**63 - 1))
    hashes = lambda values: [expected_hash(each, salt) for each in values]  # noqa: E731
    if bins is None:
        return Hashing(None, salt), WORDS | INT64, lambda values: signed(hashes(values))
    layer = Hashing(bins, salt)
    return layer, WORDS | INT64, lambda values: [each % bins for each in hashes(values)]


@st.composite
def lookup(draw):
    words = draw(st.lists(FEW, min_size=1, unique=True) | st.lists(INT64, min_size=1, unique=True))
    spare = draw(st.integers(1, 5))
    values = st.sampled_from(words) | (FEW if isinstance(words[0], str) else INT64)

    def indices(given):
        found = pandas.Index(words).get_indexer(given)
        other = [len(words) + expected_hash(each) % spare for each in given]
        return np.where(found < 0, other, found)

    return IndexLookup(words, spare), values, indices


@st.composite
def discretization(draw):
    bounds = sorted(draw(st.lists(FINITE | HALVES, min_size=1, max_size=9)))
    return Discretization(bounds), NUMBERS, lambda values: np.digitize(values, bounds)


@st.composite
def log_round(draw):
    bins, base = draw(st.integers(1, 50)), draw(st.sampled_from([2, 10, math.e, 1.5]))

    def rounded(values):
        logs = [math.log(max(each, 1)) / math.log(base) if each > 1 else 0 for each in values]
        return [int(min(np.round(each), bins - 1)) for each in logs]

    return LogRound(bins, base), NUMBERS, rounded


@st.composite
def round_identity(draw):
    bins = draw(st.integers(1, 50))
    default = draw(st.integers(0, bins - 1))

    def rounded(values):
        found = pandas.Series(values, dtype="float64").round()
        return found.where(found.between(0, bins - 1), default).astype("int64")

    return RoundIdentity(bins, default), NUMBERS, rounded


@st.composite
def normalizer(draw):
    shift, scale = draw(FINITE), draw(FINITE.filter(bool))

    def scaled(values):
        with np.errstate(all="ignore"):
            found = (np.array(values, np.float64) - shift) / scale
            return found.astype(np.float32)

    values = NUMBERS.filter(lambda each: not 0 < abs(scaled([each])[0]) < 2e-38)
    return Normalizer(shift, scale), values, scaled


@st.composite
def to_number(draw):
    kind = draw(st.sampled_from(["float64", "float32", "int64", "int32"]))
    limits = np.iinfo(kind) if kind.startswith("int") else None
    number = st.integers(int(limits.min), int(limits.max)) if limits else FINITE
    default = draw(number)
    spaces = st.sampled_from(["", " ", "\t"])
    words = st.tuples(spaces, number.map(str) | st.just(""), spaces).map("".join)

    read = int if limits else float
    return (
        ToNumber(kind, default),
        words,
        lambda values: np.array([read(each) if each.strip() else default for each in values], kind),
    )


LAYERS = [hashing, lookup, discretization, log_round, round_identity, normalizer, to_number]


@pytest.mark.parametrize("drawn", LAYERS, ids=lambda each: each.__name__)
@settings(max_examples=examples(20))
@given(data=st.data())
def test_values_are_those_of_numpy_in_each_form(drawn, data):
    layer, values, expected = data.draw(drawn())
    rows = data.draw(
        st.lists(st.lists(values, max_size=4), min_size=1, max_size=5).filter(any)
        if drawn is not hashing
        else st.sampled_from([WORDS, INT64]).flatmap(
            lambda kind: st.lists(st.lists(kind, max_size=4), min_size=1, max_size=5).filter(any)
        )
    )
    flat = [each for row in rows for each in row]
    kind = {float: tf.float64, int: tf.int64, str: tf.string}[type(flat[0])]
    dense = tf.constant(flat, kind)
    ragged = tf.RaggedTensor.from_row_lengths(dense, [len(row) for row in rows])
    wanted = np.array(expected(flat))
    for found in (layer(dense), layer(dense[:, None])[:, 0], layer(ragged).flat_values):
        np.testing.assert_array_equal(found, wanted)
    assert layer(ragged).row_lengths().numpy().tolist() == [len(row) for row in rows]
    sparse = ragged.to_sparse()
    found = layer(sparse)
    np.testing.assert_array_equal(found.values, wanted)
    np.testing.assert_array_equal(found.indices, sparse.indices)
    np.testing.assert_array_equal(found.dense_shape, sparse.dense_shape)


@settings(max_examples=examples(20))
@given(
    words=st.lists(WORDS, min_size=1, max_size=6),
    separator=st.sampled_from([",", ", ", "ä"]),
    padding=st.none() | st.sampled_from(["a", "", "0"]),
)
def test_strings_are_split_as_python_splits_them(words, separator, padding):
    lists = [
        [each.encode() for each in word.split(separator) if each not in ("", padding)]
        for word in words
    ]
    assert ToRagged(separator, padding)(tf.constant(words)).to_list() == lists
    check_sparse(ToSparse(separator, padding)(tf.constant(words)), lists)
    nested = tf.ragged.constant([words, []], tf.string)
    assert ToRagged(separator, padding)(nested).to_list() == [lists, []]
    single = ToRagged(separator, padding)(tf.constant(words[0]))
    assert single.numpy().tolist() == lists[0]


def check_sparse(found, lists):
    cells = {(i, j): each for i, row in enumerate(lists) for j, each in enumerate(row)}
    assert [*map(tuple, found.indices.numpy().tolist())] == [*cells]
    assert found.values.numpy().tolist() == [*cells.values()]


@settings(max_examples=examples(20))
@given(
    matrix=st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from([math.nan, -1.0, 0.0, 2.5]), min_size=width, max_size=width),
            min_size=1,
            max_size=4,
        )
    ),
    padding=st.sampled_from([math.nan, -1.0, 0.0]),
)
def test_padding_is_dropped_wherever_it_stands(matrix, padding):
    kept = [[repr(each) for each in row if repr(each) != repr(padding)] for row in matrix]
    found = ToRagged(padding=padding)(tf.constant(matrix, tf.float64))
    assert [[*map(repr, row)] for row in found.to_list()] == kept
    again = ToRagged(padding=padding)(tf.ragged.constant(matrix, tf.float64, ragged_rank=1))
    assert [[*map(repr, row)] for row in again.to_list()] == kept
    sparse = ToSparse(padding=padding)(tf.constant(matrix, tf.float64))
    array = np.array(matrix)
    places = ~np.isnan(array) if padding != padding else array != padding
    np.testing.assert_array_equal(sparse.indices, np.argwhere(places))
    np.testing.assert_array_equal(sparse.values, array[places])
    np.testing.assert_array_equal(sparse.dense_shape, array.shape)


@settings(max_examples=examples(20))
@given(data=st.data(), rows=st.integers(1, 4), columns=st.integers(1, 3))
def test_columns_are_joined_with_their_offsets(data, rows, columns):
    offsets = data.draw(st.lists(st.integers(-100, 2**40), min_size=columns, max_size=columns))
    given = [
        data.draw(st.lists(st.lists(SMALL, max_size=3), min_size=rows, max_size=rows))
        for _ in offsets
    ]
    joined = [
        [each + offset for lists, offset in zip(given, offsets, strict=True) for each in lists[row]]
        for row in range(rows)
    ]
    ragged = [tf.ragged.constant(each, tf.int32, ragged_rank=1) for each in given]
    layer = ConcatenateWithOffset(offsets)
    assert layer(ragged).to_list() == joined
    found = layer([each.to_sparse() for each in ragged])
    assert found.values.numpy().tolist() == [each for row in joined for each in row]
    dense = [each.to_tensor() for each in ragged]
    expected = np.concatenate(
        [each.numpy() + np.int64(offset) for each, offset in zip(dense, offsets, strict=True)], 1
    )
    np.testing.assert_array_equal(layer(dense), expected)
