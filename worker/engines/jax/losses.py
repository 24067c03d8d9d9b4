"""The user's losses on JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.worker.engines.jax.by_values import looked_at
from shoal.worker.engines.jax.pairs import pairs_all
from shoal.worker.engines.keras_ops.losses import OpsLosses


class Losses(OpsLosses):
    """The losses that a module declares."""

    squeeze = "jnp.squeeze"
    shape_errors = (ValueError, TypeError)

    def _is_of_shapes(self, error: Exception) -> bool:
        return looked_at(error, "") is None and super()._is_of_shapes(error)

    def _pairs_all(
        self, function: Callable[[Any, Any], Any], labels: Any, predictions: Any
    ) -> str | None:
        return pairs_all(function, labels, predictions)
