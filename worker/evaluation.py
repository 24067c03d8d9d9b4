"""Evaluation: the user's metrics as additive states that merge exactly.

Owns metric objects and their states on this worker. The master adds the states of
all tasks (float64) and has one worker turn the sum into numbers: so AUC is that of
the whole validation set, not a mean over batches or workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.model import ServedModel
from shoal.worker.module import UserModule, user_code
from shoal.worker.pipeline import Batch

LOSS = "loss"


class FunctionMetric(keras.metrics.Mean):
    """The mean over records of a function of labels and predictions.

    The function gives one value a record, or one for the whole batch, which then
    weighs as many records as the batch has.
    """

    def __init__(self, function: Any, name: str) -> None:
        super().__init__(name=name)
        self._function = function

    def update_state(self, labels: Any, predictions: Any) -> Any:
        """Add a batch."""
        values = tf.cast(self._function(labels, predictions), tf.float32)
        size = tf.shape(tf.nest.flatten(predictions)[0])[0]
        if values.shape.rank == 0:
            return super().update_state(values, sample_weight=tf.cast(size, tf.float32))
        # One value a record: further axes are averaged within the record.
        return super().update_state(tf.reduce_mean(tf.reshape(values, [size, -1]), axis=1))


class Evaluator:
    """The metrics of one worker."""

    def __init__(self, model: ServedModel, module: UserModule) -> None:
        """Raises UserError if eval_metrics_fn() gives no metrics."""
        self._model = model
        self._module = module
        self._metrics: list[Any] = [FunctionMetric(model.loss, LOSS)]
        if module.eval_metrics_fn is not None:
            with user_code(module.describe("eval_metrics_fn")):
                metrics = module.eval_metrics_fn()
            self._metrics += self._checked(metrics)
        self._update = tf.function(self._update_all, reduce_retracing=True)

    def _checked(self, metrics: Any) -> list[Any]:
        what = self._module.describe("eval_metrics_fn")
        if not isinstance(metrics, Mapping):
            raise UserError(f"{what} returned {type(metrics).__name__}, not a dict of metrics")
        checked = []
        for name, metric in metrics.items():
            if name == LOSS:
                raise UserError(f"{what}: {LOSS!r} is the loss, which is always reported")
            if isinstance(metric, keras.metrics.Metric):
                metric.name = name
                checked.append(metric)
            elif callable(metric):
                checked.append(FunctionMetric(metric, name))
            else:
                raise UserError(
                    f"{what}: metric {name!r} is a {type(metric).__name__}; it must be a "
                    "keras.metrics.Metric or a function of labels and predictions"
                )
        return checked

    def _update_all(self, labels: Any, predictions: Any) -> None:
        for metric in self._metrics:
            metric.update_state(labels, predictions)

    def build(self, labels_spec: Any) -> None:
        """Make the states of metrics that would wait for a batch to know their shapes.

        This worker may be the one to finish a round of which it has evaluated nothing.
        """
        if all(metric.variables for metric in self._metrics):
            return
        predictions_spec = self._model.predictions_spec()
        with user_code(f"the metrics of {self._module.path.name}"):
            self._update.get_concrete_function(labels_spec, predictions_spec)

    def reset(self) -> None:
        """Begin a task."""
        for metric in self._metrics:
            metric.reset_state()

    def add(self, batch: Batch) -> None:
        """Evaluate a batch with the servers' present values."""
        predictions = self._model.predict_batch(batch.features)
        with user_code(f"the metrics of {self._module.path.name}"):
            self._update(batch.labels, predictions)

    def states(self) -> pb.MetricStates:
        """The states since `reset`."""
        return pb.MetricStates(
            metrics=[
                pb.MetricState(
                    name=metric.name,
                    variables=[
                        pb.DoubleArray(
                            shape=variable.shape,
                            values=np.asarray(variable, np.float64).ravel(),
                        )
                        for variable in metric.variables
                    ],
                )
                for metric in self._metrics
            ]
        )

    def finish(self, merged: pb.MetricStates) -> dict[str, float]:
        """The metrics that belong to merged states."""
        results: dict[str, float] = {}
        for metric, state in zip(self._metrics, merged.metrics, strict=True):
            for variable, array in zip(metric.variables, state.variables, strict=True):
                variable.assign(np.array(array.values).reshape(tuple(array.shape)))
            value = metric.result()
            for name, each in value.items() if isinstance(value, dict) else [(metric.name, value)]:
                numbers = np.asarray(each, np.float64)
                if numbers.ndim == 0:
                    results[name] = float(numbers)
                else:
                    results.update(
                        {f"{name}_{i}": float(item) for i, item in enumerate(numbers.ravel())}
                    )
        return results
