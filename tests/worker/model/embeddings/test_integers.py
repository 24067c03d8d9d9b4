"""Features that a model takes as integers, and that are none."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import shoal.layers
from shoal.errors import UserError
from shoal.worker.input.batch import Batch
from shoal.worker.model.embeddings.integers import CastFeature, cast_features, not_kept

LARGEST = 2**63 - 1


def looking_up(functional=True):
    """A model that looks up `user` and takes `x`."""
    embedding = shoal.layers.Embedding(2, name="users")
    if functional:
        user, x = keras.Input([], dtype="int64", name="user"), keras.Input([], name="x")
        return keras.Model({"user": user, "x": x}, keras.ops.sum(embedding(user), 1) + x)

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = embedding

        def call(self, features):
            return keras.ops.sum(self.embedding(features["user"]), 1) + features["x"]

    return Subclassed()


def served_model(served, dtype, functional=True):
    spec = {"user": tf.TensorSpec([None], dtype), "x": tf.TensorSpec([None], tf.float32)}
    return served(
        build=lambda: looking_up(functional),
        spec=spec,
        labels_spec=tf.TensorSpec([None], tf.float32),
        loss=lambda labels, predictions: keras.ops.mean((labels - predictions) ** 2),
    )


def train(model, users):
    zeros = tf.zeros(len(users))
    return model.train_batch(Batch({"user": users, "x": zeros}, zeros, len(users), 0, 0), 1)


@pytest.mark.parametrize(
    ("users", "words"),
    [
        (
            np.array([1.0, 2.0, 1.5]),
            "1.5 in row 2 of a minibatch, but the model's input takes int64",
        ),
        (np.array([1.0, np.nan, 1.5], np.float32), "nan in row 1"),
        (np.array([np.inf, 2.0]), "inf in row 0"),
        (np.array([0.0, 2.0**63]), "e+18 in row 1"),
        (np.array([5, 2**63], np.uint64), "9223372036854775808 in row 1"),
    ],
)
def test_an_id_that_a_cast_would_change_is_refused_by_feature_and_row(served, users, words):
    model = served_model(served, users.dtype)
    with pytest.raises(UserError, match="feature 'user' is ") as caught:
        train(model, tf.constant(users))
    assert words in str(caught.value)
    tables = [[np.arange(-1, 3)]]
    assert model.group.pull(tables, training=True).versions == [0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint64, np.int32])
def test_whole_numbers_of_other_types_train(served, dtype):
    train(served_model(served, dtype), tf.constant(np.array([0, 7, 2**20], dtype)))


def test_an_unsigned_id_that_a_layer_itself_would_wrap_is_refused_by_its_table(served):
    model = served_model(served, np.uint64, functional=False)
    train(model, tf.constant(np.array([0, LARGEST], np.uint64)))
    with pytest.raises(UserError, match=f"'users' was given the id {LARGEST + 1}: ids are int64"):
        train(model, tf.constant(np.array([3, LARGEST + 1], np.uint64)))


@given(
    st.lists(
        st.one_of(
            st.floats(),
            st.integers(-(2**63), 2**63).map(float),
            st.sampled_from([2.0**31, 2.0**31 - 1, -(2.0**31), 2.0**63, -(2.0**63)]),
        )
    ),
    st.sampled_from(["int32", "int64"]),
)
def test_a_float_is_kept_if_it_is_a_whole_number_of_the_type(values, taken):
    limits = np.iinfo(taken)
    whole = [v == v and abs(v) != np.inf and v == int(v) for v in values]
    kept = [w and limits.min <= int(v) <= limits.max for v, w in zip(values, whole, strict=True)]
    reason = not_kept({"a": np.array(values)}, [CastFeature("a", "float64", taken)])
    assert (reason is None) == all(kept)
    if reason is not None:
        assert f"in row {kept.index(False)} of a minibatch" in reason


@given(st.lists(st.integers(0, 2**64 - 1)), st.sampled_from(["int32", "int64", "uint8"]))
def test_an_integer_is_kept_if_the_type_holds_it(values, taken):
    numbers = np.array(values, np.uint64)
    reason = not_kept({"a": numbers}, [CastFeature("a", "uint64", taken)])
    assert (reason is None) == all(value <= np.iinfo(taken).max for value in values)


def test_only_features_of_another_type_are_looked_at():
    ids, x = keras.Input([], dtype="int64", name="ids"), keras.Input([], name="x")
    model = keras.Model({"outer": {"ids": ids}, "x": x}, keras.ops.cast(ids, "float32") + x)
    spec = {
        "outer": {"ids": tf.TensorSpec([None], tf.int64)},
        "x": tf.TensorSpec([None], tf.int64),
        "unused": tf.TensorSpec([None], tf.float32),
    }
    assert cast_features(model, spec) == []
    spec["outer"]["ids"] = tf.TensorSpec([None], tf.float32)
    assert cast_features(model, spec) == [CastFeature("outer/ids", "float32", "int64")]
    assert not_kept({"outer": {"ids": np.array([0.5])}, "x": 1}, cast_features(model, spec))
    alone = keras.Model(ids, ids + 1)
    assert cast_features(alone, tf.TensorSpec([None], tf.float32)) == [
        CastFeature("", "float32", "int64")
    ]
    ragged = tf.ragged.constant([[1.0], [2.0, 2.5]])
    assert "2.5" in not_kept(ragged, [CastFeature("", "float32", "int64")])
