"""Metrics over many workers are exactly those over the whole set."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal.layers
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.engines.tensorflow.model.evaluation import Evaluator
from shoal.worker.engines.tensorflow.model.losses import Losses
from shoal.worker.input.batch import Batch
from shoal.worker.model.refusals import Refusals
from tests.worker.networks import as_batch, batches

pytestmark = pytest.mark.slow


class Passing:
    """A model whose predictions are its features."""

    def evaluate_batch(self, features, inputs=None):
        return features, tf.constant(0.0)

    def predictions_spec(self):
        return tf.TensorSpec([None, 1])

    loss = Losses(keras.losses.binary_crossentropy, None, "model.py", Refusals().refuse)


@pytest.fixture
def evaluator(module):
    def make(metrics):
        loaded = module()
        object.__setattr__(loaded, "eval_metrics_fn", metrics)
        return Evaluator(Passing(), loaded)

    return make


def metrics():
    return {
        "auc": keras.metrics.AUC(),
        "accuracy": lambda labels, predictions: tf.equal(labels, tf.round(predictions)),
        "mean": lambda labels, predictions: tf.reduce_mean(predictions),
    }


def merged(states):
    """What the master makes of the states of several tasks."""
    total = pb.MetricStates()
    total.CopyFrom(states[0])
    for state in states[1:]:
        for into, metric in zip(total.metrics, state.metrics, strict=True):
            for target, source in zip(into.variables, metric.variables, strict=True):
                target.values[:] = np.add(target.values, source.values).tolist()
    return total


def batch(labels, predictions):
    shape = (-1, 1)
    return Batch(
        tf.constant(np.reshape(predictions, shape), tf.float32),
        tf.constant(np.reshape(labels, shape), tf.float32),
        len(labels),
        0,
        0,
    )


def test_merged_states_give_the_metrics_of_the_whole_set(evaluator):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 1000)
    predictions = np.clip(0.3 * labels + rng.random(1000) * 0.7, 0.01, 0.99)
    made = evaluator(metrics)

    @settings(max_examples=10, deadline=None)
    @given(st.lists(st.integers(1, 999), min_size=1, max_size=5, unique=True))
    def check(cuts):
        states = []
        for part in np.split(np.arange(1000), sorted(cuts)):
            made.reset()
            for few in np.array_split(part, 3):
                if few.size:
                    made.add(batch(labels[few], predictions[few]))
            states.append(made.states())
        result = made.finish(merged(states))
        whole = keras.metrics.AUC()
        whole.update_state(labels, predictions)
        assert result["auc"] == pytest.approx(float(whole.result()), abs=1e-6)
        assert result["accuracy"] == pytest.approx(np.mean(labels == np.round(predictions)))
        assert result["mean"] == pytest.approx(predictions.mean(), rel=1e-5)
        expected = -np.mean(np.log(np.where(labels, predictions, 1 - predictions)))
        assert result["loss"] == pytest.approx(expected, rel=1e-5)

    check()


def test_weights_of_records_are_in_the_loss_alone_as_in_keras(evaluator):
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, (40, 1)).astype(np.float32)
    features = rng.uniform(0.05, 0.95, (40, 1)).astype(np.float32)
    weights = rng.uniform(0, 3, 40).astype(np.float32)
    passing = keras.Sequential([keras.Input([1]), keras.layers.Activation("linear")])
    error = keras.metrics.MeanSquaredError(name="error")
    passing.compile(loss="binary_crossentropy", metrics=[error])
    expected = passing.evaluate(
        features, labels, sample_weight=weights, batch_size=16, verbose=0, return_dict=True
    )
    made = evaluator(lambda: {"error": keras.metrics.MeanSquaredError()})
    made.build(tf.TensorSpec([None, 1]), tf.TensorSpec([None]))
    states = []
    for part in (slice(0, 16), slice(16, 32), slice(32, 40)):
        made.reset()
        one = batch(labels[part], features[part])
        made.add(replace(one, weights=tf.constant(weights[part])))
        states.append(made.states())
    assert made.finish(merged(states)) == pytest.approx(expected, rel=1e-5)


def test_a_worker_that_evaluated_nothing_can_finish(evaluator):
    def shaped():
        return {
            "f1": keras.metrics.F1Score(threshold=0.5),
            "auc": keras.metrics.AUC(multi_label=True),
        }

    worked, idle = evaluator(shaped), evaluator(shaped)
    for each in (worked, idle):
        each.build(tf.TensorSpec([None, 1]))
    worked.add(batch([0, 1, 1], [0.1, 0.9, 0.2]))
    result = idle.finish(merged([worked.states(), idle.states()]))
    assert result["f1_0"] == pytest.approx(2 / 3)
    assert result["auc"] == pytest.approx(1, abs=1e-3)
    assert result == worked.finish(worked.states())


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (lambda: [keras.metrics.AUC()], "returned list, not a dict"),
        (lambda: {"auc": 3}, "metric 'auc' is a int"),
        (lambda: {"loss": keras.metrics.AUC()}, "is the loss, which is always reported"),
    ],
)
def test_metrics_that_cannot_be_used_are_told(evaluator, metrics, words):
    with pytest.raises(UserError, match=words):
        evaluator(metrics)


class Confident(keras.metrics.Metric):
    """How many predictions are above a half, with a loop and an `if` of tensors."""

    def __init__(self):
        super().__init__()
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, labels, predictions):
        for each in predictions[:, 0]:
            if each > 0.5:
                self.count.assign_add(1.0)

    def result(self):
        return self.count


def doubled_if_large(labels, predictions):
    if tf.reduce_mean(predictions) > 0.5:
        predictions = 2 * predictions
    return predictions


def test_metrics_may_branch_on_tensors(evaluator):
    made = evaluator(
        lambda: {"doubled": doubled_if_large, "confident": Confident()},
    )
    made.reset()
    made.add(batch([0, 1], [0.25, 0.5]))
    made.add(batch([0, 1], [0.75, 0.75]))
    values = made.finish(made.states())
    assert values["doubled"] == pytest.approx((0.25 + 0.5 + 1.5 + 1.5) / 4)
    assert values["confident"] == 2


class Largest(keras.metrics.Metric):
    """The largest prediction: a state that cannot be added up."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, labels, predictions, sample_weight=None):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(predictions)))

    def result(self):
        return self.value


def test_a_metric_whose_states_do_not_add_up_is_refused(evaluator):
    made = evaluator(lambda: {"largest": Largest()})
    with pytest.raises(UserError, match=r"states of metric 'largest' \(Largest\) do not add up"):
        made.add(batch([0, 1, 1], [0.1, 0.9, 0.8]))


@pytest.mark.parametrize("loss", ["binary_crossentropy", "mse", keras.losses.huber])
@pytest.mark.parametrize("shapes", [([4], [4, 1]), ([4, 1], [4]), ([4, 1], [4, 1])])
def test_losses_of_keras_take_labels_and_predictions_as_a_compiled_model_does(loss, shapes):
    labels, predictions = np.array([0, 1, 1, 0]), np.array([0.1, 0.2, 0.7, 0.9], np.float32)
    labels, predictions = labels.reshape(shapes[0]), predictions.reshape(shapes[1])
    twin = keras.Sequential([keras.Input(shapes[1][1:]), keras.layers.Identity()])
    twin.compile(loss=loss)
    ours = Losses(loss, None, "model.py", Refusals().refuse)
    found = ours(tf.constant(labels), tf.constant(predictions))
    assert float(found) == pytest.approx(twin.evaluate(predictions, labels, verbose=0))


class TwoHeads(Passing):
    """Outputs by name, as its features are."""

    loss = Losses(
        {"a": "mse", "b": keras.losses.MeanAbsoluteError()},
        {"b": 10.0},
        "model.py",
        Refusals().refuse,
    )


def test_metrics_and_losses_of_several_outputs(module):
    loaded = module()
    metrics = {"a": {"auc": keras.metrics.AUC()}, "b": [keras.metrics.MeanSquaredError(name="mse")]}
    object.__setattr__(loaded, "eval_metrics_fn", lambda: metrics)
    made = Evaluator(TwoHeads(), loaded)
    labels = {"a": tf.constant([[0.0], [1.0]]), "b": tf.constant([[3.0], [5.0]])}
    outputs = {"a": tf.constant([[0.25], [0.75]]), "b": tf.constant([[3.0], [6.0]])}
    made.add(Batch(outputs, labels, 2, 0, 0))
    found = made.finish(made.states())
    expected = {
        "loss": 0.0625 + 10 * 0.5,
        "a_loss": 0.0625,
        "b_loss": 0.5,
        "a_auc": 1,
        "b_mse": 0.5,
    }
    assert found == pytest.approx(expected)
    object.__setattr__(loaded, "eval_metrics_fn", lambda: {"c": {"auc": keras.metrics.AUC()}})
    with pytest.raises(
        UserError, match="metrics of output 'c', but the model gives outputs 'a', 'b'"
    ):
        Evaluator(TwoHeads(), loaded).add(Batch(outputs, labels, 2, 0, 0))


@pytest.mark.parametrize(
    ("loss", "weights", "words"),
    [
        ("no_such_loss", None, "model.py: loss: .*no_such_loss"),
        (3, None, "model.py: loss is a int"),
        ({"a": 3}, None, "loss of output 'a' is a int"),
        ("mse", {"a": 1}, "loss_weights needs a loss for each output"),
        ({"a": "mse"}, {"b": 1}, "loss_weights names 'b', which has no loss; there are 'a'"),
        (
            {"outptu": "mse"},
            None,
            "a loss for 'outptu' .did you mean output.*gives outputs 'output'",
        ),
    ],
)
def test_losses_that_do_not_fit_are_refused_by_name(loss, weights, words):
    with pytest.raises(UserError, match=words):
        Losses(loss, weights, "model.py", Refusals().refuse)(
            {"output": tf.zeros([1, 1])}, {"output": tf.zeros([1, 1])}
        )


def test_the_loss_has_what_layers_add_to_it_as_in_keras(served, module):
    """One regularizer of a weight, one of what a layer gives, over batches of two sizes."""

    def build():
        x = keras.Input((2,), name="x")
        ids = keras.Input((3,), dtype="int64", name="ids")
        dense = keras.layers.Dense(
            1,
            kernel_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.5),
            activity_regularizer=keras.regularizers.L1(0.1),
        )
        rows = shoal.layers.Embedding(1, "zeros", name="items")(ids)
        return keras.Model({"ids": ids, "x": x}, dense(x) + keras.ops.sum(rows, axis=1))

    model = served(build=build, loss=keras.losses.mean_squared_error)
    evaluator = Evaluator(model, module())
    (whole,) = batches(1)
    parts = [as_batch(*(each[cut] for each in whole)) for cut in (slice(3), slice(3, None))]
    evaluator.reset()
    for part in parts:
        evaluator.add(part)
    loss = evaluator.finish(evaluator.states())["loss"]

    (dense,) = [each for each in model.model.layers if isinstance(each, keras.layers.Dense)]
    plain = keras.Sequential([keras.Input((2,)), dense.from_config(dense.get_config())])
    plain.compile(loss="mean_squared_error")
    expected = [
        plain.evaluate(part.features["x"], part.labels, batch_size=part.size, verbose=0)
        for part in parts
    ]
    sizes = [part.size for part in parts]
    assert loss == pytest.approx(np.average(expected, weights=sizes), rel=1e-5)
    assert loss > 1.0
