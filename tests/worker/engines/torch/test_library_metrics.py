"""Metrics of torchmetrics: merged over workers they are those of the whole data set."""

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.master.work.evaluation.evaluation import MergedStates
from shoal.worker.code.given_values import functions_of, is_value
from shoal.worker.engines.torch.evaluation import Evaluator
from shoal.worker.engines.torch.library_metrics import LibraryMetric
from tests.worker.engines.torch.conftest import NET
from tests.worker.engines.torch.test_training import as_batch, batches

torch = pytest.importorskip("torch")
torchmetrics = pytest.importorskip("torchmetrics")

from torchmetrics import classification, regression  # noqa: E402


def records(count=3000, classes=None, seed=0):
    """Labels as a file has them, float32, and logits of predictions."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes or 2, count)
    shape = (count, classes) if classes else (count, 1)
    logits = draw.normal(size=shape) + (np.eye(classes)[labels] if classes else labels[:, None])
    return torch.from_numpy(labels.astype(np.float32)), torch.from_numpy(logits.astype(np.float32))


def merged(make, labels, predictions, size=64):
    """The result of batches that two workers evaluate in turns, on a third that has seen none."""
    two = [LibraryMetric(make(), "m", "model.py") for _ in range(2)]
    for i, start in enumerate(range(0, len(labels), size)):
        two[i % 2].update_state(labels[start : start + size], predictions[start : start + size])
    third = LibraryMetric(make(), "m", "model.py")
    for mine, *theirs in zip(third.variables, *(each.variables for each in two), strict=True):
        mine.assign(sum(np.array(each) for each in theirs))
    return third.result()


BINARY = {
    "the AUC": lambda: classification.BinaryAUROC(thresholds=200),
    "accuracy": classification.BinaryAccuracy,
    "F1": classification.BinaryF1Score,
    "a matrix": classification.BinaryConfusionMatrix,
    "two numbers": lambda: classification.BinaryRecallAtFixedPrecision(0.6, thresholds=100),
}

CLASSES = {
    "the AUC of classes": lambda: classification.MulticlassAUROC(4, thresholds=50),
    "accuracy of each class": lambda: classification.MulticlassAccuracy(4, average=None),
}

NUMBERS = {
    "squares": regression.MeanSquaredError,
    "the root of squares": lambda: regression.MeanSquaredError(squared=False),
    "R2": regression.R2Score,
}


@pytest.mark.parametrize("name", BINARY)
def test_two_workers_find_what_torchmetrics_finds_of_all_records(name):
    labels, logits = records()
    whole = BINARY[name]()
    whole.update(logits[:, 0], labels.long())
    wanted = np.array(whole.compute())
    np.testing.assert_allclose(merged(BINARY[name], labels, logits), wanted, rtol=1e-6)
    chances = logits.sigmoid()
    np.testing.assert_allclose(merged(BINARY[name], labels[:, None], chances), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_found_alike(name):
    labels, logits = records(classes=4)
    whole = CLASSES[name]()
    whole.update(logits, labels.long())
    np.testing.assert_allclose(merged(CLASSES[name], labels, logits), whole.compute(), rtol=1e-6)


@pytest.mark.parametrize("name", NUMBERS)
def test_errors_are_found_alike(name):
    labels, predictions = records()
    whole = NUMBERS[name]()
    whole.update(predictions[:, 0], labels)
    np.testing.assert_allclose(merged(NUMBERS[name], labels, predictions), whole.compute(), 1e-5)


def test_a_batch_that_looks_like_chances_is_of_logits_where_one_before_was():
    labels, logits = torch.tensor([1.0, 0, 1, 1]), torch.tensor([2.0, -1, 0.3, 0.4])
    found = LibraryMetric(classification.BinaryAccuracy(), "m", "model.py")
    found.update_state(labels[:2], logits[:2])
    found.update_state(labels[2:], logits[2:])
    assert found.result() == 1.0


def test_an_update_of_the_users_gets_predictions_as_they_are():
    class OfLogits(classification.BinaryAccuracy):
        def update(self, preds, target):
            super().update((preds > 2).float(), target)

    found = LibraryMetric(OfLogits(), "m", "model.py")
    found.update_state(torch.tensor([1.0, 0]), torch.tensor([3.0, 1.0]))
    assert found.result() == 1.0


def test_a_sum_goes_on_where_float32_would_stop():
    found = LibraryMetric(regression.MeanSquaredError(), "m", "model.py")
    found.variables[0].assign([2.0**26])
    found.variables[1].assign(2**26)
    for _ in range(8):
        found.update_state(torch.zeros(1), torch.ones(1))
    assert np.array(found.variables[0]).tolist() == [2.0**26 + 8]
    assert found.result() == 1.0


def test_results_are_of_the_latest_states():
    found = LibraryMetric(classification.BinaryAccuracy(), "m", "model.py")
    found.update_state(torch.ones(2), torch.tensor([0.9, 0.1]))
    assert found.result() == 0.5
    for each in found.variables:
        each.assign(np.array(each) * [0])
    found.variables[0].assign([3])
    assert found.result() == 1.0


class Summing(torchmetrics.Metric):
    """A metric of the user's, which may keep its state in an attribute."""

    def __init__(self, hidden=False, how="sum"):
        super().__init__()
        self.hidden = hidden
        self.add_state("total", torch.zeros(()), dist_reduce_fx=how)

    def update(self, labels, predictions):
        if self.hidden:
            self.seen = len(labels)
        else:
            self.total += (labels == 1).sum()

    def compute(self):
        return self.total


class Unnamed(Summing):
    def update(self, first, second):
        """Add nothing."""


REFUSED = {
    "all records": (
        lambda: classification.BinaryAUROC(),
        r"BinaryAUROC of torchmetrics\) keeps all records, in its state preds, .* thresholds=200",
    ),
    "groups": (lambda: torchmetrics.retrieval.RetrievalMRR(), r"take shoal\.torch\.metrics\.Group"),
    "records of another": (classification.BinaryCalibrationError, "take a metric that adds up"),
    "the largest": (torchmetrics.MaxMetric, "reduces its state max_value by max, .*='sum'"),
    "a mean": (lambda: Summing(how="mean"), "reduces its state total by mean"),
    "what takes no labels": (
        torchmetrics.MeanMetric,
        r"its update\(\) is a function of value and weight,",
    ),
    "names that do not tell": (Unnamed, r"of first and second, .* names such as \(predic"),
    "made of others": (lambda: Summing() + Summing(), "is made of other metrics"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_merge_by_sums_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        LibraryMetric(make(), "m", "model.py")


AT_FIRST = {
    "a curve": (lambda: classification.BinaryROC(thresholds=5), "gives a tuple of arrays"),
    "an attribute": (lambda: Summing(hidden=True), r"keeps seen outside .* add_state\('seen'"),
}


@pytest.mark.parametrize("name", AT_FIRST)
def test_what_only_a_batch_shows_is_refused_at_the_first(name):
    make, message = AT_FIRST[name]
    found = LibraryMetric(make(), "m", "model.py")
    with pytest.raises(UserError, match=message):
        found.update_state(torch.tensor([0.0, 1]), torch.tensor([0.2, 0.3]))


def test_labels_that_are_no_classes_are_told():
    found = LibraryMetric(classification.BinaryAccuracy(), "m", "model.py")
    with pytest.raises(ValueError, match=r"takes whole numbers as labels, and there is 0\.5"):
        found.update_state(torch.tensor([0.5, 1]), torch.tensor([0.2, 0.3]))
    with pytest.raises(ValueError, match="same shape"):
        found.update_state(torch.tensor([0.0, 1]), torch.tensor([0.2, 0.3, 0.4]))


METRICS = """
import torchmetrics
from torchmetrics.classification import BinaryAUROC

class Last(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, labels, predictions):
        self.total = torch.tensor(float(len(labels)))

    def compute(self):
        return self.total

def eval_metrics_fn():
    return {}
"""


def test_workers_states_are_merged_by_the_master(served):
    model = served(NET + METRICS.replace("{}", '{"auc": BinaryAUROC(thresholds=50)}'))
    given = [as_batch(*each) for each in batches(6)]
    sums = MergedStates()
    for part in (given[:3], given[3:]):
        worker = Evaluator(model, model.module)
        worker.reset()
        for batch in part:
            worker.add(batch)
        sums.add(worker.states(), "worker")
    whole = classification.BinaryAUROC(thresholds=50)
    whole.update(
        torch.cat([model.predict_batch(each.features) for each in given]),
        torch.cat([each.labels for each in given]).long(),
    )
    found = Evaluator(model, model.module).finish(sums.to_message())
    assert found["auc"] == pytest.approx(float(whole.compute()), rel=1e-6)


def test_a_metric_of_the_users_must_add_up(served):
    model = served(NET + METRICS.replace("{}", '{"last": Last()}'))
    evaluator = Evaluator(model, model.module)
    evaluator.reset()
    with pytest.raises(UserError, match=r"'last'.*do not add up over batches"):
        evaluator.add(as_batch(*next(batches(1))))


def test_a_collection_in_a_dict_is_told(served):
    collection = '{"both": torchmetrics.MetricCollection([BinaryAUROC(thresholds=5)])}'
    model = served(NET + METRICS.replace("{}", collection))
    with pytest.raises(UserError, match=r"'both' is a MetricCollection: .* \{\*\*collection\}"):
        Evaluator(model, model.module)


@pytest.mark.parametrize("kind", ["one", "list", "collection"])
def test_they_may_be_given_as_values(kind):
    one = classification.BinaryAccuracy()
    collection = torchmetrics.MetricCollection({"BinaryAccuracy": one})
    given = {"one": one, "list": [one], "collection": collection}[kind]
    assert is_value("eval_metrics_fn", given)
    (name,) = functions_of(eval_metrics_fn=given)["eval_metrics_fn"]()
    assert name == "BinaryAccuracy"
    assert dict(**collection)["BinaryAccuracy"] is one
