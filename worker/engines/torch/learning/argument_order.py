"""The order in which a function takes labels and predictions, read from their names.

PyTorch's losses and metrics take (predictions, labels), those of other libraries (labels,
predictions). Which of both a function of the user's takes, its arguments' names alone tell.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from shoal.errors import UserError

_PREDICTIONS = frozenset(
    {
        *("prediction", "predictions", "predicted", "pred", "preds", "hat", "yhat", "ypred"),
        *("logit", "logits", "output", "outputs", "out", "outs", "input", "inputs"),
        *("score", "scores", "prob", "probs", "probability", "probabilities"),
        *("estimate", "estimates", "estimated"),
    }
)

_LABELS = frozenset(
    {
        *("label", "labels", "target", "targets", "true", "truth", "ytrue", "actual", "actuals"),
        *("expected", "gt"),
    }
)

_LETTERS = {"p": _PREDICTIONS, "x": _PREDICTIONS, "o": _PREDICTIONS, "y": _LABELS, "t": _LABELS}
"""Names of one letter, which tell beside one another."""

HOW = "such as (predictions, labels), (outputs, targets) or (y_true, y_pred)"
"""Names that tell, in words."""


def ordered(function: Callable[..., Any], whose: str) -> Callable[..., Any]:
    """A function of the user's as one of (labels, predictions). See `takes_labels_first`."""
    if takes_labels_first(function, whose):
        return function
    return lambda labels, predictions: function(predictions, labels)


def takes_labels_first(function: Callable[..., Any], whose: str) -> bool:
    """True for a function of (labels, predictions), False for one of (predictions, labels).

    whose: which it is, for the error. Raises UserError where its names do not tell the two apart.
    """
    first = labels_first(function)
    if first is None:
        given = " and ".join(first_two(function)) or "arguments without names"
        raise UserError(
            f"{whose} is a function of {given}, which does not tell labels from predictions: give "
            f"its arguments names {HOW}, by which shoal calls it, in either order"
        )
    return first


def labels_first(function: Callable[..., Any]) -> bool | None:
    """True for a function of (labels, predictions), False for one of (predictions, labels).

    None where the names of its first two arguments do not tell, or say the same of both. One word
    is enough, as in (vectors, labels); one letter is not.
    """
    names = first_two(function)
    if len(names) < 2:
        return None
    first, second = map(_kind, names)
    if first == second:
        return None
    if first is None:
        return second is _PREDICTIONS if len(names[1]) > 1 else None
    if second is None:
        return first is _LABELS if len(names[0]) > 1 else None
    return first is _LABELS


def first_two(function: Callable[..., Any]) -> list[str]:
    """The names of the first two arguments by place, of a module those of forward()."""
    if isinstance(function, torch.nn.Module):
        function = function.forward
    try:
        found = list(inspect.signature(function).parameters.values())[:2]
    except (TypeError, ValueError):  # of a function in C
        return []
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in found if each.kind in by_place]


def _kind(name: str) -> frozenset[str] | None:
    """The set of words that an argument's name has one of; None if of none or of both."""
    if name in _LETTERS:
        return _LETTERS[name]
    words = set(name.lower().split("_"))
    found = [kind for kind in (_PREDICTIONS, _LABELS) if words & kind]
    return found[0] if len(found) == 1 else None
