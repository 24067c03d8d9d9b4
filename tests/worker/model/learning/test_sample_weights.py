"""Weights of records and of classes in the loss: the steps of Keras's fit, and errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.worker.engines.tensorflow.model.losses import Losses
from shoal.worker.engines.tensorflow.model.sample_weights import weights_of_classes
from shoal.worker.input.batch import Batch
from shoal.worker.model.learning.class_weights import class_weights
from shoal.worker.model.refusals import Refusals
from tests.worker.conftest import CONFIG

pytestmark = pytest.mark.slow

SPEC = {"x": tf.TensorSpec([None, 3], tf.float32)}
LABELS = tf.TensorSpec([None, 1], tf.float32)
WEIGHTS = tf.TensorSpec([None], tf.float32)


def dense():
    x = keras.Input([3], name="x")
    return keras.Model({"x": x}, keras.layers.Dense(1, activation="sigmoid")(x))


def two_outputs():
    x = keras.Input([3], name="x")
    click = keras.layers.Dense(1, activation="sigmoid", name="click")(x)
    return keras.Model({"x": x}, {"click": click, "time": keras.layers.Dense(1, name="time")(x)})


def records(seed, count=12):
    numbers = np.random.default_rng(seed)
    features = {"x": numbers.normal(size=(count, 3)).astype(np.float32)}
    labels = numbers.integers(0, 2, (count, 1)).astype(np.float32)
    return features, labels, numbers.uniform(0, 3, count).astype(np.float32)


def steps_of(model, *data, **options):
    """Loss and variables of the same model after two steps of Keras."""
    twin = keras.models.clone_model(model.model)
    twin.set_weights(model.model.get_weights())
    twin.compile(optimizer=keras.optimizers.SGD(0.5), **options.pop("compiled"))
    losses = [float(twin.train_on_batch(*data, **options)) for _ in range(2)]
    return losses, twin.get_weights()


def ours(model, batch):
    losses = [model.train_batch(batch, task=0) for _ in range(2)]
    model.pull_dense()
    return losses, model.model.get_weights()


def assert_same(one, other):
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    for mine, theirs in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        "binary_crossentropy",
        keras.losses.BinaryCrossentropy(),
        keras.losses.mean_squared_error,
        lambda labels, predictions: tf.square(labels - predictions),
    ],
    ids=["name", "class", "function", "own"],
)
@pytest.mark.parametrize("column", [False, True])
def test_weights_of_records_give_the_steps_of_keras(served, loss, column):
    features, labels, weights = records(1)
    model = served(dense, spec=SPEC, labels_spec=LABELS, loss=loss, weights_spec=WEIGHTS)
    expected = steps_of(model, features, labels, weights, compiled={"loss": loss})
    given_weights = tf.constant(weights[:, None] if column else weights)
    model = served(
        dense,
        spec=SPEC,
        labels_spec=LABELS,
        loss=loss,
        weights_spec=tf.type_spec_from_value(given_weights),
    )
    batch = Batch(features, tf.constant(labels), 12, 0, 12, weights=given_weights)
    assert_same(ours(model, batch), expected)


def test_weights_of_each_output_give_the_steps_of_keras(served):
    features, labels, weights = records(2)
    losses = {"click": "binary_crossentropy", "time": keras.losses.MeanSquaredError()}
    both = {"click": labels, "time": labels * 2}
    of_each = {"click": weights, "time": weights[::-1].copy()}

    def made():
        return served(
            two_outputs,
            spec=SPEC,
            labels_spec={"click": LABELS, "time": LABELS},
            loss=losses,
            loss_weights={"click": 1.0, "time": 0.3},
            weights_spec={"click": WEIGHTS, "time": WEIGHTS},
        )

    compiled = {"loss": losses, "loss_weights": {"click": 1.0, "time": 0.3}}
    model = made()
    twin = keras.models.clone_model(model.model)
    twin.set_weights(model.model.get_weights())
    twin.compile(optimizer=keras.optimizers.SGD(0.5), **compiled)
    expected = [float(twin.train_on_batch(features, both, of_each)[0]) for _ in range(2)]
    batch = Batch(features, both, 12, 0, 12, weights=of_each)
    assert_same(ours(made(), batch), (expected, twin.get_weights()))


@pytest.mark.parametrize("class_weight", [{0: 1.0, 1: 5.0}, {1: 0.25}, {7: 2.0}])
def test_weights_of_classes_give_the_steps_of_keras(served, class_weight):
    features, labels, _ = records(3)
    options = {"spec": SPEC, "labels_spec": LABELS, "loss": "binary_crossentropy"}
    model = served(dense, class_weight=class_weight, **options)
    # Keras wants a weight of every class, where those without have 1.
    whole = {0: 1.0, 1: 1.0} | {key: weight for key, weight in class_weight.items() if key < 2}
    expected = steps_of(
        model, features, labels, class_weight=whole, compiled={"loss": "binary_crossentropy"}
    )
    batch = Batch(features, tf.constant(labels), 12, 0, 12)
    assert_same(ours(model, batch), expected)


@given(
    st.lists(st.integers(-2, 9), min_size=1, max_size=20),
    st.dictionaries(st.integers(0, 8), st.floats(0, 10, width=32), max_size=5),
    st.sampled_from(["flat", "column", "one-hot"]),
)
@settings(max_examples=40)
def test_the_weight_of_a_class_is_that_given_or_one(classes, weights, form):
    labels = np.array(classes, np.float32)
    if form == "column":
        labels = labels[:, None]
    if form == "one-hot":
        classes = [max(each, 0) for each in classes]
        labels = np.eye(10, dtype=np.float32)[classes]
    found = weights_of_classes(tf.constant(labels), class_weights(weights, "model.py"))
    np.testing.assert_array_equal(
        found, np.array([weights.get(each, 1.0) for each in classes], np.float32)
    )


@pytest.mark.parametrize(
    ("given_weights", "message"),
    [
        ([1, 2], "it must be a dict from class to weight"),
        ({"yes": 1.0}, "has the class 'yes'"),
        ({-1: 1.0}, "has the class -1"),
        ({0: float("nan")}, "class_weight of class 0 is nan"),
        ({1: -2.0}, "class_weight of class 1 is -2.0"),
        ({1: "much"}, "class_weight of class 1 is 'much'"),
    ],
)
def test_weights_of_classes_that_are_none_are_refused(given_weights, message):
    with pytest.raises(UserError, match=message):
        class_weights(given_weights, "model.py")


def losses_of(loss):
    return Losses(loss, None, "model.py", Refusals().refuse)


def test_a_loss_of_a_whole_minibatch_cannot_be_weighted():
    loss = losses_of(lambda labels, predictions: tf.reduce_mean(labels - predictions))
    with pytest.raises(UserError, match="loss gives one number for a whole minibatch"):
        loss(tf.zeros([3]), tf.zeros([3]), tf.ones([3]))


@pytest.mark.parametrize(
    ("loss", "weights", "message"),
    [
        ("mse", tf.ones([4, 3]), "must give one weight a record"),
        ("mse", {"a": tf.ones([4])}, "gives a dict of weights, but loss is one function"),
    ],
)
def test_weights_of_another_form_are_refused(loss, weights, message):
    with pytest.raises(UserError, match=message):
        losses_of(loss)(tf.zeros([4, 1]), tf.zeros([4, 1]), weights)


def test_class_weight_beside_weights_of_feed_is_refused(served):
    with pytest.raises(UserError, match=r"feed gives weights, and there is class_weight"):
        served(dense, spec=SPEC, labels_spec=LABELS, weights_spec=WEIGHTS, class_weight={0: 1.0})


def test_class_weight_of_several_outputs_is_refused(served):
    with pytest.raises(UserError, match="class_weight is for a model with one output"):
        served(
            two_outputs,
            spec=SPEC,
            labels_spec={"click": LABELS, "time": LABELS},
            loss={"click": "mse", "time": "mse"},
            class_weight={0: 1.0},
            config=CONFIG,
        )
