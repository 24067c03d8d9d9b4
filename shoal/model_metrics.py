"""Metrics of recommenders that Keras lacks, exact over any number of workers.

Users import them from `shoal.metrics`. Each merges exactly: the sums of two states add up, and the
records that `GroupAUC` keeps follow one another. Metrics of retrieval are retrieval.py's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.bags import ON_TENSORFLOW
from shoal.base.group_auc import GroupRecords
from shoal.base.slices import SliceSums
from shoal.native.strings import string_ids

Floats = npt.NDArray[np.float64]

# JAX has no float64 unless a program asks for it.
WIDE = "float32" if keras.backend.backend() == "jax" else "float64"


def _column(values: Any, what: str) -> Any:
    """One number a record, of a tensor [batch] or [batch, 1]. Raises ValueError for others."""
    values = keras.ops.convert_to_tensor(values)
    # The rank of a tensor of TensorFlow may not be known.
    rank = values.shape.rank if ON_TENSORFLOW else len(values.shape)
    if rank not in (1, 2) or (rank == 2 and values.shape[-1] != 1):
        raise ValueError(
            f"{what} have the shape {values.shape}: this metric needs one number a record, "
            "[batch] or [batch, 1]"
        )
    return keras.ops.reshape(keras.ops.cast(values, WIDE), [-1])


def _columns(y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Labels, predictions and weights, [batch]."""
    labels, predictions = _column(y_true, "labels"), _column(y_pred, "predictions")
    sizes = labels.shape[0], predictions.shape[0]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ValueError(f"{sizes[0]} labels came with {sizes[1]} predictions")
    if sample_weight is None:
        return labels, predictions, keras.ops.ones_like(labels)
    return labels, predictions, _column(sample_weight, "sample weights")


class _Ratio(keras.metrics.Metric):
    """A sum divided by another; NaN where the second is 0."""

    def __init__(self, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        # Sums of many records: float32 would lose the last ones.
        self._above = self.add_variable((), "zeros", dtype=WIDE, name="above")
        self._below = self.add_variable((), "zeros", dtype=WIDE, name="below")

    def _add(self, above: Any, below: Any) -> None:
        self._above.assign_add(keras.ops.sum(above))
        self._below.assign_add(keras.ops.sum(below))

    def result(self) -> Any:
        """The metric of all that was added, a scalar: float64, on JAX float32."""
        return keras.ops.where(self._below != 0, self._above / self._below, math.nan)


@keras.saving.register_keras_serializable(package="shoal")
class Calibration(_Ratio):
    """The sum of the predictions divided by the sum of the labels.

    1 means that as many events were predicted as happened, 1.1 that 10% too many were. NaN if
    nothing happened. Labels and predictions are [batch] or [batch, 1].
    """

    def __init__(self, name: str = "calibration", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch. Raises ValueError for more than one number a record."""
        labels, predictions, weights = _columns(y_true, y_pred, sample_weight)
        self._add(predictions * weights, labels * weights)


@keras.saving.register_keras_serializable(package="shoal")
class LogLoss(_Ratio):
    """The mean of -log(probability of the label), as scikit-learn's `log_loss` of two classes.

    Labels are 0 or 1, predictions are probabilities; both are [batch] or [batch, 1]. A prediction
    is kept `epsilon` away from 0 and 1. One that is not finite makes the metric NaN.
    """

    def __init__(self, name: str = "log_loss", epsilon: float = 1e-7, dtype: Any = None) -> None:
        """Raises ValueError unless epsilon is between 0 and 0.5."""
        super().__init__(name, dtype)
        if not 0 < epsilon < 0.5:
            raise ValueError(f"epsilon={epsilon} must be between 0 and 0.5")
        self.epsilon = epsilon

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch. Raises ValueError for more than one number a record."""
        labels, predictions, weights = _columns(y_true, y_pred, sample_weight)
        predictions = keras.ops.where(keras.ops.isfinite(predictions), predictions, math.nan)
        # 1 - epsilon may be 1: each of the two is kept away from 0 by itself.
        one, other = (
            keras.ops.log(keras.ops.clip(each, self.epsilon, 1 - self.epsilon))
            for each in (predictions, 1 - predictions)
        )
        losses = -labels * one - (1 - labels) * other
        self._add(losses * weights, weights)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="shoal")
class GroupAUC(GroupRecords, keras.metrics.Metric):
    """The AUC within each group of records, such as a user's, averaged over the groups.

    Groups weigh as many as they have records (Zhu et al., "Deep Interest Network", 2018), or the
    same each. A group whose labels are all alike has no AUC, and is left out. The AUC is exact,
    with no thresholds: it needs all records, 40 bytes each, at the master and at one worker. It is
    NaN if a prediction is, or if a label or a weight is not finite.

    by: name of the feature, of what `feed` gives, by whose values records are grouped: integers
        or strings, [batch] or [batch, 1].
    average: "records" or "groups", the weights of groups.
    """

    def __init__(
        self, by: str, average: str = "records", name: str = "group_auc", dtype: Any = None
    ) -> None:
        """Raises ValueError for another `average`."""
        super().__init__(name=name, dtype=dtype)
        if average not in ("records", "groups"):
            raise ValueError(f"average={average!r} must be 'records' or 'groups'")
        self.by = by
        self.average = average
        self._pieces: list[Floats] = []

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, groups: Any = None
    ) -> None:
        """Add a batch, eagerly. groups: the values of the feature `by`.

        Raises ValueError without groups, and for more than one number a record.
        """
        if groups is None:
            raise ValueError(
                f"GroupAUC(by={self.by!r}) needs groups=..., the values of {self.by!r}, which "
                "Keras does not give to metrics: use it in eval_metrics_fn of a job"
            )
        columns = _columns(y_true, y_pred, sample_weight)
        high, low = _halves(groups, self.by)
        numbers = map(keras.ops.convert_to_numpy, columns)
        self._pieces.append(np.stack([high, low, *numbers], axis=1, dtype=np.float64))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "by": self.by, "average": self.average}


def _halves(groups: Any, by: str) -> tuple[Floats, Floats]:
    """The upper and the lower 32 bits of each group, which float64 holds exactly."""
    values = _numpy(groups).reshape(-1)
    if values.dtype.kind in "OSUT":
        values = string_ids(values)
    if values.dtype.kind not in "iu":
        raise ValueError(
            f"GroupAUC(by={by!r}): {by!r} has {values.dtype.name} values; groups are integers or "
            "strings"
        )
    numbers = values.astype(np.int64)
    return (numbers >> 32).astype(np.float64), (numbers & 0xFFFFFFFF).astype(np.float64)


@keras.saving.register_keras_serializable(package="shoal")
class Slices(SliceSums, keras.metrics.Metric):
    """The metrics of the records with each value of some features, and the AUC of the worst.

    Of each slice the job's report and `result.json` have the number of records, the AUC (by 200
    thresholds, as keras.metrics.AUC), the log loss, the calibration and the mean label.

    by: names of features, of what `feed` gives: integers, bools or strings, [batch] or [batch, 1].
    min_records: of a slice that is told.
    from_logits: predictions are logits, not chances.
    """

    def __init__(
        self,
        by: Sequence[str],
        min_records: int = 100,
        from_logits: bool = False,
        name: str = "worst_slice",
        dtype: Any = None,
    ) -> None:
        """Raises ValueError for no list of names, and for less than one record."""
        super().__init__(name=name, dtype=dtype)
        self.begin(by, min_records, from_logits=from_logits)

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, groups: Any = None
    ) -> None:
        """Add a batch, eagerly. groups: the features by name.

        Raises ValueError without them, and for more than one number a record.
        """
        if groups is None:
            raise ValueError(
                f"Slices(by={list(self.by)}) needs groups=..., the features, which Keras does not "
                "give to metrics: use it in eval_metrics_fn of a job"
            )
        labels, predictions, _ = map(
            keras.ops.convert_to_numpy, _columns(y_true, y_pred, sample_weight)
        )
        features = {name: _numpy(groups[name]) for name in self.by}
        self.add(np.asarray(labels, np.float64), np.asarray(predictions, np.float64), features)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        own = {"by": list(self.by), "min_records": self.min_records}
        return {**super().get_config(), **own, "from_logits": self.from_logits}


def _numpy(values: Any) -> npt.NDArray[Any]:
    """An array, of a tensor of strings too."""
    return np.asarray(keras.ops.convert_to_numpy(values) if keras.ops.is_tensor(values) else values)
