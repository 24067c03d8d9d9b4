"""The order in which a function takes labels and predictions, read from their names.

PyTorch's losses and metrics take (predictions, labels), functions of other libraries the other way
round. Which way a function of the user's has it shows in its arguments' names alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

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


def labels_first(function: Callable[..., Any]) -> bool | None:
    """True for a function of (labels, predictions), False for one of (predictions, labels).

    None where the names of its first two arguments do not tell.
    """
    kinds = [_kind(name) for name in first_two(function)]
    if kinds == [_LABELS, _PREDICTIONS]:
        return True
    return False if kinds == [_PREDICTIONS, _LABELS] else None


def first_two(function: Callable[..., Any]) -> list[str]:
    """The names of the first two arguments of a function; fewer where it does not say them."""
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
