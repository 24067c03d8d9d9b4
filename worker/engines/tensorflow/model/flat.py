"""Dense variables as one flat float32 vector, and back.

Owns the order and the manifest of names, shapes and offsets. How the vector is cut
over servers is proto/routing.slice_of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.worker.model.specification import manifest_of


class FlatVariables:
    """A list of Keras variables, seen as one flat float32 vector."""

    def __init__(self, variables: Sequence[Any]) -> None:
        """Raises UserError if a variable is not float32."""
        self.variables = list(variables)
        self.manifest, self.size = manifest_of(self.variables)
        self._sizes = [math.prod(variable.shape) for variable in self.variables]

    def read(self) -> tf.Tensor:
        """The variables' values, float32 [size]."""
        return self.pack([variable.value for variable in self.variables])

    def assign(self, flat: tf.Tensor) -> None:
        """Set the variables from `flat`, float32 [size]."""
        for variable, part in zip(self.variables, self.unpack(flat), strict=True):
            variable.assign(part)

    def unpack(self, flat: tf.Tensor) -> list[tf.Tensor]:
        """The parts of `flat`, float32 [size], in the shapes of the variables."""
        if not self.variables:
            return []
        parts = tf.split(flat, self._sizes)
        return [
            tf.reshape(part, variable.shape)
            for variable, part in zip(self.variables, parts, strict=True)
        ]

    def pack(self, values: Sequence[tf.Tensor | None]) -> tf.Tensor:
        """One value a variable, or None for zeros, as one vector, float32 [size]."""
        if not self.variables:
            return tf.zeros([0], tf.float32)
        return tf.concat(
            [
                tf.zeros([size], tf.float32) if value is None else tf.reshape(value, [-1])
                for value, size in zip(values, self._sizes, strict=True)
            ],
            axis=0,
        )
