"""Evaluation of Keras's models: what all engines do alike for their metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import keras

from shoal.base.nested import leaves, mapped
from shoal.errors import UserError
from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.code.module import UserModule
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.engines.engine import StepInputs
from shoal.worker.input.batch import Batch
from shoal.worker.model.evaluation import LOSS, Evaluation
from shoal.worker.model.learning.keras_losses import of_one_rank
from shoal.worker.model.model import ServedModel


def is_known(metric: Any) -> bool:
    """True if the states of a metric are known to add up over batches."""
    # Ours have additive states too, but may look at a batch as a whole.
    return is_keras_own(metric) or type(metric).__module__.startswith("shoal.")


class KerasEvaluation(Evaluation):
    """The metrics of one worker.

    function_metric: the class of keras.metrics.Metric, made of a function and its name, that is the
    mean over records of a function of labels and predictions, and of weights if given.
    """

    kinds = "a keras.metrics.Metric or a function of labels and predictions"
    function_metric: Callable[[Any, str], Any]

    def __init__(self, model: ServedModel, module: UserModule) -> None:
        """Raises UserError if eval_metrics_fn() gives no metrics."""
        self._model = model
        of = self.function_metric
        self._loss = of(model.loss, LOSS)
        # The weights of records are about the loss only, as in Keras.
        self._losses: list[Any] = [self._loss]
        self._losses += [of(each, name) for name, each in model.loss.named().items()]
        super().__init__(module, self._losses)
        # Keras's own have additive states. Of the user's it is seen at the first batch.
        self._unproven = [each for each in self._metrics if not is_known(each)]

    def add(self, batch: Batch, inputs: StepInputs | None = None) -> None:
        """Evaluate a batch."""
        self.add_predictions(batch, *self._model.evaluate_batch(batch.features, inputs))

    @abstractmethod
    def _pairs_all(
        self, function: Callable[[Any, Any], Any], labels: Any, predictions: Any
    ) -> str | None:
        """Advice about a function that pairs each label with each prediction; None for others."""

    def _is_metric(self, metric: Any) -> bool:
        return isinstance(metric, keras.metrics.Metric)

    def _of_function(self, function: Any, name: str) -> Any:
        return self.function_metric(function, name)

    def _parts(self, metric: Any, labels: Any, predictions: Any) -> tuple[Any, Any]:
        labels, predictions = super()._parts(metric, labels, predictions)
        if is_keras_own(metric) and any(each is not None for each in masks_of(predictions)):
            # A metric that takes an axis off the predictions has values that fit no mask.
            return of_one_rank(labels, predictions)
        return labels, predictions

    def _check_functions(self, labels: Any, predictions: Any) -> None:
        """Raises UserError for a function that pairs each label with each prediction."""
        for metric in self._metrics:
            function = getattr(metric, "function", None)
            if function is None or is_keras_own(metric) or metric in self._losses:
                continue
            if fault := self._pairs_all(function, *self._parts(metric, labels, predictions)):
                raise UserError(f"{self._what}: metric {metric.name!r} {fault}")

    def _prove_additive(self, labels: Any, predictions: Any) -> None:
        """Raises UserError for a metric whose states cannot be added up.

        Its state after two halves of a batch must be the sum of its states after each.
        """
        size = int(leaves(predictions)[0].shape[0])
        if size < 2 or not self._unproven:
            return
        parts = slice(0, size // 2), slice(size // 2, size)
        halves = [
            mapped(lambda each, part=part: each[part], (labels, predictions)) for part in parts
        ]
        masks = masks_of(predictions)
        for (_, half), part in zip(halves, parts, strict=True):
            note_masks(half, [None if each is None else each[part] for each in masks])
        for metric in self._unproven:
            self._check_adds_up(metric, halves)
        self._unproven = []
