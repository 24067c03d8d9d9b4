"""Metrics, to which TensorFlow adds batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from shoal.worker.attribution import attributing
from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines.tensorflow.model.broadcasting import pairs_all
from shoal.worker.engines.tensorflow.model.conversion import converted
from shoal.worker.input.batch import Batch
from shoal.worker.model.evaluation import by_features
from shoal.worker.model.keras_evaluation import KerasEvaluation, is_known
from shoal.worker.model.model import ServedModel


class FunctionMetric(keras.metrics.Mean):
    """The mean over records of a function of labels and predictions, and of weights if given.

    The function gives one value a record, or one for the whole batch, which then
    weighs as many records as the batch has. Steps that Keras has masked do not count.
    """

    def __init__(self, function: Any, name: str) -> None:
        super().__init__(name=name)
        self.function = function

    def update_state(self, labels: Any, predictions: Any, *weights: Any) -> Any:
        """Add a batch."""
        values = tf.cast(self.function(labels, predictions, *weights), tf.float32)
        size = tf.shape(tf.nest.flatten(predictions)[0])[0]
        if values.shape.rank == 0:
            return super().update_state(values, sample_weight=tf.cast(size, tf.float32))
        if tf.is_tensor(predictions):
            (mask,) = masks_of(predictions)
            if mask is not None and values.shape.rank >= mask.shape.rank:
                return super().update_state(values, sample_weight=tf.cast(mask, tf.float32))
        # One value a record: further axes are averaged within the record.
        return super().update_state(tf.reduce_mean(tf.reshape(values, [size, -1]), axis=1))

    def add_to_each(self, value: Any, predictions: Any) -> None:
        """Add a number to that of each record of a batch that was added."""
        size = tf.shape(tf.nest.flatten(predictions)[0])[0]
        self.total.assign_add(value * tf.cast(size, tf.float32))


def _given(weights: Any) -> tuple[Any, ...]:
    """Weights as the last arguments of a function that may get none."""
    return () if weights is None else (weights,)


class Evaluator(KerasEvaluation):
    """The metrics of one worker."""

    function_metric = FunctionMetric

    def __init__(self, model: ServedModel, module: UserModule) -> None:
        """Raises UserError if eval_metrics_fn() gives no metrics."""
        super().__init__(model, module)
        self._update = tf.function(self._update_all, reduce_retracing=True, autograph=False)
        self._traced = False

    def _of_function(self, function: Any, name: str) -> FunctionMetric:
        return FunctionMetric(converted(function), name)

    def _pairs_all(
        self, function: Callable[[Any, Any], Any], labels: Any, predictions: Any
    ) -> str | None:
        return pairs_all(function, labels, predictions)

    def _update_all(
        self, labels: Any, predictions: Any, masks: list[Any], of_layers: Any, *weights: Any
    ) -> None:
        note_masks(predictions, masks)
        for metric in self._metrics:
            with user_code(f"metric {metric.name!r} of {self._module.path.name}"):
                if metric in self._losses:
                    metric.update_state(labels, predictions, *weights)
                elif not by_features(metric):
                    self._update_one(metric, labels, predictions)
        self._loss.add_to_each(of_layers, predictions)  # as Keras's evaluate() does

    def _update_one(self, metric: Any, labels: Any, predictions: Any) -> None:
        update = metric.update_state if is_known(metric) else converted(metric.update_state)
        update(*self._parts(metric, labels, predictions))

    def build(self, labels_spec: Any, weights_spec: Any = None) -> None:
        """Make the states by tracing the update, unless all are made."""
        if all(each.variables or by_features(each) for each in self._metrics):
            return
        predictions_spec = self._model.predictions_spec()
        with user_code(f"the metrics of {self._module.path.name}"):
            self._update.get_concrete_function(
                labels_spec,
                predictions_spec,
                masks_of(predictions_spec),
                tf.TensorSpec([]),
                *_given(weights_spec),
            )

    def add_predictions(self, batch: Batch, predictions: Any, of_layers: Any) -> None:
        """See Evaluation."""
        given = batch.labels, predictions, masks_of(predictions), of_layers, *_given(batch.weights)
        with user_code(f"the metrics of {self._module.path.name}"):
            with attributing(None):
                self._check_outputs(predictions)
                if not self._traced:
                    self._check_functions(batch.labels, predictions)
                    self._update.get_concrete_function(*given)
                    self._traced = True
            self._prove_additive(batch.labels, predictions)
            self._update(*given)
            with attributing(None):
                self._update_groups(batch, predictions)
