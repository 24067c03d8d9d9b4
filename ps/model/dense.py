"""A server's slices of the dense variables: the trainable ones with their slots, and the others.

Owns their values and their first values. The model's version is tables.py's.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from shoal.native.dense import DenseBlock
from shoal.native.moments import Moments
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import flat_size, slice_of

Float32 = npt.NDArray[np.float32]


class DenseSlices:
    """The dense slices of server `server` of `servers`.

    servers: among which the flat vectors are divided; this one may be none of them. sizes: elements
    of the whole trainable and non-trainable vector. elements, state_elements: of the slices.
    """

    def __init__(self, spec: pb.ModelSpec, server: int, servers: int, moments: Moments) -> None:
        """moments: get the first values, and keep the non-trainable slice with the version.

        Raises ValueError, TypeError if the optimizer is not one that native/ has.
        """
        self.optimizer = OptimizerSpec.from_json(spec.dense_optimizer)
        self.sizes = flat_size(spec.trainable), flat_size(spec.non_trainable)
        self._server = server
        self._divide(servers)
        self._block: DenseBlock | None = None
        self._lock = threading.Lock()
        self._moments = moments

    def _divide(self, servers: int) -> None:
        self.servers = servers
        self.slices = self.slices_among(servers)
        self.elements, self.state_elements = (each.stop - each.start for each in self.slices)

    def slices_among(self, servers: int) -> tuple[slice, slice]:
        """The server's slices of the two vectors, if they are divided among so many servers."""
        trainable, state = self.sizes
        return slice_of(trainable, self._server, servers), slice_of(state, self._server, servers)

    @property
    def state(self) -> Float32:
        """A copy of the non-trainable slice, float32 [state_elements]; [0] before `initialize`."""
        return self._moments.state()

    @property
    def initialized(self) -> bool:
        """True if there are values."""
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
            block = DenseBlock(trainable, self.optimizer)
            self._moments.begin(block, state)
            self._block = block
            return True

    def restore(self, trainable: dict[str, Float32], state: Float32) -> None:
        """Set the first values and the optimizer's slots, as `copies` gave them."""
        self.initialize(trainable["values"], state)
        _set_slots(self.block, trainable)

    def replace(
        self, servers: int, trainable: dict[str, Float32], state: Float32, epoch: int
    ) -> None:
        """Take the slices of a division among `servers`, from the table of this epoch on.

        trainable, state: as `copies` gives them. No push may be under way.
        """
        block = DenseBlock(trainable["values"], self.optimizer)
        _set_slots(block, trainable)
        with self._lock:
            self._moments.replace(block, state, epoch)
            self._block = block
            self._divide(servers)

    def copies(self) -> tuple[dict[str, Float32], Float32]:
        """Copy "values" and each optimizer slot -> float32 [elements], and the state.

        No push may be under way. Raises WireError(DENSE_NOT_INITIALIZED).
        """
        trainable = {"values": self.block.values.copy()}
        trainable |= {name: slot.copy() for name, slot in self.block.slots.items()}
        return trainable, self.state

    def update(self, gradient: Float32, rate: float, step: int) -> None:
        """Apply a gradient of the trainable slice, float32 [elements]."""
        self.block.update(gradient, learning_rate=rate, step=step)


def _set_slots(block: DenseBlock, trainable: dict[str, Float32]) -> None:
    for name, slot in block.slots.items():
        slot[:] = trainable[name]
