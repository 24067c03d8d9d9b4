"""Errors of TensorFlow's kernels that data cause, told by the names of layers and features.

Owns the recognition of what TensorFlow raises. What tracing raises is told where it is traced.
"""

from __future__ import annotations

import re
from typing import Any

import keras
import tensorflow as tf

from shoal.worker.code.keras_internals import all_layers, inputs_of_calls
from shoal.worker.model.embeddings.keras_embeddings import outside_message

_OUTSIDE = re.compile(r"indices\[[\d, ]*\] = (-?\d+) is not in \[0, (\d+)\)")
_CLASS = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")
_NODE = re.compile(r"\{\{node ([^}]*)\}\}")


def explained(error: BaseException | None, model: Any, module: Any, labels: Any) -> str | None:
    """The explanation of a step's error, in the user's words; None for any other error.

    module: the user's, of type UserModule. labels: of the batch; None where there are none.
    """
    if not isinstance(error, tf.errors.OpError):
        return None
    feed = module.describe(module.feed_name)
    text = any(getattr(each, "dtype", None) == tf.string for each in tf.nest.flatten(labels))
    if text and "Cast string to" in error.message:
        return (
            f"{feed} gives text as labels, and the loss takes numbers: make numbers of them in "
            f'{module.feed_name}, such as tf.cast(labels == "yes", tf.float32)'
        )
    if (beyond := _CLASS.search(error.message)) is not None:
        return (
            f"{feed} gives the label {beyond[1]}, and the model's output has the classes 0 to "
            f"{int(beyond[2]) - 1}: give its last layer one unit for each class, or map the labels "
            f"in {module.feed_name}"
        )
    outside, node = _OUTSIDE.search(error.message), _NODE.search(error.message)
    if outside is None or node is None:
        return None
    wrong, count = map(int, outside.groups())
    for layer in all_layers(model):
        if (
            isinstance(layer, keras.layers.Embedding)
            and layer.input_dim == count
            and any(re.fullmatch(rf"{re.escape(layer.name)}(_\d+)?", e) for e in node[1].split("/"))
        ):
            return outside_message("embedding", layer.name, wrong, count) + _features(layer, model)
    return None


def _features(layer: Any, model: Any) -> str:
    """Which inputs of a functional model the layer is called with, as they are."""
    given = [id(each) for each in inputs_of_calls(layer)]
    names = [each.name for each in getattr(model, "inputs", None) or () if id(each) in given]
    return f". It looks up the feature {' and '.join(map(repr, names))}" if names else ""
