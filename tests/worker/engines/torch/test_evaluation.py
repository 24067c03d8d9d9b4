"""Metrics of a module over batches."""

import pytest

from shoal.errors import UserCodeError, UserError
from shoal.worker.engines.torch.evaluation import Evaluator
from tests.worker.engines.torch.conftest import NET
from tests.worker.engines.torch.test_training import as_batch, batches

torch = pytest.importorskip("torch")


def evaluated(model, given):
    evaluator = Evaluator(model, model.module)
    evaluator.build(None)
    evaluator.reset()
    for batch in given:
        evaluator.add(batch)
    return evaluator.finish(evaluator.states())


METRICS = """
def eval_metrics_fn():
    return {
        "auc": shoal.torch.metrics.AUC(from_logits=True),
        "mae": lambda labels, predictions: (labels - predictions).abs(),
    }
"""


def test_metrics_are_those_of_all_records(served):
    model = served(NET + METRICS)
    given = [as_batch(*each) for each in batches(5)]
    found = evaluated(model, given)
    predictions = torch.cat([model.predict_batch(each.features) for each in given])
    labels = torch.cat([each.labels for each in given])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(predictions, labels)
    assert found["loss"] == pytest.approx(float(loss), abs=1e-6)
    assert found["mae"] == pytest.approx(float((labels - predictions).abs().mean()), abs=1e-6)
    auc = model.module.eval_metrics_fn()["auc"]
    auc.update_state(labels, predictions)
    assert found["auc"] == pytest.approx(auc.result())


def test_evaluation_moves_no_statistics_and_no_weights(served):
    model = served()
    before = [each.copy() for each in model.servers._dense]
    evaluated(model, [as_batch(*each) for each in batches(2)])
    model.pull_dense()
    for mine, servers, first in zip(
        (model.trainable, model.state), model.servers._dense, before, strict=True
    ):
        assert (mine.read() == first).all()
        assert (servers == first).all()


def test_the_loss_of_a_training_step_is_reported(served):
    text = NET.replace(
        "loss = torch.nn.BCEWithLogitsLoss()",
        "def training_step(model, features, labels):\n    return (model(features) ** 2).mean()",
    )
    model = served(text)
    given = [as_batch(*each) for each in batches(3)]
    predictions = torch.cat([model.predict_batch(each.features) for each in given])
    assert evaluated(model, given)["loss"] == pytest.approx(
        float((predictions**2).mean()), abs=1e-6
    )


SEVERAL = NET.replace(
    "        return (self.last(hidden) + self.wide(ids).sum(1))[:, 0] + parts[1].sum(1)",
    "        one = (self.last(hidden) + self.wide(ids).sum(1))[:, 0] + parts[1].sum(1)\n"
    "        return {'click': one, 'buy': -one}",
).replace(
    "loss = torch.nn.BCEWithLogitsLoss()",
    "loss = {'click': torch.nn.BCEWithLogitsLoss(), 'buy': lambda labels, p: (labels - p) ** 2}\n"
    "loss_weights = {'buy': 0.5}",
)


def test_a_loss_for_each_output(served):
    model = served(SEVERAL)
    (batch,) = [as_batch(*each) for each in batches(1)]
    found = evaluated(model, [batch])
    outputs = model.predict_batch(batch.features)
    click = torch.nn.BCEWithLogitsLoss()(outputs["click"], batch.labels)
    buy = ((batch.labels - outputs["buy"]) ** 2).mean()
    assert found["click_loss"] == pytest.approx(float(click), abs=1e-6)
    assert found["buy_loss"] == pytest.approx(float(buy), abs=1e-6)
    assert found["loss"] == pytest.approx(float(click + buy / 2), abs=1e-6)
    model.train_batch(batch, 0)


OWN = """
class Own(shoal.torch.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.kept = self.add_state()

    def update_state(self, labels, predictions):
        self.kept.value {} len(labels)

    def result(self):
        return float(self.kept.value)

def eval_metrics_fn():
    return {"own": Own()}
"""


def test_a_metric_of_the_users_must_add_up(served):
    given = [as_batch(*each) for each in batches(2)]
    assert evaluated(served(NET + OWN.replace("{}", "+=")), given)["own"] == 12
    with pytest.raises(UserError, match=r"'own'.*do not add up over batches"):
        evaluated(served(NET + OWN.replace("{}", "[...] =")), given)


def test_functions_get_labels_and_predictions_by_their_names(served):
    model = served(
        NET
        + "\ndef eval_metrics_fn():\n    return {'one': lambda labels, p: labels + 0 * p,"
        + " 'other': lambda outputs, target: target + 0 * outputs,"
        + " 'entropy': torch.nn.functional.binary_cross_entropy_with_logits}\n"
    )
    given = [as_batch(*each) for each in batches(3)]
    found = evaluated(model, given)
    labels = torch.cat([each.labels for each in given])
    assert found["one"] == found["other"] == pytest.approx(float(labels.mean()), abs=1e-6)
    assert found["entropy"] == pytest.approx(found["loss"], abs=1e-6)
    model = served(NET + "\ndef eval_metrics_fn():\n    return {'off': lambda a, b: a - b}\n")
    message = r"metric 'off' is a function of a and b, which does not tell labels from predictions"
    with pytest.raises(UserError, match=message):
        Evaluator(model, model.module)
    own = OWN.replace("{}", "+=").replace("(self, labels, predictions)", "(self, preds, labels)")
    model = served(NET + own)
    with pytest.raises(UserError, match=r"of Own takes preds and labels, and is called \(labels,"):
        Evaluator(model, model.module)


def test_what_is_no_metric_is_told(served):
    text = NET + "\nimport keras\ndef eval_metrics_fn():\n    return {'auc': keras.metrics.AUC()}\n"
    model = served(text)
    with pytest.raises(UserError, match=r"AUC is of another library: take one of shoal\.torch"):
        Evaluator(model, model.module)
    model = served(NET + "\neval_metrics_fn = ['auc']\n")
    with pytest.raises(
        UserError, match=r"'auc' is a name of Keras's: .* shoal\.torch\.metrics\.AUC"
    ):
        Evaluator(model, model.module)
    model = served(NET + "\ndef eval_metrics_fn():\n    return {'auc': 5}\n")
    with pytest.raises(UserError, match="it must be a metric of shoal"):
        Evaluator(model, model.module)


WRONG = {
    "pairs of all": (
        "def loss(labels, predictions):\n    return labels[:, None] - predictions[None, :]",
        UserError,
        "pairs each label with each prediction",
    ),
    "nothing": ("def loss(labels, predictions):\n    pass", UserError, "returned NoneType"),
    "no gradient": (
        "def loss(labels, predictions):\n    return (labels - predictions.round().detach()).abs()",
        UserError,
        "the loss has no gradient",
    ),
    "another shape": (
        "loss = torch.nn.MSELoss()\nold = feed_batch\n",
        UserError,
        r"the labels have the shape \(6, 2\), the predictions \(6,\)",
    ),
    "classes that there are not": (
        "def loss(labels, predictions):\n    other = torch.stack([predictions, -predictions], 1)\n"
        "    return torch.nn.functional.cross_entropy(other, labels.long() + 5)",
        UserError,
        "gives the label [56], which is none of the model's classes",
    ),
    "an error of its own": (
        "def loss(labels, predictions):\n    return labels / undefined",
        UserCodeError,
        "NameError: name 'undefined' is not defined",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loss_is_told(served, name):
    loss, error, message = WRONG[name]
    model = served(NET.replace("loss = torch.nn.BCEWithLogitsLoss()", loss))
    places, x, labels = next(batches(1))
    batch = as_batch(places, x, labels)
    if name == "another shape":
        object.__setattr__(batch, "labels", torch.zeros(6, 2))
    with pytest.raises(error, match=message):
        model.train_batch(batch, 0)
