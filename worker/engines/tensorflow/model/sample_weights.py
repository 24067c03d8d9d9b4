"""Weights of records in the loss: those that feed gives, and those of classes.

The formulas are those of Keras: a loss is the sum of the weighted losses of its records, divided by
their number and not by the sum of the weights (keras.losses, reduction "sum_over_batch_size").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf


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


def weights_of_classes(labels: Any, table: Sequence[float]) -> tf.Tensor:
    """The weight of each record by its class, float32 [batch].

    labels: classes, [batch] or [batch, 1], or one-hot, [batch, classes], as in Keras.
    table: the weight of each class from 0 on, and last that of all other classes.
    """
    if labels.shape.rank is not None and labels.shape.rank > 1:
        one_hot = labels.shape[-1] is None or labels.shape[-1] > 1
        labels = tf.argmax(labels, axis=-1) if one_hot else labels[..., 0]
    classes = tf.cast(labels, tf.int64)
    other = len(table) - 1
    known = (classes >= 0) & (classes < other)
    return tf.gather(tf.constant(table), tf.where(known, classes, other))
