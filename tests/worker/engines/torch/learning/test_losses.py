"""Losses of PyTorch, of its functions and of the user's, as the engine calls them."""

import pytest

from shoal.errors import UserError
from shoal.worker.engines.torch.learning.losses import Losses, weights_of_classes

torch = pytest.importorskip("torch")

F = torch.nn.functional


def refuse(message):
    raise UserError(message)


def loss_of(loss, weights=None):
    return Losses(loss, weights, "model.py", refuse)


def given(classes=3):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(6, classes, generator=draw), torch.tensor([0, 2, 1, 1, 0, 2])


class Focal(torch.nn.Module):
    """A loss of the user's, called as PyTorch calls its own."""

    def forward(self, predictions, labels):
        assert labels.dtype == torch.int64
        return F.cross_entropy(predictions, labels)


class Ranked(torch.nn.Module):
    """One that is called as Keras calls its own."""

    reduction = "mean"

    def forward(self, y_true, y_pred):
        return F.cross_entropy(y_pred, y_true, reduction=self.reduction)


def of_outputs(outputs, targets):
    return F.cross_entropy(outputs, targets)


SAME = {
    "a function of PyTorch's order": (of_outputs, F.cross_entropy),
    "a module of the other order": (Ranked(), F.cross_entropy),
    "an object": (torch.nn.CrossEntropyLoss(), F.cross_entropy),
    "a function": (F.cross_entropy, F.cross_entropy),
    "a function of the user's": (lambda labels, p: F.cross_entropy(p, labels), F.cross_entropy),
    "a loss module of the user's": (Focal(), F.cross_entropy),
    "a sum": (
        torch.nn.CrossEntropyLoss(reduction="sum"),
        lambda p, labels: F.cross_entropy(p, labels, reduction="sum"),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_predictions_and_labels_come_in_the_order_of_each(name):
    loss, expected = SAME[name]
    predictions, labels = given()
    found = loss_of(loss)(labels, predictions)
    torch.testing.assert_close(found, expected(predictions, labels))


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([0, 1, 1, 0]),
        torch.tensor([[0], [1], [1], [0]]),
        torch.tensor([0.0, 1, 1, 0]),
        torch.tensor([False, True, True, False]),
    ],
    ids=["int64", "with an axis", "float32", "bool"],
)
def test_labels_fit_the_predictions(labels):
    predictions = torch.tensor([0.5, -1.0, 2.0, 0.1])
    wanted = F.binary_cross_entropy_with_logits(predictions, torch.tensor([0.0, 1, 1, 0]))
    for loss in (torch.nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits):
        torch.testing.assert_close(loss_of(loss)(labels, predictions), wanted)
        torch.testing.assert_close(loss_of(loss)(labels, predictions[:, None]), wanted)


def test_labels_that_pair_with_all_predictions_are_refused():
    with pytest.raises(UserError, match=r"labels have the shape \(4, 2\), the predictions \(4,\)"):
        loss_of(torch.nn.MSELoss())(torch.zeros(4, 2), torch.zeros(4))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_records_are_weighed(reduction):
    predictions, labels = given()
    weights = torch.tensor([1.0, 0, 2, 1, 0.5, 3])
    each = F.cross_entropy(predictions, labels, reduction="none") * weights
    loss = loss_of(torch.nn.CrossEntropyLoss(reduction=reduction))
    wanted = each.mean() if reduction == "mean" else each.sum()
    torch.testing.assert_close(loss(labels, predictions, weights), wanted)
    torch.testing.assert_close(loss(labels, predictions, weights[:, None]), wanted)
    if reduction == "mean":
        torch.testing.assert_close(loss_of(Ranked())(labels, predictions, weights), wanted)


def test_what_cannot_be_weighed_is_told():
    predictions, labels = given()
    with pytest.raises(UserError, match="one number for a whole minibatch"):
        loss_of(lambda labels, p: F.cross_entropy(p, labels))(labels, predictions, torch.ones(6))
    with pytest.raises(UserError, match="Focal has no reduction"):
        loss_of(Focal())(labels, predictions, torch.ones(6))
    with pytest.raises(UserError, match="must give one weight a record"):
        loss_of(F.cross_entropy)(labels, predictions, torch.ones(6, 2))


class Unnamed(torch.nn.Module):
    def forward(self, a, b):
        return (a - b).abs()


UNTOLD = {
    "letters": (lambda a, b: a - b, "a and b"),
    "labels twice": (lambda label, target: label - target, "label and target"),
    "one letter alone": (lambda p, q: p - q, "p and q"),
    "a module": (Unnamed(), "a and b"),
    "any": (lambda *given: given[0], "arguments without names"),
    "one": (lambda labels: labels, "labels"),
    "a function in C": (torch.sub, "arguments without names"),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_names_that_do_not_tell_predictions_from_labels_are_refused(name):
    loss, names = UNTOLD[name]
    message = rf"^model\.py: loss is a function of {names}, which .* names such as \(predictions"
    with pytest.raises(UserError, match=message):
        loss_of(loss)


def test_a_loss_with_parameters_is_refused():
    with pytest.raises(UserError, match="has parameters, which no optimizer would train"):
        loss_of(torch.nn.Linear(2, 1))


def test_classes_have_weights():
    table = [1.0, 5.0, 9.0]  # the last of all classes above
    assert weights_of_classes(torch.tensor([0, 1, 7, -1]), table).tolist() == [1, 5, 9, 9]
    assert weights_of_classes(torch.tensor([[1], [0]]), table).tolist() == [5, 1]
    assert weights_of_classes(torch.eye(2), table).tolist() == [1, 5]


def test_outputs_are_added_by_their_weights():
    loss = loss_of({"a": torch.nn.MSELoss(), "b": F.l1_loss}, {"b": 3})
    outputs = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0, 4.0])}
    assert float(loss(torch.zeros(2), outputs)) == pytest.approx(2.5 + 12)
    assert sorted(loss.named()) == ["a_loss", "b_loss"]
    with pytest.raises(UserError, match="there is a loss for 'b'"):
        loss(torch.zeros(2), {"a": torch.zeros(2)})
