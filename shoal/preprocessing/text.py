"""Layers that read strings: as a number, or as a list with a separator."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.data.columns import ListColumn
from shoal.preprocessing.base import (
    Array,
    Arrays,
    ElementwiseLayer,
    PreprocessingLayer,
    as_array,
    as_tensor,
    is_strings,
    serializable,
    symbolic,
    tf,
)
from shoal.preprocessing.lists import elements_where, kept, split

if TYPE_CHECKING:
    import keras

_NUMBERS = ("float32", "float64", "int32", "int64")

_WHOLE = re.compile(rb"[-+]?\d+")
_FRACTION = re.compile(rb"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf|infinity|nan)", re.IGNORECASE)
"""The numbers that TensorFlow reads; Python reads more, such as 1_000."""


@serializable
class ToNumber(ElementwiseLayer):
    """Strings to the numbers they spell.

    output_dtype: float32, float64, int32 or int64.
    default_value: the number of an empty or blank string.

    Any other string that is not a number of that dtype raises InvalidArgumentError, of an
    array ValueError, which shows it. Input: strings of any shape, dense, ragged or sparse;
    numbers are cast. Output: output_dtype.
    """

    def __init__(
        self, output_dtype: str = "float32", default_value: float = 0, **kwargs: Any
    ) -> None:
        if output_dtype not in _NUMBERS:
            raise ValueError(
                f"output_dtype must be one of {', '.join(_NUMBERS)}, not {output_dtype!r}"
            )
        whole = output_dtype.startswith("int")
        limits = np.iinfo(output_dtype) if whole else None
        if limits and not (
            limits.min <= default_value <= limits.max and default_value == int(default_value)
        ):
            raise ValueError(f"default_value {default_value!r} is not of type {output_dtype}")
        super().__init__(**kwargs)
        self.output_dtype = output_dtype
        self.default_value = default_value

    def result_dtype(self) -> str:
        """The dtype asked for."""
        return self.output_dtype

    def transform(self, values: Any) -> Any:
        """The number of each string."""
        dtype = tf.as_dtype(self.output_dtype)
        if values.dtype != tf.string:
            return tf.cast(values, dtype)
        text = tf.strings.strip(values)
        blank = tf.equal(text, "")
        if dtype.is_floating:  # where TensorFlow takes 0x1F for 31
            hexadecimal = tf.strings.regex_full_match(text, r"[-+]?0[xX].*")
            text = tf.where(hexadecimal, tf.strings.join([text, " (hexadecimal)"]), text)
        numbers = tf.strings.to_number(tf.where(blank, "0", text), dtype)
        # Not by a cast, which would be of a float32.
        default = int(self.default_value) if dtype.is_integer else self.default_value
        return tf.where(blank, tf.constant(default, dtype), numbers)

    def transform_array(self, values: Array) -> Array:
        """The number of each string."""
        if not is_strings(values):
            return values.astype(self.output_dtype)
        whole = self.output_dtype.startswith("int")
        info = np.iinfo(self.output_dtype) if whole else None
        least, most = (info.min, info.max) if info else (-math.inf, math.inf)
        form, number_of = (_WHOLE, int) if whole else (_FRACTION, float)
        numbers: list[float] = []
        for text in values.tolist():
            stripped = (text.encode() if isinstance(text, str) else text).strip()
            number = number_of(stripped) if form.fullmatch(stripped) else None
            if not stripped:
                number = self.default_value
            if number is None or (whole and not least <= number <= most):
                raise ValueError(f"{self.name}: {text!r} is no number of type {self.output_dtype}")
            numbers.append(number)
        return np.array(numbers, self.output_dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "output_dtype": self.output_dtype,
            "default_value": self.default_value,
        }


class ListLayer(PreprocessingLayer):
    """A layer that makes lists: of strings by a separator, of padded ones by dropping padding.

    separator: splits each string, which adds an axis; empty elements are dropped. None:
        the input has the elements on its last axis.
    padding: elements equal to it are dropped, wherever they stand.
    """

    def __init__(
        self,
        separator: str | None = None,
        padding: str | float | None = None,
        **kwargs: Any,
    ) -> None:
        if separator == "":
            raise ValueError("separator must not be empty; None means that nothing is split")
        super().__init__(**kwargs)
        self.separator = separator
        self.padding = padding

    def lists(self, values: Any) -> Any:
        """The lists that a dense or ragged tensor holds or spells: ragged, or a vector for one."""
        if self.separator is not None:
            if values.dtype != tf.string:
                raise ValueError(f"{self.name}: strings can be split, not {values.dtype.name}")
            values = tf.strings.split(values, self.separator)
            values = elements_where(lambda element: tf.not_equal(element, ""), values)
        elif values.shape.rank == 0:
            raise ValueError(f"{self.name}: without a separator the input needs an axis")
        return values if self.padding is None else elements_where(self.no_padding, values)

    def lists_of_arrays(self, values: Arrays) -> Arrays:
        """`lists` of an array, or of the lists of a column."""
        if self.separator is not None:
            strings = _elements(values)
            if not is_strings(strings):
                raise ValueError(f"{self.name}: strings can be split, not {strings.dtype.name}")
            values = split(values, self.separator)
        elif isinstance(values, np.ndarray) and values.ndim == 0:
            raise ValueError(f"{self.name}: without a separator the input needs an axis")
        return values if self.padding is None else kept(self._not_padding, values)

    def _not_padding(self, values: Array) -> Array:
        strings = is_strings(values)
        if isinstance(self.padding, str) != strings:
            kind = "string" if strings else values.dtype.name
            raise ValueError(f"{self.name}: padding={self.padding!r} is none of type {kind}")
        if isinstance(self.padding, str):
            either = (self.padding, self.padding.encode())
            keep = [each not in either for each in values.ravel()]
            return np.array(keep, bool).reshape(values.shape)
        if self.padding != self.padding:
            return ~np.isnan(values)
        return np.asarray(values != self.padding)

    def no_padding(self, values: Any) -> Any:
        """Which elements of a dense tensor are none of the padding."""
        if self.padding != self.padding:  # NaN, which equals nothing
            return ~tf.math.is_nan(values)
        return tf.not_equal(values, tf.constant(self.padding, values.dtype))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "separator": self.separator, "padding": self.padding}


def _elements(values: Arrays) -> Array:
    return _elements(values.values) if isinstance(values, ListColumn) else values


@serializable
class ToRagged(ListLayer):
    """Lists without their padding, or the lists that strings spell; see ListLayer.

    padding: needed if there is no separator.

    Input: with a separator, strings of any shape; without, a tensor of any type with one
    axis or more. Output: a ragged tensor; for a single record in `feed` (one string, or
    one axis) a vector. Of arrays, a column of lists, which has `padded(n)` and `offsets`. The
    elements keep their type: ToNumber makes numbers of strings.
    """

    def __init__(
        self,
        separator: str | None = None,
        padding: str | float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(separator, padding, **kwargs)
        if separator is None and padding is None:
            raise ValueError("give a separator, to split strings, or padding, to drop it")

    def call(self, inputs: Any) -> Any:
        """Split, then drop."""
        return self.lists(as_tensor(inputs))

    def of_arrays(self, inputs: Any) -> Arrays:
        """Split, then drop: a ListColumn, or a vector for one list."""
        return self.lists_of_arrays(inputs if isinstance(inputs, ListColumn) else as_array(inputs))

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Shape and dtype of the lists."""
        split = self.separator is not None
        shape = (*inputs.shape, None) if split else (*inputs.shape[:-1], None)
        return symbolic(shape, inputs.dtype, ragged=True)
