"""A server's slices of the dense variables: the trainable ones with their slots, and the others.

Owns their values and their first values. The model's version is tables.py's.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from shoal.native.answering import Moments
from shoal.native.dense import DenseBlock
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.routing import flat_size, slice_of

Float32 = npt.NDArray[np.float32]


class DenseSlices:
    """The dense slices of server `server` of `servers`.

    elements, state_elements: of the trainable and of the non-trainable slice. state: the latter,
    float32 [state_elements], which the model changes together with its version; empty before
    `initialize`. moments: is told of the first values.
    """

    def __init__(self, spec: pb.ModelSpec, server: int, servers: int) -> None:
        """Raises ValueError, TypeError if the optimizer is not one that native/ has."""
        self.optimizer = OptimizerSpec.from_json(spec.dense_optimizer)
        size = slice_of(flat_size(spec.trainable), server, servers)
        state_size = slice_of(flat_size(spec.non_trainable), server, servers)
        self.elements: int = size.stop - size.start
        self.state_elements: int = state_size.stop - state_size.start
        self.state: Float32 = np.zeros(0, np.float32)
        self._block: DenseBlock | None = None
        self._lock = threading.Lock()
        self.moments = Moments()

    @property
    def initialized(self) -> bool:
        """Whether there are values."""
        return self._block is not None

    @property
    def block(self) -> DenseBlock:
        """The trainable slice. Raises WireError(DENSE_NOT_INITIALIZED) before `initialize`."""
        if self._block is None:
            raise WireError(pb.DENSE_NOT_INITIALIZED, "no dense values yet")
        return self._block

    def check(self, trainable: Float32, state: Float32) -> None:
        """Raises WireError(BAD_REQUEST) unless these are the slices of this server, float32."""
        shapes = trainable.shape, state.shape
        if shapes != ((self.elements,), (self.state_elements,)):
            raise WireError(
                pb.BAD_REQUEST,
                f"this server's slices have {self.elements} and {self.state_elements} "
                f"elements, not {trainable.shape} and {state.shape}",
            )
        if trainable.dtype != np.float32 or state.dtype != np.float32:
            raise WireError(
                pb.BAD_REQUEST, f"dense slices are float32, not {trainable.dtype}, {state.dtype}"
            )

    def initialize(self, trainable: Float32, state: Float32) -> bool:
        """Set the first values; False if there are some already.

        Raises WireError as `check`.
        """
        self.check(trainable, state)
        with self._lock:
            if self._block is not None:
                return False
            self.state = np.array(state, np.float32)
            self._block = DenseBlock(trainable, self.optimizer)
            self.moments.begin(self._block.values, self.state)
            return True

    def restore(self, trainable: dict[str, Float32], state: Float32) -> None:
        """Set the first values and the optimizer's slots, as `copies` gave them."""
        self.initialize(trainable["values"], state)
        for name, slot in self.block.slots.items():
            slot[:] = trainable[name]

    def copies(self) -> tuple[dict[str, Float32], Float32]:
        """Copy "values" and each optimizer slot -> float32 [elements], and the state.

        Raises WireError(DENSE_NOT_INITIALIZED).
        """
        with self._lock:
            trainable = {"values": self.block.values.copy()}
            trainable |= {name: slot.copy() for name, slot in self.block.slots.items()}
            return trainable, self.state.copy()

    def update(self, gradient: Float32, rate: float, step: int) -> None:
        """Apply a gradient of the trainable slice, float32 [elements]."""
        with self._lock:
            assert self._block is not None  # the push was checked
            self._block.update(gradient, learning_rate=rate, step=step)
