"""Metrics of torchmetrics, as evaluation.py's: their states merge if they reduce by sum."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.errors import UserError
from shoal.worker.code.of_torchmetrics import is_of_torchmetrics
from shoal.worker.engines.torch.learning.argument_order import takes_labels_first

_CHANCES = {
    "Binary": torch.sigmoid,
    "Multilabel": torch.sigmoid,
    "Multiclass": lambda logits: logits.softmax(1),
}
"""First word of a class of torchmetrics.classification -> the chances that it makes of logits."""


class _State:
    """One state of a metric, as metrics of shoal.torch have theirs."""

    def __init__(self, metric: Any, name: str) -> None:
        self._metric, self._name = metric, name

    def assign(self, value: Any) -> None:
        """Set the values, float64 as those of a message, to the state's own type."""
        dtype = getattr(self._metric, self._name).dtype
        setattr(self._metric, self._name, torch.from_numpy(np.array(value)).to(dtype))

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        del copy
        array: npt.NDArray[Any] = getattr(self._metric, self._name).detach().numpy()
        return array.astype(dtype or np.float64)


class LibraryMetric:
    """A metric of torchmetrics whose states all reduce by sum, which it keeps in float64.

    Labels and predictions of [batch, 1] are given as [batch], and labels of its classes as int64.
    Whether predictions are logits torchmetrics says of each minibatch by itself, if one is outside
    of 0 to 1. Here they are from the first such minibatch on.

    name: under which it is reported. variables: the states.
    """

    def __init__(self, metric: Any, name: str, what: str) -> None:
        """metric: changed. what: where it came from. Raises UserError if it cannot be merged."""
        kind = type(metric).__name__
        self._metric, self._kind, self.name = metric, kind, name
        self._whose = f"{what}: metric {name!r} ({kind} of torchmetrics)"
        if any(is_of_torchmetrics(each) for each in list(metric.modules())[1:]) or not _names(
            metric
        ):
            raise UserError(f"{self._whose} is made of other metrics: give each of these by itself")
        self._check_states()
        self._labels_first = takes_labels_first(metric.update, f"{self._whose}: its update()")
        # Of a batch, float32 is enough. Of a data set, a sum of it would stop growing.
        metric.reset()
        for state, value in metric.metric_state.items():
            if value.is_floating_point():
                metric.add_state(state, value.double(), metric._reductions[state])
        self.variables = [_State(metric, state) for state in _names(metric)]
        own, *bases = (_is_of_classes(each) for each in type(metric).__mro__)
        self._of_classes = own or any(bases)
        # A class of the user's has an update() of its own, which may make chances itself.
        words = [word for word in _CHANCES if own and kind.startswith(word)]
        self._chances = _CHANCES[words[0]] if words else None
        self._logits = self._called = False

    def _check_states(self) -> None:
        from torchmetrics.utilities import dim_zero_sum  # late: there where the user has it

        metric = self._metric
        kept = [each for each, value in metric.metric_state.items() if isinstance(value, list)]
        if kept:
            if hasattr(metric, "thresholds"):
                instead = "give it thresholds=200, between which it counts"
            elif "indexes" in kept:
                instead = "take shoal.torch.metrics.GroupAUC, or a metric of your own that adds up"
            else:
                instead = "take a metric that adds up, such as those of shoal.torch.metrics"
            raise UserError(
                f"{self._whose} keeps all records, in its state {kept[0]}, and workers merge sums: "
                f"{instead}"
            )
        for name in _names(metric):
            reduction = metric._reductions[name]
            if reduction not in (dim_zero_sum, torch.sum):
                how = getattr(reduction, "__name__", str(reduction)).removeprefix("dim_zero_")
                raise UserError(
                    f"{self._whose} reduces its state {name} by {how}, and workers merge sums: "
                    "take one whose states are all of dist_reduce_fx='sum', or one of "
                    "shoal.torch.metrics"
                )

    def reset_state(self) -> None:
        """Forget all batches."""
        self._metric.reset()

    def update_state(self, labels: Any, predictions: Any) -> None:
        """Add a batch. Raises ValueError for what the metric does not take."""
        labels, predictions = _flat(labels), _flat(predictions)
        if self._of_classes:
            labels = self._classes(labels)
            predictions = self._as_chances(predictions)
        before = None if self._called else dict(vars(self._metric))
        try:
            self._metric.update(
                *((labels, predictions) if self._labels_first else (predictions, labels))
            )
        except (RuntimeError, TypeError) as error:
            raise ValueError(str(error)) from error
        if before is not None:
            self._check_attributes(before)
            # Before training, as it would else be found at the end of an evaluation.
            with suppress(RuntimeError, ValueError):  # of too few records
                self.result()
        self._called = True

    def _classes(self, labels: Any) -> Any:
        if not isinstance(labels, torch.Tensor) or not labels.is_floating_point():
            return labels
        if (labels != labels.round()).any():
            wrong = float(labels[labels != labels.round()][0])
            raise ValueError(f"{self._kind} takes whole numbers as labels, and there is {wrong}")
        return labels.long()

    def _as_chances(self, predictions: Any) -> Any:
        if self._chances is None or not predictions.is_floating_point():
            return predictions
        self._logits = self._logits or bool(((predictions < 0) | (predictions > 1)).any())
        return self._chances(predictions) if self._logits else predictions

    def _check_attributes(self, before: dict[str, Any]) -> None:
        """Raises UserError for what update() keeps outside of states, which no worker is sent."""
        states = _names(self._metric)
        for name, value in vars(self._metric).items():
            if name not in states and name[0] != "_" and before.get(name) is not value:
                raise UserError(
                    f"{self._whose} keeps {name} outside of its states, which workers cannot "
                    f"merge: declare it by add_state({name!r}, ..., dist_reduce_fx='sum')"
                )

    def result(self) -> Any:
        """The metric of all that was added. Raises UserError for a curve."""
        states = self._metric.metric_state
        self._metric.reset()  # or it gives the result that it gave before
        for name, value in states.items():
            setattr(self._metric, name, value)
        with warnings.catch_warnings():
            # That it was not updated, as on a worker that finishes what others evaluated.
            warnings.filterwarnings("ignore", "The ``compute`` method of metric")
            return self._numbers(self._metric.compute())

    def _numbers(self, found: Any) -> Any:
        if isinstance(found, torch.Tensor):
            return found.detach().double().numpy()
        if isinstance(found, tuple | list) and all(each.dim() == 0 for each in found):
            return np.array([float(each) for each in found])
        raise UserError(
            f"{self._whose} gives a {type(found).__name__} of arrays, such as a curve: take one of "
            "which the result is a number"
        )


def _is_of_classes(kind: type) -> bool:
    return kind.__module__.startswith("torchmetrics.classification.")


def _names(metric: Any) -> list[str]:
    """The names of the states of a metric."""
    return list(metric.metric_state)


def _flat(values: Any) -> Any:
    """One number a record as [batch]; other shapes as they are; 16-bit floats as float32."""
    if not isinstance(values, torch.Tensor):
        return values
    if values.is_floating_point() and values.dtype.itemsize == 2:
        values = values.float()
    return values[..., 0] if values.dim() > 1 and values.shape[-1] == 1 else values
