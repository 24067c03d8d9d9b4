"""Weights of records in the loss: those that feed gives, and those of classes.

The formulas are those of Keras: a loss is the sum of the weighted losses of its records, divided by
their number and not by the sum of the weights (keras.losses, reduction "sum_over_batch_size").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import tensorflow as tf

from shoal.errors import UserError

MOST_CLASSES = 1_000_000
"""The highest class that may have a weight, plus one."""


def weighted(values: Any, weights: Any, what: str, refuse: Callable[[str], NoReturn]) -> tf.Tensor:
    """Losses of records, each times the weight of its record.

    values: float tensor [batch, ...]. weights: a number a record, [batch] or [batch, 1], or of the
    shape of `values`. what: the loss, for errors. refuse: raises UserError with a message.
    Returns float32, of the shape of `values`.
    """
    values = tf.cast(values, tf.float32)
    weights = tf.cast(weights, tf.float32)
    if values.shape.rank == 0:
        refuse(
            f"{what} gives one number for a whole minibatch, so its records cannot be weighted: "
            "return a loss for each record, as the functions of keras.losses do, or use a class of "
            "keras.losses"
        )
    rank = values.shape.rank
    if rank is None or weights.shape.rank is None:
        return values * weights
    if weights.shape.rank == rank + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while weights.shape.rank < rank:
        weights = weights[..., None]
    pairs = zip(weights.shape[1:], values.shape[1:], strict=False)
    if weights.shape.rank > rank or any(own not in (None, 1, other) for own, other in pairs):
        refuse(
            f"{what} has the shape {values.shape}, which weights of the shape {weights.shape} do "
            "not fit: feed must give one weight a record"
        )
    return values * weights


class ClassWeights:
    """The weights of a module's `class_weight`: one for each class of labels, 1 for the others."""

    def __init__(self, given: Any, file: str) -> None:
        """given: a dict from class, a whole number from 0 on, to weight. Raises UserError."""
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
        table = [1.0] * (size + 1)  # the last one is that of all other classes
        for key, weight in given.items():
            table[int(key)] = float(weight)
        self._table = table

    def of(self, labels: Any) -> tf.Tensor:
        """The weight of each record, float32 [batch].

        labels: classes, [batch] or [batch, 1], or one-hot, [batch, classes], as in Keras.
        """
        if labels.shape.rank is not None and labels.shape.rank > 1:
            one_hot = labels.shape[-1] is None or labels.shape[-1] > 1
            labels = tf.argmax(labels, axis=-1) if one_hot else labels[..., 0]
        classes = tf.cast(labels, tf.int64)
        other = len(self._table) - 1
        known = (classes >= 0) & (classes < other)
        return tf.gather(tf.constant(self._table), tf.where(known, classes, other))
