"""Metrics, to which JAX adds batches."""

from __future__ import annotations

from typing import Any

import jax
import keras
from keras import ops

from shoal.base.nested import leaves, mapped
from shoal.errors import UserError
from shoal.worker.attribution import attributing
from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.engines.engine import StepInputs
from shoal.worker.engines.jax.arrays import in_step, sample
from shoal.worker.engines.jax.losses import of_one_rank
from shoal.worker.engines.jax.pairs import pairs_all
from shoal.worker.input.batch import Batch
from shoal.worker.model.evaluation import LOSS, Evaluation, by_features
from shoal.worker.model.model import ServedModel


def is_known(metric: Any) -> bool:
    """True if the states of a metric are known to add up over batches."""
    # Ours have additive states too, but may look at a batch as a whole.
    return is_keras_own(metric) or type(metric).__module__.startswith("shoal.")


class FunctionMetric(keras.metrics.Mean):
    """The mean over records of a function of labels and predictions, and of weights if given.

    The function gives one value a record, or one for the whole batch, which then
    weighs as many records as the batch has. Steps that Keras has masked do not count.
    """

    def __init__(self, function: Any, name: str) -> None:
        super().__init__(name=name)
        self.function = function

    def update_state(self, labels: Any, predictions: Any, *weights: Any, added: Any = None) -> Any:
        """Add a batch. added: a number to add to that of each of its records; None for none."""
        values = ops.cast(self.function(labels, predictions, *weights), "float32")
        size = leaves(predictions)[0].shape[0]
        mask = masks_of(predictions)[0] if hasattr(predictions, "shape") else None
        if not values.ndim:
            super().update_state(values, sample_weight=float(size))
        elif mask is not None and values.ndim >= mask.ndim:
            super().update_state(values, sample_weight=ops.cast(mask, "float32"))
        else:
            # One value a record: further axes are averaged within the record.
            super().update_state(ops.mean(ops.reshape(values, (size, -1)), axis=1))
        if added is not None:
            self.total.assign(self.total + added * size)


class Evaluator(Evaluation):
    """The metrics of one worker."""

    kinds = "a keras.metrics.Metric or a function of labels and predictions"

    def __init__(self, model: ServedModel, module: UserModule) -> None:
        """Raises UserError if eval_metrics_fn() gives no metrics."""
        self._model = model
        self._loss = FunctionMetric(model.loss, LOSS)
        # The weights of records are about the loss only, as in Keras.
        self._losses: list[Any] = [self._loss]
        self._losses += [FunctionMetric(each, name) for name, each in model.loss.named().items()]
        super().__init__(module, self._losses)
        self._computed = [each for each in self._metrics if not by_features(each)]
        self._update: Any = jax.jit(self._updated)
        self._checked_functions = False
        # Keras's own have additive states. Of the user's it is seen at the first batch.
        self._unproven = [each for each in self._metrics if not is_known(each)]

    def _is_metric(self, metric: Any) -> bool:
        return isinstance(metric, keras.metrics.Metric)

    def _of_function(self, function: Any, name: str) -> FunctionMetric:
        return FunctionMetric(function, name)

    def _updated(
        self,
        states: Any,
        labels: Any,
        predictions: Any,
        masks: list[Any],
        of_layers: Any,
        *more: Any,
    ) -> list[Any]:
        """The states of all metrics that are computed, with a batch added. more: weights."""
        note_masks(predictions, masks)
        found = []
        for metric, state in zip(self._computed, states, strict=True):
            arguments, named = self._arguments(metric, labels, predictions, of_layers, more)
            with user_code(f"metric {metric.name!r} of {self._module.path.name}"):
                found.append(metric.stateless_update_state(state, *arguments, **named))
        return found

    def _arguments(
        self, metric: Any, labels: Any, predictions: Any, of_layers: Any, weights: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if metric in self._losses:
            # As Keras's evaluate() does, the losses of layers count in that of the model.
            named = {"added": of_layers} if metric is self._loss else {}
            return (labels, predictions, *weights), named
        return self._parts(metric, labels, predictions), {}

    def _parts(self, metric: Any, labels: Any, predictions: Any) -> tuple[Any, Any]:
        labels, predictions = super()._parts(metric, labels, predictions)
        if is_keras_own(metric) and any(each is not None for each in masks_of(predictions)):
            # A metric that takes an axis off the predictions has values that fit no mask.
            return of_one_rank(labels, predictions)
        return labels, predictions

    def _check_functions(self, labels: Any, predictions: Any) -> None:
        """Raises UserError for a function that pairs each label with each prediction."""
        for metric in self._metrics:
            if not isinstance(metric, FunctionMetric) or metric in self._losses:
                continue
            if fault := pairs_all(metric.function, *self._parts(metric, labels, predictions)):
                raise UserError(f"{self._what}: metric {metric.name!r} {fault}")

    def _update_one(self, metric: Any, labels: Any, predictions: Any) -> None:
        metric.update_state(*self._parts(metric, labels, predictions))

    def _prove_additive(self, labels: Any, predictions: Any) -> None:
        """Raises UserError for a metric whose states cannot be added up.

        Its state after two halves of a batch must be the sum of its states after each.
        """
        size = len(leaves(predictions)[0])
        if size < 2 or not self._unproven:
            return
        parts = slice(0, size // 2), slice(size // 2, size)
        halves = [
            tuple(
                mapped(lambda each, part=part: each[part], nest) for nest in (labels, predictions)
            )
            for part in parts
        ]
        masks = masks_of(predictions)
        for (_, half), part in zip(halves, parts, strict=True):
            note_masks(half, [None if each is None else each[part] for each in masks])
        for metric in self._unproven:
            self._check_adds_up(metric, halves)
        self._unproven = []

    def build(self, labels_spec: Any, weights_spec: Any = None) -> None:
        """Make the states of metrics that wait for a batch, by one of zeros."""
        if all(each.variables for each in self._computed):
            return
        labels, predictions = (
            in_step(sample(spec, 2)) for spec in (labels_spec, self._model.predictions_spec())
        )
        del weights_spec  # of the losses, whose states are there
        self._make_states(labels, predictions)

    def _make_states(self, labels: Any, predictions: Any) -> None:
        for metric in self._computed:
            if metric.variables:
                continue
            with user_code(f"metric {metric.name!r} of {self._module.path.name}"):
                self._update_one(metric, labels, predictions)
            metric.reset_state()

    def add(self, batch: Batch, inputs: StepInputs | None = None) -> None:
        """Evaluate a batch, and at the first one see if the metrics can be used."""
        predictions, of_layers = self._model.evaluate_batch(batch.features, inputs)
        labels = in_step(batch.labels)
        weights = () if batch.weights is None else (in_step(batch.weights),)
        with user_code(f"the metrics of {self._module.path.name}"):
            with attributing(None):
                self._check_outputs(predictions)
                if not self._checked_functions:
                    self._check_functions(labels, predictions)
                    self._make_states(labels, predictions)
                    self._checked_functions = True
            self._prove_additive(labels, predictions)
            states = [[each.value for each in metric.variables] for metric in self._computed]
            found = self._update(
                states, labels, predictions, masks_of(predictions), of_layers, *weights
            )
            for metric, values in zip(self._computed, found, strict=True):
                for variable, value in zip(metric.variables, values, strict=True):
                    variable.assign(value)
            with attributing(None):
                self._update_groups(batch, predictions)
