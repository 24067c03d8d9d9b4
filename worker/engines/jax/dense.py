"""Dense variables as one flat float32 vector, and back.

Owns the order and the manifest of names, shapes and offsets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from shoal.worker.model.specification import manifest_of

Float32 = npt.NDArray[np.float32]


class FlatVariables:
    """A list of Keras variables, seen as one flat float32 vector."""

    def __init__(self, variables: Sequence[Any]) -> None:
        """Raises UserError if a variable is not float32."""
        self.variables = list(variables)
        self.manifest, self.size = manifest_of(self.variables)
        self.shapes = [tuple(variable.shape) for variable in self.variables]

    def read(self) -> Float32:
        """The variables' values, float32 [size]."""
        if not self.variables:
            return np.zeros(0, np.float32)
        return np.concatenate([np.asarray(each.value).reshape(-1) for each in self.variables])

    def assign(self, flat: Float32) -> None:
        """Set the variables from `flat`, float32 [size], which may change afterwards."""
        for variable, part in zip(self.variables, self.unpack(flat), strict=True):
            variable.assign(np.array(part))

    def unpack(self, flat: Any) -> list[Any]:
        """The parts of `flat`, [size], of NumPy or JAX, in the shapes of the variables."""
        parts, start = [], 0
        for shape in self.shapes:
            end = start + math.prod(shape)
            parts.append(flat[start:end].reshape(shape))
            start = end
        return parts

    def pack(self, values: Sequence[Any]) -> Any:
        """One value of JAX a variable as one vector, float32 [size]."""
        if not self.variables:
            return jnp.zeros(0, jnp.float32)
        return jnp.concatenate([each.reshape(-1) for each in values])
