"""PyTorch beneath Keras, as engines/keras_backend.py wants it: names what does each part."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from shoal.worker.code.keras_internals import hide_tensorflow
from shoal.worker.engines.host.vectors import clipped
from shoal.worker.engines.keras_backend import KerasBackend
from shoal.worker.engines.keras_ops.build import spec_of_input
from shoal.worker.engines.torch.keras.ids import KerasIds
from shoal.worker.engines.torch.keras.lookups import KerasRecording
from shoal.worker.engines.torch.keras.losses import KerasTorchLosses
from shoal.worker.engines.torch.keras.variables import FlatVariables
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model.refusals import Refusals

_CHANCES = {"SigmoidBackward0": "sigmoid", "SoftmaxBackward0": "softmax"}
"""Steps of autograd -> the operations that they are of."""

_PASSED = ("View", "Unsafe", "Squeeze", "Unsqueeze", "ToCopy", "Select", "Alias", "Reshape")
"""Beginnings of the names of those that change a form only."""

hide_tensorflow()


class OnPyTorch:
    """See the Protocol."""

    ids = KerasIds
    dense = FlatVariables
    losses = KerasTorchLosses
    clipped = staticmethod(clipped)
    eagerly = staticmethod(contextlib.nullcontext)
    seed = staticmethod(torch.manual_seed)

    def recording(self, refusals: Refusals) -> KerasRecording:
        """See the Protocol."""
        return KerasRecording(refusals, {})

    def spec_of_input(self, tensor: Any) -> ArraySpec:
        """See the Protocol."""
        return spec_of_input(tensor, "PyTorch")

    def activation(self, predictions: Any) -> tuple[str, str] | None:
        """See the Protocol. Autograd knows no layers: the scope is empty."""
        step = getattr(predictions, "grad_fn", None)
        while step is not None and step.name().startswith(_PASSED):
            step = step.next_functions[0][0]
        name = None if step is None else _CHANCES.get(step.name())
        return None if name is None else (name, "")


BACKEND: KerasBackend = OnPyTorch()
