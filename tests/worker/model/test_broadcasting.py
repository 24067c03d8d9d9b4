"""Which losses of a user's pair each label with each prediction, and which only look like it."""

import keras
import pytest
import tensorflow as tf

from shoal.worker.model.broadcasting import pairs_all
from shoal.worker.model.losses import Losses


def tensors(labels, predictions):
    return tf.zeros(labels), tf.fill(predictions, 0.5)


SILENT = {
    "a difference": lambda y, p: tf.reduce_mean(tf.square(y - p)),
    "a cross-entropy": lambda y, p: (
        -tf.reduce_mean(y * tf.math.log(p) + (1 - y) * tf.math.log(1 - p))
    ),
    "a choice": lambda y, p: tf.where(y > 0.5, p, 1 - p),
    "keras.ops": lambda y, p: keras.ops.mean(keras.ops.abs(keras.ops.cast(y, "float32") - p)),
    "a weight of the labels, after the difference": lambda y, p: y * (y[:, None] - p),
    "a tf.function": tf.function(lambda y, p: tf.reduce_mean(y - p)),
}

SOUND = {
    "an axis more": lambda y, p: tf.square(y[:, None] - p),
    "an axis less": lambda y, p: tf.square(y - p[:, 0]),
    "reshaped": lambda y, p: tf.square(tf.reshape(y, [-1, 1]) - p),
    "reshaped by the other's shape": lambda y, p: tf.square(tf.reshape(y, tf.shape(p)) - p),
    "Keras does it": lambda y, p: keras.losses.MeanSquaredError()(y, p),
    "pairs that are meant": lambda y, p: (
        tf.nn.relu(1 - (p - tf.transpose(p))) * tf.cast(y[:, None] > y, tf.float32)
    ),
    "in-batch softmax": lambda y, p: tf.nn.softmax(tf.matmul(p, p, transpose_b=True)),
}


@pytest.mark.parametrize("function", SILENT.values(), ids=SILENT)
def test_pairs_of_all_are_found(function):
    assert "tf.squeeze(predictions, -1)" in pairs_all(function, *tensors([4], [4, 1]))


def test_the_other_way_round():
    fault = pairs_all(SILENT["a difference"], *tensors([4, 1], [4]))
    assert "labels have the shape [batch, 1], the predictions [batch]" in fault
    assert "tf.squeeze(labels, -1) or predictions[..., None]" in fault


def test_among_several_outputs():
    labels, predictions = tensors([4], [4, 1])

    def loss(labels, predictions):
        return tf.reduce_mean(labels["click"] - predictions["click"][:, 0]) + tf.reduce_mean(
            labels["like"] - predictions["like"]
        )

    given = {"click": labels, "like": labels}, {"click": predictions, "like": predictions}
    assert pairs_all(loss, *given)


@pytest.mark.parametrize("function", SOUND.values(), ids=SOUND)
def test_what_is_meant_is_left_alone(function):
    assert pairs_all(function, *tensors([4], [4, 1])) is None


@pytest.mark.parametrize("shapes", [([4], [4]), ([4, 1], [4, 1]), ([4], [4, 3]), ([], [4, 1])])
def test_shapes_that_do_not_call_for_it_are_not_traced(shapes):
    def never(labels, predictions):
        raise AssertionError

    assert pairs_all(never, *tensors(*shapes)) is None


def test_a_function_that_raises_tells_so_itself():
    assert pairs_all(lambda y, p: y.nothing, *tensors([4], [4, 1])) is None


def test_a_loss_is_looked_at_once(monkeypatch):
    """Eager calls, one a batch, cost no trace each."""
    calls = []
    monkeypatch.setattr("shoal.worker.model.losses.pairs_all", lambda *given: calls.append(given))
    loss = Losses(SOUND["an axis more"], None, "clicks.py", pytest.fail)
    for _ in range(3):
        loss(*tensors([4], [4, 1]))
    assert len(calls) == 1
