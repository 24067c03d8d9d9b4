"""ToRagged, ToSparse and SparseEmbedding against NumPy and plain Python, for any lists."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.preprocessing import Hashing, SparseEmbedding, ToRagged, ToSparse
from tests.examples import examples

COUNT, DIM = 6, 3
PADDING = -1
ROWS = np.random.default_rng(3).normal(size=(COUNT, DIM)).astype(np.float32)

LISTS = st.lists(st.lists(st.integers(0, COUNT - 1), max_size=4), min_size=1, max_size=5)
PADDED = st.lists(st.lists(st.integers(PADDING, 3), min_size=4, max_size=4), min_size=1, max_size=5)


def cells(sparse):
    """{(place): value} of a sparse tensor, whose places must be in order."""
    places = [tuple(place) for place in sparse.indices.numpy().tolist()]
    assert places == sorted(places)
    return dict(zip(places, sparse.values.numpy().tolist(), strict=True))


def forms(lists, weights):
    """The lists and their weights in each form that a layer takes."""
    ids = tf.ragged.constant(lists, tf.int64, ragged_rank=1)
    factors = tf.ragged.constant(weights, tf.float32, ragged_rank=1)
    yield ids, factors
    yield ids.to_sparse(), factors.to_sparse()


def combined(lists, weights, combiner, mask_zero):
    out = np.zeros((len(lists), DIM), np.float64)
    for bag, (ids, factors) in enumerate(zip(lists, weights, strict=True)):
        kept = [(i, w) for i, w in zip(ids, factors, strict=True) if i or not mask_zero]
        for i, weight in kept:
            out[bag] += ROWS[i].astype(np.float64) * weight
        divisor = {
            "sum": 1.0,
            "mean": sum(w for _, w in kept),
            "sqrtn": np.sqrt(sum(w * w for _, w in kept)),
        }[combiner]
        out[bag] = out[bag] / divisor if divisor else 0.0
    return out


@given(LISTS, st.sampled_from(["sum", "mean", "sqrtn"]), st.booleans(), st.randoms())
@settings(deadline=None, max_examples=examples(25))
def test_lists_are_combined_as_numpy_does(lists, combiner, mask_zero, chance):
    layer = SparseEmbedding(COUNT, DIM, combiner, mask_zero=mask_zero)
    layer.build()
    layer.embeddings.assign(ROWS)
    weights = [[chance.uniform(0.5, 2.0) for _ in each] for each in lists]
    ones = [[1.0] * len(each) for each in lists]
    for ids, factors in forms(lists, weights):
        found = layer(ids, factors)
        np.testing.assert_allclose(
            found, combined(lists, weights, combiner, mask_zero), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            layer(ids), combined(lists, ones, combiner, mask_zero), rtol=1e-5, atol=1e-6
        )


@given(PADDED, st.sampled_from(["sum", "mean", "sqrtn"]))
@settings(deadline=None, max_examples=examples(15))
def test_dense_lists_are_combined_with_zero_for_padding(lists, combiner):
    lists = [[value + 1 for value in each] for each in lists]
    layer = SparseEmbedding(COUNT, DIM, combiner, mask_zero=True, weights=[ROWS])
    ones = [[1.0] * 4 for _ in lists]
    np.testing.assert_allclose(
        layer(tf.constant(lists)), combined(lists, ones, combiner, True), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("to_lists", [ToRagged(","), ToSparse(",")], ids=["ragged", "sparse"])
def test_a_plain_keras_model_trains_with_them_and_is_saved(tmp_path, to_lists):
    words = keras.Input([], dtype="string", name="words")
    lists = to_lists(words)
    ids = keras.Input([None], dtype="int64", sparse=True, name="ids")
    rows = SparseEmbedding(COUNT, DIM, "sqrtn")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile("sgd", "mse")
    given = keras.Model(words, lists)(tf.constant(["a,b,a", "", "b"]))
    if isinstance(given, tf.RaggedTensor):
        given = given.to_sparse()
    numbers = given.with_values(Hashing(COUNT)(given.values))
    before = np.asarray(model.layers[1].embeddings)
    model.train_on_batch(numbers, tf.ones([3, 1]))
    moved = np.flatnonzero((np.asarray(model.layers[1].embeddings) != before).any(axis=1))
    assert set(moved) <= set(numbers.values.numpy())
    assert len(moved) > 0
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(numbers), model(numbers))


def test_records_in_a_dataset_become_a_batch_of_lists():
    dataset = tf.data.Dataset.from_tensor_slices([b"a,b", b"", b"c"])
    (batch,) = dataset.map(ToSparse(",").__call__).batch(3)
    assert cells(batch) == {(0, 0): b"a", (0, 1): b"b", (2, 0): b"c"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ToSparse(""), "separator must not be empty"),
        (lambda: ToSparse()(tf.constant([[1]])), "give padding, to drop it from dense lists"),
        (lambda: ToSparse(padding=0)(tf.constant(1)), "the input needs an axis"),
        (lambda: ToSparse(",")(tf.constant([1])), "strings can be split, not int32"),
        (lambda: SparseEmbedding(3, 2, "max"), "combiner must be one of sum, mean, sqrtn"),
        (
            lambda: SparseEmbedding(3, 2)(tf.constant([["a"]])),
            "ids are integers, not string; make them of strings by Hashing",
        ),
        (
            lambda: SparseEmbedding(3, 2)(tf.ragged.constant([[1]]), tf.constant([[1.0]])),
            "must have one form",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
