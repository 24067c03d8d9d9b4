"""Metrics, to which keras.ops adds batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
from keras import ops

from shoal.base.nested import leaves
from shoal.worker.attribution import attributing
from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines.keras_ops.build import as_raised
from shoal.worker.input.batch import Batch
from shoal.worker.model.evaluation import by_features
from shoal.worker.model.keras_evaluation import KerasEvaluation
from shoal.worker.model.model import ServedModel


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


class OpsEvaluator(KerasEvaluation):
    """The metrics of one worker.

    told: raises errors of the framework in a file's code in words of ours.
    """

    function_metric = FunctionMetric
    told: Callable[[str], AbstractContextManager[Any]] = staticmethod(as_raised)

    def __init__(self, model: ServedModel, module: UserModule) -> None:
        """Raises UserError if eval_metrics_fn() gives no metrics."""
        super().__init__(model, module)
        self._computed = [each for each in self._metrics if not by_features(each)]
        self._update = self._compiled(self._updated)
        self._checked_functions = False

    @abstractmethod
    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of arrays as it is called for each batch."""

    @abstractmethod
    def _sample(self, nested_spec: Any) -> Any:
        """Two records of zeros of nested specs, as metrics get them."""

    def _taken(self, nested: Any) -> Any:
        """Labels or weights of a batch as metrics get them."""
        return nested

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
            file = self._module.path.name
            with user_code(f"metric {metric.name!r} of {file}"), self.told(file):
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

    def _update_one(self, metric: Any, labels: Any, predictions: Any) -> None:
        metric.update_state(*self._parts(metric, labels, predictions))

    def build(self, labels_spec: Any, weights_spec: Any = None) -> None:
        """Make the states of metrics that wait for a batch, by one of zeros."""
        if all(each.variables for each in self._computed):
            return
        labels, predictions = (
            self._sample(spec) for spec in (labels_spec, self._model.predictions_spec())
        )
        del weights_spec  # of the losses, whose states are there
        self._make_states(labels, predictions)

    def _make_states(self, labels: Any, predictions: Any) -> None:
        for metric in self._computed:
            if metric.variables:
                continue
            file = self._module.path.name
            with user_code(f"metric {metric.name!r} of {file}"), self.told(file):
                self._update_one(metric, labels, predictions)
            metric.reset_state()

    def add_predictions(self, batch: Batch, predictions: Any, of_layers: Any) -> None:
        """See Evaluation."""
        labels = self._taken(batch.labels)
        weights = () if batch.weights is None else (self._taken(batch.weights),)
        file = self._module.path.name
        with user_code(f"the metrics of {file}"), self.told(file):
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
