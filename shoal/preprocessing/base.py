"""The base of the preprocessing layers: inputs kept as they are, element by element.

The transformations themselves are in ids.py, numbers.py and text.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class PreprocessingLayer(keras.layers.Layer):
    """A layer without weights that takes strings and integers as they are."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Keras would cast inputs to the float policy: ids would lose digits.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.built = True


class ElementwiseLayer(PreprocessingLayer):
    """A layer whose output has the shape, and the ragged rows or sparse places, of its input."""

    def transform(self, values: Any) -> Any:
        """The output for a dense tensor of any shape."""
        raise NotImplementedError

    def result_dtype(self) -> str:
        """The output's dtype."""
        return "int64"

    def call(self, inputs: Any) -> Any:
        """Apply the layer to a tensor, a ragged or sparse one, or anything array-like."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs.with_values(self.transform(inputs.values))
        return tf.ragged.map_flat_values(self.transform, as_tensor(inputs))

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Shape and dtype of the output."""
        return symbolic(inputs.shape, self.result_dtype(), like=inputs)


def as_tensor(inputs: Any) -> Any:
    """`inputs` as a tensor; ragged tensors stay what they are."""
    if isinstance(inputs, tf.RaggedTensor):
        return inputs
    return tf.convert_to_tensor(inputs)


def symbolic(
    shape: Any, dtype: str, *, ragged: bool = False, like: Any = None
) -> keras.KerasTensor:
    """A symbolic tensor, marked as ragged where this Keras can. like: ragged or sparse as this."""
    if getattr(like, "sparse", False):
        return keras.KerasTensor(shape, dtype=dtype, sparse=True)
    ragged = ragged or bool(getattr(like, "ragged", False))  # not before Keras knew of it
    if ragged and hasattr(keras.KerasTensor((), "float32"), "ragged"):
        return keras.KerasTensor(shape, dtype=dtype, ragged=True)
    return keras.KerasTensor(shape, dtype=dtype)


def positive_integer(name: str, value: Any) -> int:
    """`value`, or ValueError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
    return value


def elements_where(condition: Callable[[Any], Any], values: Any) -> Any:
    """The elements of the last axis for which `condition` holds.

    values: dense or ragged, of rank 1 or more. Gives a vector for rank 1, else ragged.
    """
    if isinstance(values, tf.RaggedTensor):
        return tf.ragged.boolean_mask(values, tf.ragged.map_flat_values(condition, values))
    if values.shape.rank == 1:
        return tf.boolean_mask(values, condition(values))
    return tf.ragged.boolean_mask(values, condition(values))
