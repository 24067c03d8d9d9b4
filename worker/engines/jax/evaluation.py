"""Metrics, to which JAX adds batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from shoal.worker.engines.jax.arrays import in_step, sample
from shoal.worker.engines.jax.by_values import values_told
from shoal.worker.engines.jax.pairs import pairs_all
from shoal.worker.engines.keras_ops.evaluation import OpsEvaluator


class Evaluator(OpsEvaluator):
    """The metrics of one worker; what adds a batch is compiled for each size."""

    told = staticmethod(values_told)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = jax.jit(function)
        return compiled

    def _sample(self, nested_spec: Any) -> Any:
        return in_step(sample(nested_spec, 2))

    def _taken(self, nested: Any) -> Any:
        return in_step(nested)

    def _pairs_all(
        self, function: Callable[[Any, Any], Any], labels: Any, predictions: Any
    ) -> str | None:
        return pairs_all(function, labels, predictions)
