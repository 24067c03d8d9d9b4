"""Layers that put numbers into bins, or on another scale.

Bins are computed in float64, whatever the input's type, so that a float32 batch and
the same numbers in float64 fall into the same bins as far as they are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.preprocessing.base import Array, ElementwiseLayer, positive_integer, serializable, tf


@serializable
class Discretization(ElementwiseLayer):
    """Numbers to the index of their bin.

    bin_boundaries: finite and ascending. Bin 0 lies below the first, bin i from boundary
        i - 1 (included) to boundary i (excluded), the last bin above all; as
        numpy.digitize has it. The bin between two equal boundaries stays empty. NaN is in
        the last bin.

    Input: numbers of any shape, dense, ragged or sparse. Output: int64 in
    [0, len(bin_boundaries)].
    """

    def __init__(self, bin_boundaries: Sequence[float], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bin_boundaries = tuple(float(boundary) for boundary in bin_boundaries)
        if not self.bin_boundaries:
            raise ValueError("bin_boundaries must not be empty")
        for position, boundary in enumerate(self.bin_boundaries):
            if not math.isfinite(boundary):
                raise ValueError(f"bin_boundaries[{position}] is {boundary}, not finite")
            if position and boundary < self.bin_boundaries[position - 1]:
                raise ValueError(f"bin_boundaries[{position}] is {boundary}, below the one before")

    def transform(self, values: Any) -> Any:
        """The bin of each number."""
        numbers = tf.cast(values, tf.float64)
        flat = tf.reshape(numbers, [-1])
        boundaries = tf.constant(self.bin_boundaries, tf.float64)
        bins = tf.searchsorted(boundaries, flat, side="right", out_type=tf.int64)
        last = tf.constant(len(self.bin_boundaries), tf.int64)
        return tf.reshape(tf.where(tf.math.is_nan(flat), last, bins), tf.shape(numbers))

    def transform_array(self, values: Array) -> Array:
        """The bin of each number; NaN stands behind all numbers here too."""
        return np.searchsorted(self.bin_boundaries, values.astype(np.float64), side="right")

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "bin_boundaries": list(self.bin_boundaries)}


@serializable
class LogRound(ElementwiseLayer):
    """Numbers to the nearest integer to their logarithm: for counts of any size.

    num_bins: the output is in [0, num_bins): larger logarithms give the last bin.
    base: of the logarithm, above 1.

    Numbers up to 1, negative ones and NaN are in bin 0. Halves go to the even neighbour.
    Input: numbers of any shape, dense, ragged or sparse. Output: int64.
    """

    def __init__(self, num_bins: int, base: float = math.e, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_bins = positive_integer("num_bins", num_bins)
        self.base = float(base)
        if not 1 < self.base < math.inf:
            raise ValueError(f"base must be above 1 and finite, not {base!r}")

    def transform(self, values: Any) -> Any:
        """The bin of each number."""
        numbers = tf.cast(values, tf.float64)
        # Written so that NaN, which compares with nothing, becomes 1 too.
        counted = tf.where(numbers > 1, numbers, tf.ones_like(numbers))
        bins = tf.round(tf.math.log(counted) / math.log(self.base))
        return tf.cast(tf.minimum(bins, float(self.num_bins - 1)), tf.int64)

    def transform_array(self, values: Array) -> Array:
        """The bin of each number."""
        numbers = values.astype(np.float64)
        bins = np.round(np.log(np.where(numbers > 1, numbers, 1.0)) / math.log(self.base))
        return np.minimum(bins, float(self.num_bins - 1)).astype(np.int64)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "num_bins": self.num_bins, "base": self.base}


@serializable
class RoundIdentity(ElementwiseLayer):
    """Numbers to the nearest integer, which is the id.

    num_bins: ids are in [0, num_bins).
    default_value: the id of numbers that round to anything else, and of NaN.

    Halves go to the even neighbour. Input: numbers of any shape, dense, ragged or sparse.
    Output: int64.
    """

    def __init__(self, num_bins: int, default_value: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_bins = positive_integer("num_bins", num_bins)
        self.default_value = int(default_value)
        if not 0 <= self.default_value < self.num_bins:
            raise ValueError(
                f"default_value must be in [0, num_bins), not {default_value!r}: "
                f"num_bins is {num_bins}"
            )

    def transform(self, values: Any) -> Any:
        """The id of each number."""
        rounded = tf.round(tf.cast(values, tf.float64))
        valid = (rounded >= 0) & (rounded < self.num_bins)
        default = tf.fill(tf.shape(rounded), tf.constant(self.default_value, tf.float64))
        return tf.cast(tf.where(valid, rounded, default), tf.int64)

    def transform_array(self, values: Array) -> Array:
        """The id of each number."""
        rounded = np.round(values.astype(np.float64))
        valid = (rounded >= 0) & (rounded < self.num_bins)
        return np.where(valid, rounded, self.default_value).astype(np.int64)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "default_value": self.default_value,
        }


@serializable
class Normalizer(ElementwiseLayer):
    """(number - subtractor) / divisor, with constants that you give.

    With the smallest number and the range, the output is in [0, 1]; with mean and
    standard deviation, it is standardised.

    Input: numbers of any shape, dense, ragged or sparse. Output: the layer's dtype, float32
    unless the policy says otherwise; computed in float64.
    """

    def __init__(self, subtractor: float, divisor: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.subtractor = float(subtractor)
        self.divisor = float(divisor)
        if not math.isfinite(self.subtractor):
            raise ValueError(f"subtractor must be finite, not {subtractor!r}")
        if self.divisor == 0 or not math.isfinite(self.divisor):
            raise ValueError(f"divisor must be finite and not 0, not {divisor!r}")

    def result_dtype(self) -> str:
        """The layer's compute dtype."""
        return str(self.compute_dtype)

    def transform(self, values: Any) -> Any:
        """The number on the new scale."""
        scaled = (tf.cast(values, tf.float64) - self.subtractor) / self.divisor
        return tf.cast(scaled, self.result_dtype())

    def transform_array(self, values: Array) -> Array:
        """The number on the new scale."""
        scaled = (values.astype(np.float64) - self.subtractor) / self.divisor
        return scaled.astype(self.result_dtype())

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "subtractor": self.subtractor,
            "divisor": self.divisor,
        }
