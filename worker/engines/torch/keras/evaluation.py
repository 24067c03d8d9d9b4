"""Metrics of Keras, to which PyTorch adds batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.base.nested import mapped
from shoal.worker.engines.keras_ops.evaluation import OpsEvaluator
from shoal.worker.engines.torch.ids import sample_of
from shoal.worker.engines.torch.keras.pairs import pairs_all


class KerasEvaluator(OpsEvaluator):
    """The metrics of one worker."""

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        without: Callable[..., Any] = torch.no_grad()(function)
        return without

    def _sample(self, nested_spec: Any) -> Any:
        return mapped(lambda spec: None if spec is None else sample_of(spec, 2), nested_spec)

    def _pairs_all(
        self, function: Callable[[Any, Any], Any], labels: Any, predictions: Any
    ) -> str | None:
        return pairs_all(function, labels, predictions)
