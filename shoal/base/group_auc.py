"""The area under the ROC curve within groups of records, by NumPy alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

KEPT = 5
"""Numbers of a record: two of its group, label, prediction, weight."""


class GroupRecords:
    """The records of a metric of groups, which are its states.

    average: as of `group_auc`.
    """

    keeps_records = True
    """Its states are records, which workers append to one another's."""

    average: str
    _pieces: list[Floats]

    @property
    def records(self) -> Floats:
        """The records added, float64 [records, 5]; those of several workers follow one another."""
        return np.concatenate([np.zeros((0, KEPT)), *self._pieces])

    @records.setter
    def records(self, records: Floats) -> None:
        self._pieces = [np.asarray(records, np.float64).reshape(-1, KEPT)]

    def reset_state(self) -> None:
        """Forget all records."""
        self._pieces = []

    def result(self) -> float:
        """The average; NaN if no group has both labels."""
        return group_auc(self.records, average=self.average)


def group_auc(records: Floats, *, average: str) -> float:
    """The average of the groups' AUC, exact and without thresholds; NaN if none has both labels.

    records: float64 [n, 5], of each the upper and the lower 32 bits of its group, its label, its
    prediction and its weight. average: "records", by which groups weigh as many as they have
    records, or "groups", by which they weigh the same.
    """
    if np.isnan(records[:, 3]).any() or not np.isfinite(records[:, [2, 4]]).all():
        return math.nan
    if not len(records):
        return math.nan
    high, low, labels, predictions, weights = records[
        np.lexsort((records[:, 3], records[:, 1], records[:, 0]))
    ].T
    # In this order, records of one group and one prediction are a run, and the runs of a
    # group stand together by their predictions.
    of_group = np.append(True, (np.diff(high) != 0) | (np.diff(low) != 0))
    runs = np.flatnonzero(of_group | np.append(True, predictions[1:] != predictions[:-1]))
    positive = np.add.reduceat(weights * labels, runs)
    negative = np.add.reduceat(weights * (1 - labels), runs)
    groups = np.flatnonzero(of_group[runs])
    total = np.add.reduceat(positive, groups), np.add.reduceat(negative, groups)
    before = np.cumsum(negative) - negative
    lengths = np.diff(np.append(groups, len(runs)))
    below = before - np.repeat(before[groups], lengths)
    ordered = np.add.reduceat(positive * (below + negative / 2), groups)
    both = (total[0] > 0) & (total[1] > 0)
    if not both.any():
        return math.nan
    areas = ordered[both] / (total[0] * total[1])[both]
    sizes = (total[0] + total[1])[both] if average == "records" else np.ones(both.sum())
    return float(np.average(areas, weights=sizes))


def auc(labels: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> float:
    """The AUC of all records as one group; labels and predictions: [n]. NaN without both labels."""
    group, weights = np.zeros(len(labels)), np.ones(len(labels))
    records = np.column_stack([group, group, labels, predictions, weights])
    return group_auc(records.astype(np.float64), average="records")
