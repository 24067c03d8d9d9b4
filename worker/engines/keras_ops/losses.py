"""The user's losses, computed by keras.ops as Keras's compile() has them computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keras import backend, ops

from shoal.worker.model.learning.keras_losses import KerasLosses


class OpsLosses(KerasLosses):
    """The losses that a module declares, of the arrays of Keras's backend."""

    def _float32(self, values: Any) -> Any:
        return ops.cast(values, "float32")

    def _in_float32(self, array: Any) -> Any:
        """See there. Whole numbers stay: float32 has not all ids."""
        if array is None or not backend.is_float_dtype(backend.standardize_dtype(array.dtype)):
            return array
        return ops.cast(array, "float32")

    def _of_steps(self, mask: Any) -> Any:
        total = ops.sum(mask)
        size = math.prod(mask.shape)
        return ops.where(total > 0, mask * (size / ops.maximum(total, 1.0)), 0.0)

    def _mean(self, loss: Any) -> Any:
        return ops.mean(ops.cast(loss, "float32"))

    def _added(self, losses: Sequence[Any]) -> Any:
        return ops.sum(ops.stack(list(losses)))

    def weights_of_classes(self, labels: Any, table: Sequence[float]) -> Any:
        """See there."""
        labels = ops.convert_to_tensor(labels)
        if len(labels.shape) > 1:
            labels = ops.argmax(labels, axis=-1) if labels.shape[-1] > 1 else labels[..., 0]
        classes = ops.cast(labels, "int32")
        other = len(table) - 1
        known = ops.logical_and(classes >= 0, classes < other)
        return ops.take(
            ops.convert_to_tensor(list(table), "float32"), ops.where(known, classes, other)
        )
