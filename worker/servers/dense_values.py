"""The flat dense vectors as a worker has them, of which each server owns a slice.

Owns which version of each slice they hold. Getting newer ones is pulling.py's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from shoal.proto.routing import slice_of

Float32 = npt.NDArray[np.float32]


class DenseValues:
    """trainable, state: the vectors, float32 [n], as last set or pulled; not to be written to.

    A pull that brings newer values replaces them, as the arrays of earlier ones may still
    be in use. versions: of each server's slice, -1 where it was never pulled.
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self.trainable: Float32 = np.zeros(0, np.float32)
        self.state: Float32 = np.zeros(0, np.float32)
        self.versions = [-1] * servers

    def set(self, trainable: Float32, state: Float32) -> None:
        """The values to begin with."""
        self.trainable, self.state = trainable, state

    def of(self, server: int) -> tuple[Float32, Float32]:
        """The slices of one server."""
        return self.slices(self.trainable, self.state, server)

    def slices(self, first: Float32, second: Float32, server: int) -> tuple[Float32, Float32]:
        """What of two vectors of these sizes is a server's."""
        return (
            first[slice_of(first.size, server, self._servers)],
            second[slice_of(second.size, server, self._servers)],
        )

    def take(self, newer: Mapping[int, tuple[Float32, Float32]]) -> None:
        """Take newer slices, by server."""
        if newer:
            pairs = [newer.get(server, self.of(server)) for server in range(self._servers)]
            self.trainable = np.concatenate([pair[0] for pair in pairs])
            self.state = np.concatenate([pair[1] for pair in pairs])
