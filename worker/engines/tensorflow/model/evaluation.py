"""Evaluation: the user's metrics as states that merge exactly.

Owns metric objects and their states on this worker. The master adds the states of
all tasks (float64) and has one worker turn the sum into numbers: so AUC is that of
the whole validation set, not a mean over batches or workers. The records that
GroupAUC keeps are appended instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shoal.errors import UserError
from shoal.model_metrics import GroupAUC
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.metric_states import check_size
from shoal.worker.attribution import attributing
from shoal.worker.code.keras_internals import is_keras_own, masks_of, note_masks
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines.engine import StepInputs
from shoal.worker.engines.tensorflow.model.broadcasting import pairs_all
from shoal.worker.engines.tensorflow.model.conversion import converted
from shoal.worker.engines.tensorflow.model.losses import of_one_rank, output_name, part_of
from shoal.worker.input.batch import Batch
from shoal.worker.model.model import ServedModel

LOSS = "loss"


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


def _is_known(metric: Any) -> bool:
    # Ours have additive states too, but may look at a batch as a whole.
    return is_keras_own(metric) or type(metric).__module__.startswith("shoal.")


def _name(metric: Any) -> str:
    return str(getattr(metric, "name", getattr(metric, "__name__", type(metric).__name__)))


def _arrays(metric: Any) -> list[Any]:
    """The states of a metric, float64."""
    if isinstance(metric, GroupAUC):
        return [metric.records]
    return [np.asarray(variable, np.float64) for variable in metric.variables]


def _given(weights: Any) -> tuple[Any, ...]:
    """Weights as the last arguments of a function that may get none."""
    return () if weights is None else (weights,)


class Evaluator:
    """The metrics of one worker."""

    def __init__(self, model: ServedModel, module: UserModule) -> None:
        """Raises UserError if eval_metrics_fn() gives no metrics."""
        self._model = model
        self._module = module
        self._loss = FunctionMetric(model.loss, LOSS)
        self._metrics: list[Any] = [self._loss]
        # The output that a metric is about, by the metric's name; none: all of them.
        self._outputs: dict[str, Any] = {}
        self._metrics += [FunctionMetric(each, name) for name, each in model.loss.named().items()]
        # The weights of records are about the loss only, as in Keras.
        self._losses = list(self._metrics)
        self._what = module.describe("eval_metrics_fn")
        if module.eval_metrics_fn is not None:
            with user_code(self._what):
                metrics = module.eval_metrics_fn()
            self._add_all(metrics)
        self._update = tf.function(self._update_all, reduce_retracing=True, autograph=False)
        self._traced = False
        # Keras's own have additive states. Of the user's it is seen at the first batch.
        self._unproven = [each for each in self._metrics if not _is_known(each)]

    def _add_all(self, metrics: Any) -> None:
        """Take the metrics of a dict; within it, a dict or list is of one output."""
        if not isinstance(metrics, Mapping):
            raise UserError(
                f"{self._what} returned {type(metrics).__name__}, not a dict of metrics"
            )
        for name, metric in metrics.items():
            if name == LOSS:
                raise UserError(f"{self._what}: {LOSS!r} is the loss, which is always reported")
            if isinstance(metric, Mapping):
                of_output = list(metric.items())
            elif isinstance(metric, list | tuple):
                of_output = [(_name(each), each) for each in metric]
            else:
                self._metrics.append(self._checked(name, metric))
                continue
            for inner, each in of_output:
                full = f"{output_name(name)}_{inner}"
                self._metrics.append(self._checked(full, each))
                self._outputs[full] = name

    def _checked(self, name: str, metric: Any) -> Any:
        if any(each.name == name for each in self._metrics):
            raise UserError(f"{self._what}: there are two metrics of the name {name!r}")
        if isinstance(metric, keras.metrics.Metric):
            metric.name = name
            return metric
        if isinstance(metric, type):
            raise UserError(
                f"{self._what}: metric {name!r} is the class {metric.__name__}: give an object of "
                f"it, {metric.__name__}()"
            )
        if callable(metric):
            return FunctionMetric(converted(metric), name)
        raise UserError(
            f"{self._what}: metric {name!r} is a {type(metric).__name__}; it must be a "
            "keras.metrics.Metric or a function of labels and predictions"
        )

    @property
    def names(self) -> list[str]:
        """The names of the metrics; one of several numbers has them numbered in a report."""
        return [metric.name for metric in self._metrics]

    def _update_all(
        self, labels: Any, predictions: Any, masks: list[Any], of_layers: Any, *weights: Any
    ) -> None:
        note_masks(predictions, masks)
        for metric in self._metrics:
            with user_code(f"metric {metric.name!r} of {self._module.path.name}"):
                if metric in self._losses:
                    metric.update_state(labels, predictions, *weights)
                elif not isinstance(metric, GroupAUC):
                    self._update_one(metric, labels, predictions)
        self._loss.add_to_each(of_layers, predictions)  # as Keras's evaluate() does

    def _update_one(self, metric: Any, labels: Any, predictions: Any) -> None:
        update = metric.update_state if _is_known(metric) else converted(metric.update_state)
        update(*self._parts(metric, labels, predictions))

    def _parts(self, metric: Any, labels: Any, predictions: Any) -> tuple[Any, Any]:
        """The parts of labels and predictions that a metric is about."""
        key = self._outputs.get(metric.name)
        if key is not None:
            labels, predictions = part_of(labels, key), part_of(predictions, key)
        if is_keras_own(metric) and any(each is not None for each in masks_of(predictions)):
            # A metric that takes an axis off the predictions has values that fit no mask.
            return of_one_rank(labels, predictions)
        return labels, predictions

    def _update_groups(self, batch: Batch, predictions: Any) -> None:
        """Add a batch to the metrics that keep records; raises UserError for no such group."""
        for metric in self._metrics:
            if not isinstance(metric, GroupAUC):
                continue
            features = batch.features
            if not isinstance(features, Mapping) or metric.by not in features:
                known = features if isinstance(features, Mapping) else ()
                raise UserError(
                    f"{self._what}: GroupAUC(by={metric.by!r}) needs a feature of this name, but "
                    f"{self._module.feed_name} gives "
                    + (f"the features {', '.join(map(repr, known))}" if known else "no dict")
                )
            labels, predicted = self._parts(metric, batch.labels, predictions)
            try:
                metric.update_state(labels, predicted, groups=features[metric.by])
            except ValueError as error:
                raise UserError(f"{self._what}: metric {metric.name!r}: {error}") from error

    def _check_outputs(self, predictions: Any) -> None:
        """Raises UserError for a metric of an output that the model does not give."""
        known: list[Any] = []
        if isinstance(predictions, Mapping):
            known = list(predictions)
        elif isinstance(predictions, list | tuple):
            known = list(range(len(predictions)))
        for key in self._outputs.values():
            if key not in known:
                raise UserError(
                    f"{self._what}: there are metrics of output {key!r}, but the model gives "
                    + (f"outputs {', '.join(map(repr, known))}" if known else "a single output")
                )

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
            before = [np.asarray(each) for each in metric.variables]
            after = []
            for given in (halves[:1], halves[1:], halves):
                metric.reset_state()
                for half in given:
                    self._update_one(metric, *half)
                after.append([np.asarray(each, np.float64) for each in metric.variables])
            for variable, value in zip(metric.variables, before, strict=False):
                variable.assign(value)
            for first, second, both in zip(*after, strict=True):
                if not np.allclose(first + second, both, rtol=1e-4, atol=1e-5):
                    raise UserError(
                        f"{self._what}: the states of metric {metric.name!r} "
                        f"({type(metric).__name__}) do not add up over batches, so workers could "
                        "not be merged exactly: keep sums and counts in its variables"
                    )
        self._unproven = []

    def build(self, labels_spec: Any, weights_spec: Any = None) -> None:
        """Make the states of metrics that would wait for a batch to know their shapes.

        This worker may be the one to finish a round of which it has evaluated nothing.
        """
        if all(each.variables or isinstance(each, GroupAUC) for each in self._metrics):
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

    def reset(self) -> None:
        """Begin a task."""
        for metric in self._metrics:
            metric.reset_state()

    def add(self, batch: Batch, inputs: StepInputs | None = None) -> None:
        """Evaluate a batch. inputs: as ServedModel.predict_batch takes them."""
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

    def states(self) -> pb.MetricStates:
        """The states since `reset`. Raises UserError if they are larger than a message may be."""
        arrays = {metric.name: _arrays(metric) for metric in self._metrics}
        check_size({name: sum(each.nbytes for each in some) for name, some in arrays.items()})
        return pb.MetricStates(
            metrics=[
                pb.MetricState(
                    name=metric.name,
                    variables=[
                        pb.DoubleArray(
                            shape=array.shape,
                            values=array.ravel(),
                        )
                        for array in arrays[metric.name]
                    ],
                    appended=isinstance(metric, GroupAUC),
                )
                for metric in self._metrics
            ]
        )

    def finish(self, merged: pb.MetricStates) -> dict[str, float]:
        """The metrics that belong to merged states."""
        results: dict[str, float] = {}
        for metric, state in zip(self._metrics, merged.metrics, strict=True):
            arrays = [np.array(each.values).reshape(tuple(each.shape)) for each in state.variables]
            if isinstance(metric, GroupAUC):
                (metric.records,) = arrays
            else:
                for variable, array in zip(metric.variables, arrays, strict=True):
                    variable.assign(array)
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
