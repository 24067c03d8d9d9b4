"""Metrics for PyTorch that are exact over any number of workers: their states add up.

Computed by NumPy in float64. Each takes labels and predictions as tensors or arrays, [batch] or
[batch, 1]. A function of labels and predictions is a metric, too, of which the mean is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.base.group_auc import GroupRecords
from shoal.base.slices import SliceSums

Floats = npt.NDArray[np.float64]

EPSILON = 1e-7


class State:
    """An array float64 of a metric, to which batches are added."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.value: Floats = np.zeros(shape)

    def assign(self, value: Any) -> None:
        """Set the values."""
        self.value = np.array(value, np.float64).reshape(self.value.shape)

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        del copy
        return self.value.astype(dtype or np.float64)


class Metric:
    """A metric whose states add up over batches and workers.

    One of your own defines `update_state`, which adds to states of `add_state`, and `result`.

    variables: the states.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name or type(self).__name__.lower()
        self.variables: list[State] = []

    def add_state(self, *shape: int) -> State:
        """A new state of zeros; by default one number."""
        self.variables.append(State(shape))
        return self.variables[-1]

    def reset_state(self) -> None:
        """Forget all batches."""
        for each in self.variables:
            each.value[...] = 0

    def update_state(self, labels: Any, predictions: Any) -> None:
        """Add a batch. Raises ValueError for shapes that do not fit."""
        raise NotImplementedError

    def result(self) -> float:
        """The metric of all that was added."""
        raise NotImplementedError


def array(values: Any) -> npt.NDArray[Any]:
    """Values as NumPy's, of a tensor too, whatever its dtype."""
    if hasattr(values, "detach"):
        values = values.detach()
        values = (values.float() if values.dtype.itemsize == 2 else values).numpy()
    return np.asarray(values)


def column(values: Any, what: str) -> Floats:
    """One float64 a record, of [batch] or [batch, 1]. Raises ValueError for others."""
    given = array(values)
    if given.ndim not in (1, 2) or (given.ndim == 2 and given.shape[-1] != 1):
        raise ValueError(
            f"{what} have the shape {given.shape}: this metric needs one number a record, "
            "[batch] or [batch, 1]"
        )
    return given.reshape(-1).astype(np.float64)


def columns(labels: Any, predictions: Any) -> tuple[Floats, Floats]:
    """Labels and predictions, float64 [batch]. Raises ValueError where they do not fit."""
    of_labels, given = column(labels, "labels"), column(predictions, "predictions")
    if len(of_labels) != len(given):
        raise ValueError(f"{len(of_labels)} labels came with {len(given)} predictions")
    return of_labels, given


def chances(predictions: Floats, from_logits: bool) -> Floats:
    """Predictions as chances between 0 and 1."""
    if not from_logits:
        return predictions
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-predictions))


class Ratio(Metric):
    """A sum divided by another; NaN where the second is 0."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._above, self._below = self.add_state(), self.add_state()

    def add(self, above: Any, below: Any) -> None:
        """Add the sums of two arrays."""
        self._above.value += np.sum(above)
        self._below.value += np.sum(below)

    def result(self) -> float:
        """The metric of all that was added."""
        below = float(self._below.value)
        return float(self._above.value) / below if below else math.nan


class AUC(Metric):
    """The area under the ROC curve, by thresholds as keras.metrics.AUC has them.

    num_thresholds: of the curve, evenly between 0 and 1. from_logits: predictions are logits, of
    which chances are made first, as for torch.nn.BCEWithLogitsLoss.
    """

    def __init__(
        self, num_thresholds: int = 200, *, from_logits: bool = False, name: str = ""
    ) -> None:
        """Raises ValueError for fewer than 2 thresholds."""
        super().__init__(name)
        if num_thresholds < 2:
            raise ValueError(f"num_thresholds={num_thresholds} must be at least 2")
        self._count, self._from_logits = num_thresholds, from_logits
        # Of each of both labels, how many records have their prediction in which bucket.
        self._buckets = self.add_state(2, num_thresholds)

    def update_state(self, labels: Any, predictions: Any) -> None:
        """Add a batch. Raises ValueError for predictions outside of 0 to 1 or labels not 0 or 1."""
        of_labels, given = columns(labels, predictions)
        given = chances(given, self._from_logits)
        if given.size and not (given.min() >= 0 and given.max() <= 1):
            raise ValueError(
                f"AUC needs predictions between 0 and 1, and there is {_outside(given)}: give "
                "AUC(from_logits=True) if they are logits"
            )
        if not np.isin(of_labels, (0, 1)).all():
            raise ValueError("AUC needs labels 0 or 1")
        # float32, as Keras has them: a prediction may be at a threshold.
        scaled = np.float32(given) * np.float32(self._count - 1)
        bucket = np.maximum(np.ceil(scaled) - 1, 0).astype(np.int64)
        for label in (0, 1):
            self._buckets.value[label] += np.bincount(
                bucket[of_labels == label], minlength=self._count
            )

    def result(self) -> float:
        """The area, by the trapezoid rule; 0 where there are no records of one of the labels."""
        # Records above each threshold, from the last to the first.
        negative, positive = (np.cumsum(each[::-1])[::-1] for each in self._buckets.value)
        x = np.append(negative, 0) / max(negative[0], EPSILON)
        y = np.append(positive, 0) / max(positive[0], EPSILON)
        x, y = x[: self._count], y[: self._count]
        return float(np.sum((x[:-1] - x[1:]) * (y[:-1] + y[1:]) / 2))


def _outside(values: Floats) -> float:
    wrong = values[~((values >= 0) & (values <= 1))]
    return float(wrong[0])


class GroupAUC(GroupRecords, Metric):
    """The AUC within each group of records, such as a user's, averaged over the groups.

    by: name of the feature by whose values records are grouped, integers or texts. average:
    "records", by which groups weigh as many as they have records, or "groups". It needs all
    records, 40 bytes each, at the master and at one worker.
    """

    def __init__(self, by: str, average: str = "records", name: str = "group_auc") -> None:
        """Raises ValueError for another `average`."""
        super().__init__(name)
        if average not in ("records", "groups"):
            raise ValueError(f"average={average!r} must be 'records' or 'groups'")
        self.by, self.average = by, average
        self._pieces: list[Floats] = []

    def update_state(self, labels: Any, predictions: Any, groups: Any = None) -> None:
        """Add a batch. groups: integers, [batch] or [batch, 1]. Raises ValueError without them."""
        if groups is None:
            raise ValueError(
                f"GroupAUC(by={self.by!r}) needs groups=..., the values of {self.by!r}"
            )
        of_labels, given = columns(labels, predictions)
        numbers = array(groups).reshape(-1)
        if numbers.dtype.kind not in "iu":
            raise ValueError(f"GroupAUC(by={self.by!r}): groups are integers or texts")
        numbers = numbers.astype(np.int64)
        halves = numbers >> 32, numbers & 0xFFFFFFFF
        ones = np.ones_like(of_labels)
        self._pieces.append(np.stack([*halves, of_labels, given, ones], axis=1, dtype=np.float64))


class Slices(SliceSums, Metric):
    """The metrics of the records with each value of some features, and the AUC of the worst.

    Of each slice the job's report and `result.json` have the number of records, the AUC (by 200
    thresholds, as `AUC`), the log loss, the calibration and the mean label.

    by: names of features: integers, bools or texts, [batch] or [batch, 1]. min_records: of a slice
    that is told. from_logits: predictions are logits.
    """

    def __init__(
        self,
        by: Sequence[str],
        min_records: int = 100,
        *,
        from_logits: bool = False,
        name: str = "worst_slice",
    ) -> None:
        """Raises ValueError for no list of names, and for less than one record."""
        super().__init__(name)
        self.begin(by, min_records, from_logits=from_logits)

    def update_state(self, labels: Any, predictions: Any, groups: Any = None) -> None:
        """Add a batch. groups: the features by name. Raises ValueError without them."""
        if groups is None:
            raise ValueError(f"Slices(by={list(self.by)}) needs groups=..., the features")
        of_labels, given = columns(labels, predictions)
        self.add(of_labels, given, {name: array(groups[name]) for name in self.by})


class LogLoss(Ratio):
    """The mean of -log(chance of the label), of two classes."""

    def __init__(self, *, from_logits: bool = False, name: str = "log_loss") -> None:
        super().__init__(name)
        self._from_logits = from_logits

    def update_state(self, labels: Any, predictions: Any) -> None:
        """Add a batch. One prediction that is not finite makes the metric NaN."""
        of_labels, given = columns(labels, predictions)
        given = chances(given, self._from_logits)
        given = np.where(np.isfinite(given), given, np.nan)
        one, other = (np.log(np.clip(each, EPSILON, 1 - EPSILON)) for each in (given, 1 - given))
        self.add(-of_labels * one - (1 - of_labels) * other, np.ones_like(of_labels))


class Calibration(Ratio):
    """The sum of the predictions divided by the sum of the labels."""

    def __init__(self, *, from_logits: bool = False, name: str = "calibration") -> None:
        super().__init__(name)
        self._from_logits = from_logits

    def update_state(self, labels: Any, predictions: Any) -> None:
        """Add a batch."""
        of_labels, given = columns(labels, predictions)
        self.add(chances(given, self._from_logits), of_labels)


class BinaryAccuracy(Ratio):
    """The share of records whose prediction is above the threshold where the label is 1.

    threshold: 0.5 for chances, and 0 with `from_logits`.
    """

    def __init__(self, *, from_logits: bool = False, name: str = "accuracy") -> None:
        super().__init__(name)
        self._threshold = 0.0 if from_logits else 0.5

    def update_state(self, labels: Any, predictions: Any) -> None:
        """Add a batch."""
        of_labels, given = columns(labels, predictions)
        self.add((given > self._threshold) == (of_labels > 0.5), np.ones_like(of_labels))


class Accuracy(Ratio):
    """The share of records whose highest prediction, [batch, classes], is that of the label."""

    def update_state(self, labels: Any, predictions: Any) -> None:
        """Add a batch."""
        classes, given = column(labels, "labels"), array(predictions)
        if given.ndim != 2 or len(given) != len(classes):
            raise ValueError(
                f"predictions have the shape {given.shape}: this metric needs [batch, classes]; "
                "BinaryAccuracy takes one number a record"
            )
        self.add(given.argmax(axis=1) == classes, np.ones_like(classes))


class MeanSquaredError(Ratio):
    """The mean of the squares of the errors."""

    def __init__(self, name: str = "mean_squared_error") -> None:
        super().__init__(name)

    def update_state(self, labels: Any, predictions: Any) -> None:
        """Add a batch."""
        of_labels, given = columns(labels, predictions)
        self.add(np.square(given - of_labels), np.ones_like(of_labels))


class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of the squares of the errors."""

    def __init__(self, name: str = "root_mean_squared_error") -> None:
        super().__init__(name)

    def result(self) -> float:
        """The metric of all that was added."""
        return math.sqrt(super().result())


class FunctionMetric(Ratio):
    """The mean over records of a function of labels and predictions.

    The function gives one value a record, or one for the whole batch, which then weighs as many
    records as the batch has. Further axes are averaged within the record.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        super().__init__(name)
        self.function = function

    def update_state(self, labels: Any, predictions: Any, *weights: Any, size: int = 0) -> None:
        """Add a batch. size: of the batch, where predictions are nested."""
        values = array(self.function(labels, predictions, *weights)).astype(np.float64)
        size = size or len(predictions)
        if values.ndim == 0:
            self.add(values * size, size)
            return
        if len(values) != size:
            raise ValueError(
                f"it gave the shape {values.shape} for {size} records: give one value a record, "
                "or one for all"
            )
        self.add(values.reshape(size, -1).mean(axis=1), size)

    def add_to_each(self, value: float, size: int) -> None:
        """Add a number to that of each record of a batch that was added."""
        self._above.value += value * size
