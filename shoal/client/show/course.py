"""The memory of a display about a job's course: its speed, and the best evaluations.

Knows no clock of its own and draws nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from shoal.base.words import duration

if TYPE_CHECKING:
    from shoal.proto import shoal_pb2 as pb

_LARGER = frozenset(
    {"auc", "acc", "accuracy", "precision", "recall", "ndcg", "mrr", "map", "hit", "hits", "f1"}
)
_SMALLER = frozenset(
    {"loss", "logloss", "error", "mse", "mae", "rmse", "mape", "crossentropy", "entropy"}
)

LEAST_SECONDS = 3.0
"""Of training seen, before the time that is left is told."""


def larger_is_better(metric: str) -> bool | None:
    """By the words in a metric's name: `logits_accuracy` is; None if the name does not tell."""
    words = set(re.findall(r"[a-z]+\d?", metric.lower()))
    if words & _SMALLER:
        return False
    return True if words & _LARGER else None


class Best:
    """The best value of each metric so far whose direction its name tells, and its version."""

    def __init__(self, evaluations: Iterable[tuple[int, Mapping[str, float | None]]] = ()) -> None:
        self._values: dict[str, tuple[float, int]] = {}
        for version, metrics in evaluations:
            self.add(version, metrics)

    def add(self, version: int, metrics: Mapping[str, float | None]) -> None:
        """The metrics of an evaluation at a version of the model."""
        for name, value in metrics.items():
            larger = larger_is_better(name)
            if value is None or larger is None or value != value:
                continue
            before = self._values.get(name)
            if before is None or (value > before[0] if larger else value < before[0]):
                self._values[name] = value, version

    def of(self, name: str) -> tuple[float, int] | None:
        """The best value of a metric and its version; None if it is not known which is."""
        return self._values.get(name)

    def better(self, name: str, value: float | None) -> str:
        """` (best 0.7610 at version 120)` if there was a better value than this one, else empty."""
        best = self._values.get(name)
        if best is None or value is None or f"{best[0]:.4f}" == f"{value:.4f}":
            return ""
        return f" (best {best[0]:.4f} at version {best[1]:,})"


class Course:
    """A job's course as the statuses tell it."""

    def __init__(self) -> None:
        self.best = Best()
        self.loss: float | None = None
        self._began: tuple[float, int] | None = None
        self._left: float | None = None

    def update(self, status: pb.JobStatus, now: float) -> None:
        """now: in seconds, of any clock that only grows."""
        if status.has_loss and (status.state == "training" or self.loss is None):
            self.loss = status.loss
        if status.HasField("last_evaluation"):
            self.best.add(status.last_evaluation.version, status.last_evaluation.metrics)
        left = status.ledger.pending or max(0, status.records_total - status.records_done)
        if status.state not in ("training", "evaluating", "predicting") or not left:
            self._began = self._left = None
            return
        if self._began is None or left > self._began[1]:
            self._began = now, left
        began, left_then = self._began
        done = left_then - left
        enough = done > 0 and now - began >= LEAST_SECONDS
        self._left = left * (now - began) / done if enough else None

    @property
    def time_left(self) -> str:
        """`about 3 min`, by the pace since this display saw the first record; "" if unknown."""
        return "" if self._left is None else f"about {duration(self._left)}"
