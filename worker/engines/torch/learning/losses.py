"""The user's losses, computed by PyTorch.

Losses of torch.nn and torch.nn.functional are called (predictions, labels), as PyTorch has it, and
the user's by the names of their arguments.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from shoal.errors import UserError
from shoal.worker.engines.torch.learning.argument_order import ordered, takes_labels_first
from shoal.worker.model.learning.losses import DeclaredLosses

_OF_CLASSES = (
    *("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss", "MultiLabelMarginLoss"),
    *("cross_entropy", "nll_loss", "multi_margin_loss", "multilabel_margin_loss"),
)
"""Losses of classes, which take predictions [batch, classes, ...] and whole numbers as labels."""

Loss = Callable[[Any, Any, Any], Any]


class Losses(DeclaredLosses):
    """The losses that a module declares; each gets labels, predictions and weights as tensors."""

    kinds = (
        "a loss of torch.nn such as torch.nn.BCEWithLogitsLoss(), a function of "
        "torch.nn.functional, or a function of labels and predictions"
    )

    def __init__(
        self, loss: Any, weights: Any, file: str, refuse: Callable[[str], NoReturn]
    ) -> None:
        """Raises UserError if they are no losses or weights."""
        super().__init__(loss, weights, file, refuse)

    def _by_name(self, name: str, what: str) -> Any:
        raise UserError(f"{self._file}: {what} is the name {name!r}: give {self.kinds}")

    def _is_object(self, loss: Any) -> bool:
        if isinstance(loss, type):
            raise UserError(
                f"{self._file}: loss is the class {loss.__name__}: give an object of it, "
                f"{loss.__name__}()"
            )
        return isinstance(loss, torch.nn.Module) or _is_functional(loss)

    def _of_object(self, loss: Any, whose: str) -> Loss:
        """A loss of torch.nn, a function of torch.nn.functional, or a loss module of the user's.

        The first two get labels of the type and shape that they take.
        """
        named = _without_arguments(loss)
        name = getattr(named, "__name__", type(loss).__name__)
        of_classes = name in _OF_CLASSES
        if isinstance(loss, torch.nn.Module) and next(iter(loss.parameters()), None) is not None:
            raise UserError(
                f"{whose}: {name} has parameters, which no optimizer would train: make it a part "
                "of the model, whose forward() gives what the loss takes"
            )
        own = not isinstance(loss, torch.nn.Module) or type(loss).__module__.startswith("torch.")
        called, each = loss, _of_each(loss)
        if not own and takes_labels_first(loss, whose):
            called, each = _exchanged(loss), each and _exchanged(each)

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            if own and not isinstance(predictions, torch.Tensor):
                several = isinstance(predictions, Mapping | list | tuple)
                self._refuse(
                    f"{whose}: {name} takes one tensor of predictions, and the model gives a "
                    f"{type(predictions).__name__}: "
                    + (
                        "make loss a dict or list with a loss for each output, or write "
                        "training_step(model, features, labels)"
                        if several
                        else "give a tensor, a dict or a tuple of these in forward()"
                    )
                )
            if own:
                labels = _fitted(labels, predictions, of_classes, whose, self._refuse)
            if weights is None:
                return called(predictions, labels)
            if each is None:
                self._refuse(
                    f"{whose} {name} has no reduction, so records cannot be weighted: give a "
                    "function of labels and predictions with a loss for each record"
                )
            weighted = _weighted(each(predictions, labels), weights, whose, self._refuse)
            return weighted.sum() if _is_sum(loss) else weighted

        return function

    def _of_function(self, loss: Any, whose: str) -> Loss:
        """A function of labels and predictions."""
        called = ordered(loss, whose)

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            values = called(*of_one_rank(labels, predictions))
            if not isinstance(values, torch.Tensor):
                self._refuse(
                    f"{whose} returned {type(values).__name__}: return a tensor, of a number for "
                    "each record, or one for all"
                )
            if _pairs_all(values, labels, predictions):
                self._refuse(
                    f"{whose} pairs each label with each prediction: it gave the shape "
                    f"{tuple(values.shape)} of labels {tuple(labels.shape)} and predictions "
                    f"{tuple(predictions.shape)}; remove squeeze(), [..., None] or what else "
                    "changes the shape of one of them"
                )
            return values if weights is None else _weighted(values, weights, whose, self._refuse)

        return function

    def weights_of_classes(self, labels: Any, table: Sequence[float]) -> torch.Tensor:
        """See there."""
        return weights_of_classes(labels, table)

    def _mean(self, loss: Any) -> torch.Tensor:
        mean: torch.Tensor = loss.to(torch.float32).mean()
        return mean

    def _added(self, losses: Sequence[Any]) -> torch.Tensor:
        return torch.stack(list(losses)).sum()


def _exchanged(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function whose two arguments come in the other order."""
    return lambda first, second: function(second, first)


def _is_functional(loss: Any) -> bool:
    loss = _without_arguments(loss)
    name = getattr(loss, "__name__", None)
    return name is not None and getattr(torch.nn.functional, name, None) is loss


def _without_arguments(loss: Any) -> Any:
    """The function of a functools.partial."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return loss


def _of_each(loss: Any) -> Callable[[Any, Any], Any] | None:
    """The loss of each record; None for a loss that gives one number only."""
    if isinstance(loss, torch.nn.Module):
        if not hasattr(loss, "reduction"):
            return None
        made: Callable[[Any, Any], Any] = copy.copy(loss)
        made.reduction = "none"  # type: ignore[attr-defined]
        return made
    if "reduction" not in inspect.signature(loss).parameters:
        return None
    return lambda predictions, labels: loss(predictions, labels, reduction="none")


def _is_sum(loss: Any) -> bool:
    """True for a loss of PyTorch that adds those of records up."""
    given = loss.keywords if isinstance(loss, functools.partial) else vars(loss)
    return given.get("reduction") == "sum"


def _fitted(
    labels: Any, predictions: Any, of_classes: bool, whose: str, refuse: Callable[[str], NoReturn]
) -> Any:
    """Labels of the type and shape that a loss of PyTorch takes beside predictions."""
    if not isinstance(labels, torch.Tensor) or not isinstance(predictions, torch.Tensor):
        return labels
    if of_classes and not (labels.is_floating_point() and labels.shape == predictions.shape):
        if labels.dim() == predictions.dim() and labels.shape[1:] == (1,):
            labels = labels[:, 0]
        if labels.is_floating_point() and not torch.equal(labels, labels.round()):
            found = float(labels[labels != labels.round()][0])
            refuse(
                f"{whose} is of classes, and a label is {found}: give whole numbers, or a "
                "probability for each class"
            )
        return labels.to(torch.int64)
    if not of_classes:
        if labels.shape != predictions.shape and _squeezed(labels) == _squeezed(predictions):
            labels = labels.reshape(predictions.shape)
        if labels.shape != predictions.shape and len(labels) == len(predictions):
            refuse(
                f"{whose}: the labels have the shape {tuple(labels.shape)}, the predictions "
                f"{tuple(predictions.shape)}: give both the same, as with [:, 0] in forward()"
            )
        if not labels.is_floating_point():
            labels = labels.to(predictions.dtype)
    return labels


def _squeezed(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape without a last axis of one element."""
    shape = tuple(tensor.shape)
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


def of_one_rank(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Both, the one that lacks a last axis of one element with that axis."""
    if isinstance(labels, torch.Tensor) and isinstance(predictions, torch.Tensor):
        if predictions.dim() == labels.dim() + 1 and predictions.shape[-1] == 1:
            labels = labels[..., None]
        elif labels.dim() == predictions.dim() + 1 and labels.shape[-1] == 1:
            predictions = predictions[..., None]
    return labels, predictions


def _pairs_all(values: torch.Tensor, labels: Any, predictions: Any) -> bool:
    """True if a result has an axis of labels and one of predictions, each as long as the batch."""
    given = [each for each in (labels, predictions) if isinstance(each, torch.Tensor)]
    if values.dim() < 2 or len(given) < 2:
        return False
    size = len(predictions)
    return (
        size > 1
        and tuple(values.shape[:2]) == (size, size)
        and all(size not in each.shape[1:] for each in given)
    )


def _weighted(
    values: torch.Tensor, weights: Any, whose: str, refuse: Callable[[str], NoReturn]
) -> torch.Tensor:
    """Losses of records, each times the weight of its record, float32.

    values: [batch, ...]. weights: [batch] or [batch, 1], or of the shape of `values`.
    """
    values, weights = values.to(torch.float32), weights.to(torch.float32)
    if values.dim() == 0:
        refuse(
            f"{whose} gives one number for a whole minibatch, so its records cannot be weighted: "
            "return a loss for each record, as with reduction='none'"
        )
    if weights.dim() == values.dim() + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while weights.dim() < values.dim():
        weights = weights[..., None]
    pairs = zip(weights.shape[1:], values.shape[1:], strict=False)
    if weights.dim() > values.dim() or any(own not in (1, other) for own, other in pairs):
        refuse(
            f"{whose} gives the shape {tuple(values.shape)}, which weights of the shape "
            f"{tuple(weights.shape)} do not fit: feed_batch must give one weight a record"
        )
    return values * weights


def weights_of_classes(labels: torch.Tensor, table: Sequence[float]) -> torch.Tensor:
    """The weight of each record by its class, float32 [batch].

    labels: classes, [batch] or [batch, 1], or one-hot, [batch, classes]. table: the weight of each
    class from 0 on, and last that of all other classes.
    """
    if labels.dim() > 1:
        labels = labels.argmax(-1) if labels.shape[-1] > 1 else labels[..., 0]
    classes = labels.to(torch.int64)
    other = len(table) - 1
    known = (classes >= 0) & (classes < other)
    return torch.tensor(table, dtype=torch.float32)[torch.where(known, classes, other)]


class LossOfStep:
    """A stand-in for `loss` where a module has training_step(model, features, labels).

    parts: none, as of DeclaredLosses.
    """

    def __init__(self, function: Callable[[Any, Any, Any], Any], what: str) -> None:
        """what: the function, for errors."""
        self._function, self._what = function, what
        self.parts: Mapping[Any, Any] = {}

    def named(self) -> dict[str, Loss]:
        """No loss of an output of its own."""
        return {}

    def of_batch(self, model: Any, features: Any, labels: Any, weights: Any) -> torch.Tensor:
        """The scalar of a batch. Raises UserError if it gives none, and for weights."""
        if weights is not None:
            raise UserError(
                f"{self._what} gets features and labels, and no weights of records: give these "
                "among the features, and weigh the loss there"
            )
        loss = self._function(model, features, labels)
        if isinstance(loss, Mapping):
            loss = loss.get("loss")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            given = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UserError(f"{self._what} gave {given}: it must give the loss, one number")
        return loss.reshape(()).to(torch.float32)
