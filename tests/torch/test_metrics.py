"""Metrics of shoal.torch against those of Keras, and the sums of their states."""

import copy

import keras
import numpy as np
import pytest

from shoal.torch import metrics

torch = pytest.importorskip("torch")


def data(count=3000, seed=0):
    rng = np.random.default_rng(seed)
    labels = (rng.random(count) < 0.3).astype(np.float32)
    predictions = np.clip(rng.random(count) * 0.7 + labels * 0.2, 0, 1).astype(np.float32)
    return labels, predictions


def as_logits(predictions):
    return predictions * 6 - 3


CASES = {
    "AUC": (metrics.AUC, keras.metrics.AUC, lambda p: p),
    "AUC of few thresholds": (
        lambda: metrics.AUC(10),
        lambda: keras.metrics.AUC(num_thresholds=10),
        lambda p: p,
    ),
    "AUC of logits": (
        lambda: metrics.AUC(from_logits=True),
        lambda: keras.metrics.AUC(from_logits=True),
        as_logits,
    ),
    "LogLoss": (metrics.LogLoss, keras.metrics.BinaryCrossentropy, lambda p: p),
    "LogLoss of logits": (
        lambda: metrics.LogLoss(from_logits=True),
        lambda: keras.metrics.BinaryCrossentropy(from_logits=True),
        as_logits,
    ),
    "BinaryAccuracy": (metrics.BinaryAccuracy, keras.metrics.BinaryAccuracy, lambda p: p),
    "MeanSquaredError": (metrics.MeanSquaredError, keras.metrics.MeanSquaredError, lambda p: p),
    "RootMeanSquaredError": (
        metrics.RootMeanSquaredError,
        keras.metrics.RootMeanSquaredError,
        lambda p: p,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_keras(name):
    ours, keras_has, changed = CASES[name]
    labels, predictions = data()
    given = changed(predictions)
    metric, theirs = ours(), keras_has()
    metric.update_state(torch.from_numpy(labels), torch.from_numpy(given)[:, None])
    theirs.update_state(labels, given)
    assert metric.result() == pytest.approx(float(theirs.result()), abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_states_add_up(name):
    ours, _, changed = CASES[name]
    labels, predictions = data()
    given = changed(predictions)
    whole, parts = ours(), [ours(), ours()]
    whole.update_state(labels, given)
    parts[0].update_state(labels[:700], given[:700])
    parts[1].update_state(labels[700:], given[700:])
    merged = copy.deepcopy(parts[0])
    for state, other in zip(merged.variables, parts[1].variables, strict=True):
        state.assign(np.asarray(state) + np.asarray(other))
    assert merged.result() == pytest.approx(whole.result(), rel=1e-12)
    merged.reset_state()
    assert all(not np.asarray(state).any() for state in merged.variables)


def test_accuracy_is_of_the_highest_output():
    metric = metrics.Accuracy()
    metric.update_state(torch.tensor([1, 0, 2]), torch.eye(3)[[1, 2, 2]])
    assert metric.result() == pytest.approx(2 / 3)


def test_a_function_is_averaged_over_records():
    metric = metrics.FunctionMetric(lambda labels, predictions: (labels - predictions).abs(), "mae")
    metric.update_state(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
    metric.update_state(torch.tensor([3.0]), torch.tensor([0.0]))
    assert metric.result() == 2.0
    scalar = metrics.FunctionMetric(lambda labels, predictions: labels.sum(), "sum")
    scalar.update_state(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
    scalar.update_state(torch.tensor([6.0]), torch.tensor([0.0]))
    assert scalar.result() == 4.0  # a number weighs as many records as its batch has


def test_what_a_metric_cannot_take_is_told():
    labels, predictions = data(10)
    with pytest.raises(ValueError, match=r"give AUC\(from_logits=True\)"):
        metrics.AUC().update_state(labels, predictions * 3 + 1)
    with pytest.raises(ValueError, match="labels 0 or 1"):
        metrics.AUC().update_state(labels + 1, predictions)
    with pytest.raises(ValueError, match="one number a record"):
        metrics.LogLoss().update_state(labels, np.ones((10, 2)))
    with pytest.raises(ValueError, match="10 labels came with 9 predictions"):
        metrics.LogLoss().update_state(labels, predictions[:9])
    with pytest.raises(ValueError, match="one value a record"):
        metrics.FunctionMetric(lambda labels, _: labels[:3], "few").update_state(labels, labels)


def test_the_area_within_groups_is_that_of_the_metric_of_keras():
    from shoal.model_metrics import GroupAUC

    labels, predictions = data(500)
    groups = np.random.default_rng(1).integers(-(2**62), 2**62, 40)[np.arange(500) % 40]
    for average in ("records", "groups"):
        ours, theirs = (kind("user", average) for kind in (metrics.GroupAUC, GroupAUC))
        for part in (slice(0, 200), slice(200, 500)):
            given = torch.from_numpy(groups[part])
            ours.update_state(torch.from_numpy(labels[part]), predictions[part], groups=given)
            theirs.update_state(labels[part], predictions[part], groups=groups[part])
        assert ours.result() == pytest.approx(theirs.result(), abs=1e-6)
        restored = metrics.GroupAUC("user", average)
        restored.records = ours.records
        assert restored.result() == ours.result()
    with pytest.raises(ValueError, match="needs groups"):
        ours.update_state(labels, predictions)
