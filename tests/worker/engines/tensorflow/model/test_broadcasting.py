"""Which losses of a user's pair each label with each prediction, and which only look like it."""

import keras
import pytest
import tensorflow as tf

from shoal.worker.engines.tensorflow.model.broadcasting import pairs_all
from shoal.worker.engines.tensorflow.model.losses import Losses


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


ALIGNED = ("a difference", "a cross-entropy", "a choice", "keras.ops", "a tf.function")


@pytest.mark.parametrize("function", [SILENT[name] for name in ALIGNED], ids=ALIGNED)
def test_a_loss_gets_both_of_one_rank_as_from_compile(function):
    loss = Losses(function, None, "clicks.py", pytest.fail)
    labels, predictions = tf.constant([0.0, 1.0, 1.0]), tf.constant([[0.2], [0.4], [0.9]])
    assert float(loss(labels, predictions)) == pytest.approx(
        float(tf.reduce_mean(function(labels[:, None], predictions)))
    )


@pytest.mark.parametrize(
    "function", [SOUND["an axis more"], SOUND["an axis less"], tf.function(SOUND["an axis more"])]
)
def test_a_loss_that_changes_one_rank_itself_is_told(function):
    told = []
    loss = Losses(function, None, "clicks.py", told.append)
    loss(tf.zeros([4]), tf.zeros([4, 1]))
    assert told[0].startswith("clicks.py: loss pairs each label with each prediction. It gets")
    assert "of one shape, [batch, 1], as from Keras's compile(): remove tf.squeeze" in told[0]


def test_a_loss_is_looked_at_once(monkeypatch):
    """Eager calls, one a batch, cost no trace each."""
    calls = []
    monkeypatch.setattr(
        "shoal.worker.engines.tensorflow.model.losses.pairs_all",
        lambda *given: calls.append(given),
    )
    loss = Losses(SOUND["reshaped"], None, "clicks.py", pytest.fail)
    for _ in range(3):
        loss(*tensors([4], [4, 1]))
    assert len(calls) == 1
