"""The weights of records by their classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


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
