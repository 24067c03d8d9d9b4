"""Evaluation: the user's metrics as states that merge exactly.

Owns metric objects and their states on this worker; an engine adds batches to them. The master
adds the states of all tasks (float64) and has one worker turn the sum into numbers: so AUC is that
of the whole validation set, not a mean over batches or workers. The records that GroupAUC keeps
are appended instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from shoal.base.slices import MOST
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.metric_states import check_size, tell_rows
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines.engine import StepInputs
from shoal.worker.input.batch import Batch
from shoal.worker.model.learning.outputs import output_name, part_of

LOSS = "loss"


def keeps_records(metric: Any) -> bool:
    """True if the states of a metric are the records themselves, as GroupAUC's are."""
    return bool(getattr(metric, "keeps_records", False))


def keeps_slices(metric: Any) -> bool:
    """True if the states of a metric are rows by the values of features, as those of Slices."""
    return bool(getattr(metric, "keeps_slices", False))


def by_features(metric: Any) -> bool:
    """True for a metric that is given features, by NumPy's arrays and not by the framework's."""
    return keeps_records(metric) or keeps_slices(metric)


def _name(metric: Any) -> str:
    return str(getattr(metric, "name", getattr(metric, "__name__", type(metric).__name__)))


def _arrays(metric: Any) -> list[Any]:
    """The states of a metric, float64."""
    if keeps_slices(metric):
        return []
    if keeps_records(metric):
        return [metric.records]
    return [np.asarray(variable, np.float64) for variable in metric.variables]


class Evaluation(ABC):
    """The metrics of one worker, and their states.

    kinds: what a metric may be, in words.
    """

    kinds: str

    def __init__(self, module: UserModule, losses: Sequence[Any]) -> None:
        """losses: metrics of the losses. Raises UserError if eval_metrics_fn() gives no metrics."""
        self._module = module
        self._metrics: list[Any] = list(losses)
        # The output that a metric is about, by the metric's name; none: all of them.
        self._outputs: dict[str, Any] = {}
        self._what = module.describe("eval_metrics_fn")
        if module.eval_metrics_fn is not None:
            with user_code(self._what):
                metrics = module.eval_metrics_fn()
            self._add_all(metrics)

    @abstractmethod
    def build(self, labels_spec: Any, weights_spec: Any = None) -> None:
        """Make the states of metrics that would wait for a batch to know their shapes.

        This worker may be the one to finish a round of which it has evaluated nothing.
        """

    @abstractmethod
    def add(self, batch: Batch, inputs: StepInputs | None = None) -> None:
        """Evaluate a batch. inputs: as ServedModel.predict_batch takes them."""

    @abstractmethod
    def add_predictions(self, batch: Batch, predictions: Any, of_layers: Any) -> None:
        """Add a batch with its predictions, and at the first one see if the metrics can be used.

        predictions, of_layers: as ServedModel.evaluate_batch gives them.
        """

    @abstractmethod
    def _is_metric(self, metric: Any) -> bool:
        """True for a metric with states."""

    @abstractmethod
    def _of_function(self, function: Any, name: str) -> Any:
        """The metric that is the mean of the user's function of labels and predictions."""

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
        if self._is_metric(metric):
            metric.name = name
            return metric
        if isinstance(metric, type):
            raise UserError(
                f"{self._what}: metric {name!r} is the class {metric.__name__}: give an object of "
                f"it, {metric.__name__}()"
            )
        if callable(metric):
            return self._of_function(metric, name)
        raise UserError(
            f"{self._what}: metric {name!r} is a {type(metric).__name__}; it must be {self.kinds}"
        )

    def slices(self) -> list[pb.SliceMetrics]:
        """The worst ones of each metric of slices, of what `finish` was given last."""
        return [
            pb.SliceMetrics(metric=metric.name, **asdict(each))
            for metric in self._metrics
            if keeps_slices(metric)
            for each in metric.slices()[:MOST]
        ]

    @property
    def names(self) -> list[str]:
        """The names of the metrics; one of several numbers has them numbered in a report."""
        return [metric.name for metric in self._metrics]

    def result_names(self) -> list[str]:
        """The names of the numbers in a report, as they are before any record; resets all."""
        self.reset()
        return list(self.finish(self.states()))

    def _parts(self, metric: Any, labels: Any, predictions: Any) -> tuple[Any, Any]:
        """The parts of labels and predictions that a metric is about."""
        key = self._outputs.get(metric.name)
        if key is not None:
            labels, predictions = part_of(labels, key), part_of(predictions, key)
        return labels, predictions

    @abstractmethod
    def _update_one(self, metric: Any, labels: Any, predictions: Any) -> None:
        """Add a batch to one metric that is no loss's."""

    def _check_adds_up(self, metric: Any, halves: Sequence[tuple[Any, Any]]) -> None:
        """Raises UserError for a metric whose states cannot be added up; leaves them as they were.

        The state after two halves of a batch, each of labels and predictions, must be the sum of
        those after each.
        """
        before = [np.array(each) for each in metric.variables]
        after = []
        for given in (halves[:1], halves[1:], halves):
            metric.reset_state()
            for half in given:
                self._update_one(metric, *half)
            after.append([np.array(each, np.float64) for each in metric.variables])
        # Those of which there were none before have no value to go back to.
        for variable, value in zip(metric.variables, before, strict=False):
            variable.assign(value)
        for first, second, both in zip(*after, strict=True):
            if not np.allclose(first + second, both, rtol=1e-4, atol=1e-5):
                raise UserError(
                    f"{self._what}: the states of metric {metric.name!r} "
                    f"({type(metric).__name__}) do not add up over batches, so workers could "
                    "not be merged exactly: keep sums and counts in its variables"
                )

    def check_features(self, features: Any) -> None:
        """Raise UserError if a metric is by a feature that is not among these, or their specs."""
        for metric in filter(by_features, self._metrics):
            for name in metric.by if keeps_slices(metric) else [metric.by]:
                if isinstance(features, Mapping) and name in features:
                    continue
                known = features if isinstance(features, Mapping) else ()
                raise UserError(
                    f"{self._what}: {type(metric).__name__}(by={metric.by!r}) needs a feature of "
                    f"the name {name!r}, but {self._module.feed_name} gives "
                    + (f"the features {', '.join(map(repr, known))}" if known else "no dict")
                )

    def _update_groups(self, batch: Batch, predictions: Any) -> None:
        """Add a batch to the metrics that are given features; raises UserError for no such one."""
        self.check_features(batch.features)
        for metric in filter(by_features, self._metrics):
            features = batch.features
            labels, predicted = self._parts(metric, batch.labels, predictions)
            given = features[metric.by] if keeps_records(metric) else features
            try:
                metric.update_state(labels, predicted, groups=given)
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

    def reset(self) -> None:
        """Begin a task."""
        for metric in self._metrics:
            metric.reset_state()

    def states(self) -> pb.MetricStates:
        """The states since `reset`. Raises UserError if they are larger than a message may be."""
        arrays = {metric.name: _arrays(metric) for metric in self._metrics}
        sizes = {name: sum(each.nbytes for each in some) for name, some in arrays.items()}
        sizes |= {each.name: each.rows.nbytes for each in self._metrics if keeps_slices(each)}
        check_size(sizes)
        states = pb.MetricStates()
        for metric in self._metrics:
            state = states.metrics.add(
                name=metric.name,
                variables=[
                    pb.DoubleArray(shape=array.shape, values=array.ravel())
                    for array in arrays[metric.name]
                ],
                appended=keeps_records(metric),
            )
            if keeps_slices(metric):
                tell_rows(state, metric.rows.sparse())
        return states

    def finish(self, merged: pb.MetricStates) -> dict[str, float]:
        """The metrics that belong to merged states."""
        results: dict[str, float] = {}
        for metric, state in zip(self._metrics, merged.metrics, strict=True):
            arrays = [np.array(each.values).reshape(tuple(each.shape)) for each in state.variables]
            if keeps_slices(metric):
                told = state.rows
                metric.reset_state()
                metric.rows.add(told.keys, told.positions, told.values, told.width)
            elif keeps_records(metric):
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
