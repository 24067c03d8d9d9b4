"""The user's losses on PyTorch, as Keras's compile() has them computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.worker.engines.keras_ops.losses import OpsLosses
from shoal.worker.engines.torch.keras.pairs import pairs_all


class KerasTorchLosses(OpsLosses):
    """The losses that a module declares."""

    squeeze = "torch.squeeze"
    shape_errors = (ValueError, TypeError, RuntimeError)

    def _pairs_all(
        self, function: Callable[[Any, Any], Any], labels: Any, predictions: Any
    ) -> str | None:
        return pairs_all(function, labels, predictions)
