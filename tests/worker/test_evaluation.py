"""Metrics over many workers are exactly those over the whole set."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.evaluation import Evaluator
from shoal.worker.pipeline import Batch


class Passing:
    """A model whose predictions are its features."""

    def predict_batch(self, features):
        return features

    def predictions_spec(self):
        return tf.TensorSpec([None, 1])

    def loss(self, labels, predictions):
        return tf.reduce_mean(keras.losses.binary_crossentropy(labels, predictions))


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
