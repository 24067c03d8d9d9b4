"""The metrics of shoal.metrics: their special cases, and what they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shoal.errors import UserError
from shoal.master.work.evaluation.evaluation import MergedStates, MetricMismatchError
from shoal.metrics import Calibration, GroupAUC, LogLoss, Slices
from shoal.proto.values import metric_states
from shoal.worker.engines.tensorflow.model.evaluation import Evaluator
from shoal.worker.engines.tensorflow.model.losses import Losses
from shoal.worker.input.batch import Batch
from shoal.worker.model.refusals import Refusals


class Passing:
    """A model whose predictions are the feature `p`."""

    def evaluate_batch(self, features, inputs=None):
        return features["p"], tf.constant(0.0)

    loss = Losses(keras.losses.binary_crossentropy, None, "model.py", Refusals().refuse)


def evaluator_of(module, metrics):
    loaded = module()
    object.__setattr__(loaded, "eval_metrics_fn", metrics)
    return Evaluator(Passing(), loaded)


def batch(records):
    groups, labels, predictions = (list(column) for column in zip(*records, strict=True))
    features = {"p": tf.constant(predictions, tf.float32)[:, None], "user": tf.constant(groups)}
    labels = tf.constant(labels, tf.float32)[:, None]
    return Batch(features, labels, len(records), 0, 0)


def value_of(metric, labels, predictions):
    options = {"groups": [1] * len(labels)} if isinstance(metric, GroupAUC) else {}
    if labels:
        metric.update_state(labels, predictions, **options)
    return float(metric.result())


METRICS = (GroupAUC(by="user"), Calibration(), LogLoss())


@pytest.mark.parametrize("labels", [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("metric", METRICS)
def test_a_prediction_that_is_nan_has_no_score(metric, place, labels):
    metric.reset_state()
    predictions = [0.25, 0.5, 0.75]
    predictions[place] = np.nan
    assert np.isnan(value_of(metric, labels, predictions))


@pytest.mark.parametrize(
    ("labels", "predictions", "expected"),
    [
        ([], [], [np.nan, np.nan, np.nan]),
        ([0.0, 0.0], [0.25, 0.5], [np.nan, np.nan, -np.log([0.75, 0.5]).mean()]),
        ([1.0, 1.0], [0.25, 0.5], [np.nan, 0.375, -np.log([0.25, 0.5]).mean()]),
        ([0.0, 1.0], [0.5, 0.5], [0.5, 1.0, -np.log(0.5)]),
        ([1.0, 0.0], [np.inf, np.inf], [0.5, np.inf, np.nan]),
        ([0.0, 1.0], [-np.inf, np.inf], [1.0, np.nan, np.nan]),
    ],
    ids=["none", "no event", "events alone", "ties", "tied infinities", "infinities"],
)
def test_metrics_of_one_class_of_ties_and_of_nothing(labels, predictions, expected):
    for metric in METRICS:
        metric.reset_state()
    found = [value_of(metric, labels, predictions) for metric in METRICS]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_groups_may_be_strings():
    metric = GroupAUC(by="user")
    metric.update_state([1, 0, 1, 0], [0.9, 0.1, 0.2, 0.8], groups=["a", "a", "b", "b"])
    assert metric.result() == 0.5


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("item", "needs a feature of the name 'item', but feed gives the features 'p', 'user'"),
        ("p", "groups are integers or strings"),
    ],
)
def test_a_group_that_is_none_is_refused(module, by, words):
    with pytest.raises(UserError, match=words):
        evaluator_of(module, lambda: {"g": GroupAUC(by=by)}).add(batch([(1, 1, 0.5)]))


def test_a_group_auc_of_appended_rows_and_one_of_sums_do_not_match(module):
    merged = MergedStates()
    for metrics in (lambda: {"m": GroupAUC(by="user")}, lambda: {"m": Calibration()}):
        made = evaluator_of(module, metrics)
        made.add(batch([(1, 1, 0.5), (1, 0, 0.5)]))
        if merged.empty:
            merged.add(made.states(), "worker-0")
    with pytest.raises(MetricMismatchError, match="do not match"):
        merged.add(made.states(), "worker-1")


def test_states_of_a_task_that_no_message_holds_name_their_metric(module, monkeypatch):
    made = evaluator_of(module, lambda: {"by_user": GroupAUC(by="user"), "c": Calibration()})
    made.add(batch([(1, 1, 0.5), (1, 0, 0.5)]))
    monkeypatch.setattr(metric_states, "LARGEST_STATES_BYTES", 100)
    with pytest.raises(UserError, match=r"80 of them for 'by_user', .*--validation-data"):
        made.states()


@pytest.mark.parametrize(
    "metric",
    [
        GroupAUC(by="u", average="groups"),
        Calibration(),
        LogLoss(epsilon=0.01),
        Slices(["a", "b"], min_records=3, from_logits=True),
    ],
)
def test_a_metric_is_the_same_after_keras_saved_it(metric):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert again.get_config() == metric.get_config()


def test_slices_may_be_by_strings_of_tensors_and_need_features():
    metric = Slices(["city"], min_records=1)
    cities = keras.ops.convert_to_tensor(["Ulm", "Köln", "Ulm"])
    metric.update_state([[1], [0], [0]], [0.9, 0.1, 0.2], groups={"city": cities, "other": None})
    first, second = metric.slices()
    assert [(each.value, each.records) for each in (first, second)] == [("Ulm", 2), ("Köln", 1)]
    assert metric.result() == first.auc == 1.0
    with pytest.raises(ValueError, match=r"Slices\(by=\['city'\]\) needs groups"):
        metric.update_state([1], [1])


def test_arguments_and_shapes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="average='users'"):
        GroupAUC(by="u", average="users")
    with pytest.raises(ValueError, match="between 0 and"):
        LogLoss(epsilon=0.5)
    with pytest.raises(ValueError, match="needs groups"):
        GroupAUC(by="u").update_state([1], [1])
    with pytest.raises(ValueError, match="one number a record"):
        Calibration().update_state(np.ones((2, 3)), np.ones((2, 3)))


def test_log_loss_is_finite_for_any_epsilon_and_pairs_labels_with_predictions():
    metric = LogLoss(epsilon=1e-17)
    metric.update_state([0, 1, 0, 1], [1.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(metric.result(), -np.log(1e-17) / 2)
    with pytest.raises(ValueError, match="1 labels came with 2 predictions"):
        metric.update_state([1], [0.5, 0.1])
