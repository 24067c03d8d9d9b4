"""A loss, in training and in evaluation, is what Keras's compile() makes of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shoal.errors import UserError
from shoal.layers import Embedding
from shoal.worker.engines.tensorflow.model.evaluation import Evaluator
from shoal.worker.engines.tensorflow.model.losses import Losses
from shoal.worker.input.batch import Batch
from shoal.worker.model.refusals import Refusals

pytestmark = pytest.mark.slow

STEPS = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [1, 2, 3, 4, 5]])
Y = np.random.default_rng(0).random((3, 5, 1)).astype("float32")


def build(embedding=keras.layers.Embedding, activation="sigmoid", **options):
    """An output a step, of which Keras masks those of the id 0."""
    steps = keras.Input((5,), dtype="int64", name="ids")
    if embedding is Embedding:
        rows = embedding(4, "ones", mask_zero=True, name="items")(steps)
    else:
        rows = embedding(10, 4, "ones", mask_zero=True)(steps)
    ones = {"kernel_initializer": "ones"}
    recurrent = {"recurrent_initializer": "ones", "return_sequences": True}
    rows = keras.layers.SimpleRNN(3, **ones, **recurrent)(rows)
    out = keras.layers.Dense(1, activation=activation, **ones, **options)(rows)
    return keras.Model({"ids": steps}, out)


def squares(labels, predictions):
    return tf.square(labels - predictions)


LOSSES = {
    "name": "mse",
    "function": keras.losses.binary_crossentropy,
    "own function": squares,
    "own mean": lambda labels, predictions: keras.ops.mean(squares(labels, predictions), axis=-1),
    "class": keras.losses.MeanSquaredError(),
    "sum": keras.losses.MeanSquaredError(reduction="sum"),
}


@pytest.mark.parametrize("weights", [None, Y[..., 0]], ids=["", "weights"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_loss_of_masked_steps_is_that_of_a_compiled_model(loss, policy, weights):
    twin = build(dtype=policy)
    twin.compile(loss=loss)
    outputs = twin({"ids": STEPS})
    expected = twin.compute_loss(y=tf.constant(Y), y_pred=outputs, sample_weight=weights)
    ours = Losses(loss, None, "model.py", Refusals().refuse)
    found = ours(tf.constant(Y), outputs, None if weights is None else tf.constant(weights))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("labels", [Y, Y[..., 0]], ids=["[batch, steps, 1]", "[batch, steps]"])
@pytest.mark.parametrize("loss", ["mse", squares, keras.losses.MeanSquaredError()])
def test_training_and_evaluation_count_the_same_steps(served, module, loss, labels):
    model = served(
        build=lambda: build(Embedding),
        loss=loss,
        spec={"ids": tf.TensorSpec([None, 5], tf.int64)},
        labels_spec=tf.TensorSpec([None, *labels.shape[1:]]),
    )
    batch = Batch({"ids": tf.constant(STEPS)}, tf.constant(labels), 3, 0, 0)
    loaded = module()
    metrics = {"mse": keras.metrics.MeanSquaredError()}
    if labels is Y:
        metrics["own"] = squares
    object.__setattr__(loaded, "eval_metrics_fn", lambda: metrics)
    evaluator = Evaluator(model, loaded)
    evaluator.build(tf.TensorSpec([None, *labels.shape[1:]]))
    evaluator.add(batch)
    found = evaluator.finish(evaluator.states())

    twin = build()
    twin.compile(loss="mse", metrics=["mse", squares])
    outputs = twin({"ids": STEPS}).numpy()[..., 0]
    expected = np.average(np.square(Y[..., 0] - outputs), weights=STEPS > 0)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["mse"] == pytest.approx(expected, rel=1e-5)
    assert found["loss"] == pytest.approx(model.train_batch(batch, 0), rel=1e-6)
    if labels is Y:
        values = twin.evaluate({"ids": STEPS}, Y, verbose=0)
        assert [found["loss"], found["mse"], found["own"]] == pytest.approx(values, rel=1e-5)


def test_whole_numbers_stay_what_they_are():
    labels = tf.constant([2**24 + 1])
    seen = []
    loss = Losses(lambda y, p: seen.append(y) or tf.reduce_sum(p), None, "model.py", pytest.fail)
    loss(labels, tf.constant([0.5], tf.bfloat16))
    assert int(seen[-1][0]) == 2**24 + 1


def test_a_function_gets_numbers_with_a_point_as_float32_of_any_structure():
    def loss(labels, predictions):
        assert labels["a"].dtype == predictions["a"].dtype == tf.float32
        return tf.reduce_mean(labels["a"] - predictions["a"])

    given = {"a": tf.constant([[1.0]], tf.float64)}, {"a": tf.constant([[0.5]], tf.bfloat16)}
    assert float(Losses(loss, None, "model.py", Refusals().refuse)(*given)) == 0.5


def test_a_loss_of_records_where_the_steps_are_masked_is_told():
    outputs = build()({"ids": STEPS})
    ours = Losses(
        lambda y, p: tf.reduce_sum(y - p, axis=[1, 2]), None, "model.py", Refusals().refuse
    )
    with pytest.raises(UserError, match=r"model.py: loss has the shape \(3,\), and the model's"):
        ours(tf.constant(Y), outputs)
