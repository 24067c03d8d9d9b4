"""Clipping of gradients, as Keras does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


def clipped(gradients: Sequence[Any], limits: Mapping[str, float]) -> list[Any]:
    """Gradients within an optimizer's limits; None stays None.

    limits: by the names of the optimizer's arguments, of which Keras takes the first that is here.
    """
    if limit := limits.get("clipvalue"):
        return [
            None if each is None else tf.clip_by_value(each, -limit, limit) for each in gradients
        ]
    if limit := limits.get("clipnorm"):
        return [None if each is None else tf.clip_by_norm(each, limit) for each in gradients]
    if limit := limits.get("global_clipnorm"):
        return list(tf.clip_by_global_norm(gradients, limit)[0])
    return list(gradients)
