"""Metrics, to which TensorFlow adds batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from shoal.errors import UserError
from shoal.worker.attribution import attributing
from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.engines.engine import StepInputs
from shoal.worker.engines.tensorflow.model.broadcasting import pairs_all
from shoal.worker.engines.tensorflow.model.conversion import converted
from shoal.worker.engines.tensorflow.model.losses import of_one_rank
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
        self._update = tf.function(self._update_all, reduce_retracing=True, autograph=False)
        self._traced = False
        # Keras's own have additive states. Of the user's it is seen at the first batch.
        self._unproven = [each for each in self._metrics if not is_known(each)]

    def _is_metric(self, metric: Any) -> bool:
        return isinstance(metric, keras.metrics.Metric)

    def _of_function(self, function: Any, name: str) -> FunctionMetric:
        return FunctionMetric(converted(function), name)

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

    def _parts(self, metric: Any, labels: Any, predictions: Any) -> tuple[Any, Any]:
        labels, predictions = super()._parts(metric, labels, predictions)
        if is_keras_own(metric) and any(each is not None for each in masks_of(predictions)):
            # A metric that takes an axis off the predictions has values that fit no mask.
            return of_one_rank(labels, predictions)
        return labels, predictions

    def _check_functions(self, labels: Any, predictions: Any) -> None:
        """Raises UserError for a function that pairs each label with each prediction."""
        for metric in self._metrics:
            if not isinstance(metric, FunctionMetric) or metric.function is self._model.loss:
                continue
            if fault := pairs_all(metric.function, *self._parts(metric, labels, predictions)):
                raise UserError(f"{self._what}: metric {metric.name!r} {fault}")

    def _prove_additive(self, labels: Any, predictions: Any) -> None:
        """Raises UserError for a metric whose states cannot be added up.

        Its state after two halves of a batch must be the sum of its states after each.
        """
        size = int(tf.nest.flatten(predictions)[0].shape[0])
        if size < 2 or not self._unproven:
            return
        parts = slice(0, size // 2), slice(size // 2, size)
        halves = [
            tf.nest.map_structure(lambda each, part=part: each[part], (labels, predictions))
            for part in parts
        ]
        masks = masks_of(predictions)
        for (_, half), part in zip(halves, parts, strict=True):
            note_masks(half, [None if each is None else each[part] for each in masks])
        for metric in self._unproven:
            self._check_adds_up(metric, halves)
        self._unproven = []

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

    def add(self, batch: Batch, inputs: StepInputs | None = None) -> None:
        """Evaluate a batch, and at the first one see if the metrics can be used."""
        predictions, of_layers = self._model.evaluate_batch(batch.features, inputs)
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
