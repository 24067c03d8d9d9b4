"""The weights of a module's `class_weight`: one for each class of labels, 1 for the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import UserError
from shoal.worker.code.module import UserModule
from shoal.worker.model.learning.losses import DeclaredLosses

MOST_CLASSES = 1_000_000
"""The highest class that may have a weight, plus one."""


def class_weights(given: Any, file: str) -> list[float]:
    """The weight of each class from 0 on, and last that of all other classes.

    given: a dict from class, a whole number from 0 on, to weight. Raises UserError.
    """
    if not isinstance(given, Mapping):
        raise UserError(
            f"{file}: class_weight is a {type(given).__name__}; it must be a dict from class "
            "to weight, such as {0: 1.0, 1: 5.0}"
        )
    for key, weight in given.items():
        whole = isinstance(key, int) or getattr(key, "dtype", None) is not None
        if not whole or key != int(key) or not 0 <= key < MOST_CLASSES:
            raise UserError(
                f"{file}: class_weight has the class {key!r}; a class must be a whole number "
                f"from 0 to {MOST_CLASSES - 1}"
            )
        number = isinstance(weight, int | float) or hasattr(weight, "dtype")
        if not number or not math.isfinite(weight) or weight < 0:
            raise UserError(
                f"{file}: class_weight of class {key} is {weight!r}; a weight must be a finite "
                "number, at least 0"
            )
    size = max((int(key) for key in given), default=-1) + 1
    table = [1.0] * (size + 1)
    for key, weight in given.items():
        table[int(key)] = float(weight)
    return table


def training_loss_of(
    loss: DeclaredLosses, module: UserModule, weights_spec: Any
) -> Callable[[Any, Any, Any], Any]:
    """The loss with the module's class weights; raises UserError if these cannot be used."""
    if module.class_weight is None:
        return loss
    file = module.path.name
    if weights_spec is not None:
        raise UserError(
            f"{file}: {module.feed_name} gives weights, and there is class_weight: "
            f"remove one of them, or multiply the weights in {module.feed_name}"
        )
    if loss.parts:
        raise UserError(
            f"{file}: class_weight is for a model with one output: have "
            f"{module.feed_name} give weights, (features, labels, weights)"
        )
    table = class_weights(module.class_weight, file)

    def weighed(labels: Any, predictions: Any, _: Any) -> Any:
        return loss(labels, predictions, loss.weights_of_classes(labels, table))

    return weighed
