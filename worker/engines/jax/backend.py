"""JAX beneath Keras, as engines/keras_backend.py wants it: names what does each part."""

from __future__ import annotations

from typing import Any

import jax

from shoal.worker.engines.host.vectors import clipped
from shoal.worker.engines.jax.dense import FlatVariables
from shoal.worker.engines.jax.ids import TracedIds
from shoal.worker.engines.jax.lookups import Recording
from shoal.worker.engines.jax.losses import Losses
from shoal.worker.engines.keras_backend import KerasBackend
from shoal.worker.engines.keras_ops.build import spec_of_input
from shoal.worker.input.spec import ArraySpec


class OnJax:
    """See the Protocol."""

    ids = TracedIds
    recording = Recording
    dense = FlatVariables
    losses = Losses
    clipped = staticmethod(clipped)
    eagerly = staticmethod(jax.ensure_compile_time_eval)

    def spec_of_input(self, tensor: Any) -> ArraySpec:
        """See the Protocol."""
        return spec_of_input(tensor, "JAX")

    def activation(self, predictions: Any) -> None:
        """None: an array of JAX does not tell what made it."""

    def seed(self, number: int) -> None:
        """Nothing to seed: JAX has no numbers that are drawn without a key."""


BACKEND: KerasBackend = OnJax()
