"""The base of the preprocessing layers: inputs kept as they are, element by element.

A layer computes twice: with tensors of TensorFlow, in a model too, and with arrays of NumPy, on any
engine. The transformations themselves are in ids.py, numbers.py and text.py.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.base.feeding import gives_arrays
from shoal.data.columns import ListColumn
from shoal.errors import UserError

if TYPE_CHECKING:
    import keras

Array = npt.NDArray[Any]
Arrays = Array | ListColumn
"""Values as feed_batch is given them: strings are an array of objects, bytes or str."""


class _Plain:
    """The part of a Keras layer that arrays need."""

    def __init__(self, *, name: str | None = None, dtype: str | None = None) -> None:
        self.name = name or type(self).__name__
        self.compute_dtype = dtype or "float32"

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"name": self.name, "dtype": self.compute_dtype}


# A program of PyTorch's need not load Keras, which takes seconds, nor have it.
OF_KERAS = "keras" in sys.modules or (
    "torch" not in sys.modules and importlib.util.find_spec("keras") is not None
)
"""If the classes are layers of Keras; else they take arrays alone."""

if OF_KERAS:
    _keras: Any = importlib.import_module("keras")
    Layer: Any = _keras.layers.Layer
    serializable: Any = _keras.saving.register_keras_serializable(package="shoal")
    ON_TENSORFLOW = _keras.backend.backend() == "tensorflow"
else:
    Layer = _Plain
    serializable = lambda made: made  # noqa: E731
    ON_TENSORFLOW = False

tf: Any = importlib.import_module("tensorflow") if ON_TENSORFLOW else None


def _is_tensor(given: Any) -> bool:
    """True for a tensor of any framework, symbolic ones too."""
    return type(given).__module__.partition(".")[0] in (
        "keras",
        "tensorflow",
        "torch",
        "jaxlib",
        "jax",
    )


class PreprocessingLayer(Layer):
    """A layer without weights that takes strings and integers as they are."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Keras would cast inputs to the float policy: ids would lose digits.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.built = True

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer.

        Raises UserError for tensors where TensorFlow is not used.
        """
        tensors = any(map(_is_tensor, inputs if isinstance(inputs, list | tuple) else [inputs]))
        if not tensors and (gives_arrays() or not ON_TENSORFLOW):
            # Numbers that do not fit, and NaN, become what TensorFlow makes of them.
            with np.errstate(all="ignore"):
                return self.of_arrays(inputs)
        if not ON_TENSORFLOW:
            raise UserError(
                f"{type(self).__name__} {self.name!r} was given a tensor, which it takes with "
                "the engine tensorflow alone: call it in feed_batch, on arrays of NumPy, and "
                "give its output to the model as a feature"
            )
        return super().__call__(inputs, *args, **kwargs)

    def of_arrays(self, inputs: Any) -> Any:
        """The output for arrays of NumPy, or what can be made one, and for columns of lists."""
        raise NotImplementedError


class ElementwiseLayer(PreprocessingLayer):
    """A layer whose output has the shape, and the ragged rows or sparse places, of its input."""

    def transform(self, values: Any) -> Any:
        """The output for a dense tensor of any shape."""
        raise NotImplementedError

    def transform_array(self, values: Array) -> Array:
        """The output for an array [n]."""
        raise NotImplementedError

    def result_dtype(self) -> str:
        """The output's dtype."""
        return "int64"

    def call(self, inputs: Any) -> Any:
        """Apply the layer to a tensor, a ragged or sparse one, or anything array-like."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs.with_values(self.transform(inputs.values))
        return tf.ragged.map_flat_values(self.transform, as_tensor(inputs))

    def of_arrays(self, inputs: Any) -> Arrays:
        """Apply the layer to an array of any shape, or to the elements of lists."""
        if isinstance(inputs, ListColumn):
            return dataclasses.replace(inputs, values=self.of_arrays(inputs.values))
        values = as_array(inputs)
        return self.transform_array(values.reshape(-1)).reshape(values.shape)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Shape and dtype of the output."""
        return symbolic(inputs.shape, self.result_dtype(), like=inputs)


def as_tensor(inputs: Any) -> Any:
    """`inputs` as a tensor; ragged tensors stay what they are."""
    if isinstance(inputs, tf.RaggedTensor):
        return inputs
    return tf.convert_to_tensor(inputs)


def as_array(inputs: Any) -> Array:
    """`inputs` as an array; one of strings as an array of objects."""
    values = np.asarray(inputs)
    return values.astype(object) if values.dtype.kind in "SUT" else values


def is_strings(values: Array) -> bool:
    """True for an array of strings, as `as_array` gives it."""
    return values.dtype == object


def symbolic(
    shape: Any, dtype: str, *, ragged: bool = False, like: Any = None
) -> keras.KerasTensor:
    """A symbolic tensor, marked as ragged where this Keras can. like: ragged or sparse as this."""
    kind = _keras.KerasTensor
    if getattr(like, "sparse", False):
        return kind(shape, dtype=dtype, sparse=True)
    ragged = ragged or bool(getattr(like, "ragged", False))  # not before Keras knew of it
    if ragged and hasattr(kind((), "float32"), "ragged"):
        return kind(shape, dtype=dtype, ragged=True)
    return kind(shape, dtype=dtype)


def positive_integer(name: str, value: Any) -> int:
    """`value`, or ValueError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
    return value
