"""Metrics of records by the values of features, by NumPy alone: sums for each value that add up.

Owns the sums of a slice and what follows from them. How labels and predictions come is the
libraries' affair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

THRESHOLDS = 200
"""Of the curve of an AUC, evenly between 0 and 1, as keras.metrics.AUC has them."""

EPSILON = 1e-7
"""From 0 and 1, at the least, are chances whose logarithm is taken."""

SUMS = 4
"""Numbers of a slice before the buckets: records, labels, predictions, losses."""

WIDTH = SUMS + 2 * THRESHOLDS

MOST = 200
"""Slices of a metric that are told, the worst ones."""


class KeyedRows:
    """Rows of sums by key, to which others are added.

    width: numbers of a row; 0 until a row tells.
    """

    def __init__(self, width: int = 0) -> None:
        self.width = width
        self._position: dict[str, int] = {}
        self._table: Floats = np.zeros((0, width))

    @property
    def keys(self) -> list[str]:
        """The keys, in the order of their rows."""
        return list(self._position)

    @property
    def table(self) -> Floats:
        """The rows, float64 [keys, width]; not a copy."""
        return self._table[: len(self._position)]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return len(self._position) * self.width * 8

    def places(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """The positions of the rows of keys, new ones of zeros where there are none."""
        known = self._position
        found = [known.setdefault(key, len(known)) for key in keys]
        if len(known) > len(self._table):
            # By half, so that much is not reserved in vain.
            grown = np.zeros((max(len(known), len(self._table) * 3 // 2), self.width))
            grown[: len(self._table)] = self._table
            self._table = grown
        return np.array(found, np.int64)

    def add(self, keys: Sequence[str], positions: bytes, values: bytes, width: int) -> None:
        """Add the rows of another, as `sparse` gives them.

        Raises ValueError if they do not fit those that are here.
        """
        where = np.frombuffer(positions, "<u4").astype(np.int64)
        numbers = np.frombuffer(values, "<f8")
        if not self._position and not self.width:
            self.width, self._table = width, np.zeros((0, width))
        if width != self.width or where.shape != numbers.shape or len({*keys}) != len(keys):
            raise ValueError(f"rows of {width} numbers do not fit those of {self.width}")
        if where.size and not 0 <= where.min() <= where.max() < len(keys) * width:
            raise ValueError("a number is in no row")
        rows = self.places(keys)
        if where.size:
            np.add.at(
                self._table.reshape(-1), rows[where // width] * width + where % width, numbers
            )

    def sparse(self) -> tuple[list[str], bytes, bytes, int]:
        """The keys, the positions of all numbers but zeros (<u4), these (<f8), and the width."""
        flat = self.table.reshape(-1)
        positions = np.flatnonzero(flat).astype("<u4")
        return self.keys, positions.tobytes(), flat[positions].tobytes(), self.width


@dataclass(frozen=True)
class Slice:
    """The records with one value of a feature. NaN stands for a metric that has no number.

    value: as text. auc: by THRESHOLDS; NaN where all labels are alike. calibration: the sum of
    predictions by that of labels.
    """

    feature: str
    value: str
    records: int
    auc: float
    log_loss: float
    calibration: float
    label_mean: float


class SliceSums:
    """The sums of a metric of slices, which are its states.

    by: names of the features. from_logits: predictions are logits. min_records: of a slice that is
    told.
    """

    keeps_slices = True
    """Its states are rows by key, which workers add to one another's."""

    by: tuple[str, ...]
    from_logits: bool
    min_records: int
    rows: KeyedRows

    def begin(self, by: Sequence[str], min_records: int, *, from_logits: bool) -> None:
        """Take the arguments of the metric. Raises ValueError for what they cannot be."""
        if isinstance(by, str) or not by or not all(isinstance(each, str) for each in by):
            raise ValueError(f"Slices(by={by!r}): give a list of the names of features")
        if len({*by}) != len(by):
            raise ValueError(f"Slices(by={by!r}): a feature is named twice")
        if min_records < 1:
            raise ValueError(f"Slices(min_records={min_records}) must be at least 1")
        self.by, self.from_logits, self.min_records = tuple(by), from_logits, min_records
        self.rows = KeyedRows(WIDTH)

    def reset_state(self) -> None:
        """Forget all records."""
        self.rows = KeyedRows(WIDTH)

    def add(self, labels: Floats, predictions: Floats, features: Mapping[str, Any]) -> None:
        """Add a batch.

        labels, predictions: float64 [batch]. features: those of `by`, [batch] or [batch, 1] of
        integers, bools or text. Raises ValueError for others, for labels that are not 0 or 1, and
        for predictions that are no chances.
        """
        if len(labels) != len(predictions):
            raise ValueError(f"{len(labels)} labels came with {len(predictions)} predictions")
        if not np.isin(labels, (0, 1)).all():
            raise ValueError("Slices needs labels 0 or 1")
        if self.from_logits:
            with np.errstate(over="ignore"):
                predictions = 1 / (1 + np.exp(-predictions))
        wrong = predictions[~((predictions >= 0) & (predictions <= 1))]
        if wrong.size and not np.isnan(wrong).all():
            raise ValueError(
                f"Slices needs predictions between 0 and 1, and there is {np.nanmax(np.abs(wrong))}"
                ": give Slices(from_logits=True) if they are logits"
            )
        chance = np.clip(predictions, EPSILON, 1 - EPSILON)
        other = np.clip(1 - predictions, EPSILON, 1 - EPSILON)
        losses = -labels * np.log(chance) - (1 - labels) * np.log(other)
        sums = np.stack([np.ones_like(labels), labels, predictions, losses], axis=1)
        # float32, as Keras has them: a prediction may be at a threshold.
        scaled = np.float32(np.nan_to_num(predictions)) * np.float32(THRESHOLDS - 1)
        bucket = np.maximum(np.ceil(scaled) - 1, 0).astype(np.int64)
        columns = SUMS + bucket + THRESHOLDS * (labels == 1)
        for position, name in enumerate(self.by):
            values, inverse = np.unique(_values(features[name], name), return_inverse=True)
            if len(inverse) != len(labels):
                raise ValueError(
                    f"Slices: {name!r} has {len(inverse)} values in {len(labels)} records"
                )
            places = self.rows.places([f"{position}={_text(value)}" for value in values.tolist()])
            inverse = inverse.reshape(-1)
            table = self.rows.table
            if len(values):
                order = np.argsort(inverse, kind="stable")
                starts = np.searchsorted(inverse[order], np.arange(len(values)))
                table[places, :SUMS] += np.add.reduceat(sums[order], starts)
                np.add.at(table.reshape(-1), places[inverse] * WIDTH + columns, 1.0)

    def slices(self) -> list[Slice]:
        """The slices with enough records: the lowest AUC first, those without one last."""
        table = self.rows.table
        enough = np.flatnonzero(table[:, 0] >= self.min_records).tolist()
        keys = self.rows.keys
        found = [self._slice(keys[row], table[row]) for row in enough]
        return sorted(found, key=_rank)

    def _slice(self, key: str, row: Floats) -> Slice:
        position, _, value = key.partition("=")
        records, labels, predictions, losses = row[:SUMS].tolist()
        return Slice(
            self.by[int(position)],
            value,
            round(records),
            _auc(row[SUMS:].reshape(2, THRESHOLDS)) if not math.isnan(predictions) else math.nan,
            losses / records,
            predictions / labels if labels else math.nan,
            labels / records,
        )

    def result(self) -> float:
        """The AUC of the worst slice; NaN where none has one."""
        found = self.slices()
        return found[0].auc if found else math.nan


def _rank(of: Slice) -> tuple[float, int, str]:
    return (2.0 if math.isnan(of.auc) else of.auc, -of.records, of.value)


def _auc(buckets: Floats) -> float:
    """The area by the trapezoid rule; NaN where all labels are alike.

    buckets: of each label, how many records have their prediction in which.
    """
    negative, positive = (np.append(np.cumsum(each[::-1])[::-1], 0) for each in buckets)
    if not negative[0] or not positive[0]:
        return math.nan
    x, y = negative[:THRESHOLDS] / negative[0], positive[:THRESHOLDS] / positive[0]
    return float(np.sum((x[:-1] - x[1:]) * (y[:-1] + y[1:]) / 2))


def _values(values: Any, name: str) -> npt.NDArray[Any]:
    found = np.asarray(values)
    if found.ndim not in (1, 2) or (found.ndim == 2 and found.shape[1] != 1):
        raise ValueError(
            f"Slices: {name!r} has the shape {found.shape}: it needs one value a record, [batch] "
            "or [batch, 1]"
        )
    found = found.reshape(-1)
    if found.dtype.kind == "O" and all(isinstance(each, str | bytes) for each in found):
        words = [each.encode() if isinstance(each, str) else each for each in found]
        found = np.array(words, np.bytes_)
    if found.dtype.kind not in "biuSUT":
        raise ValueError(
            f"Slices: {name!r} has {found.dtype.name} values; slices are by integers, bools or "
            "strings: make bins of numbers in feed"
        )
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
