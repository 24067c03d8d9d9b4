"""When training ends before its data: rules of the user's callbacks, decided here alone.

Owns the rules and their decision, a pure function of the evaluations so far, so that it is
the same however many workers there are. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.master.evaluation import EvaluationResult
from shoal.proto import shoal_pb2 as pb


class UnknownMetricError(Exception):
    """A rule watches a metric that the evaluation does not give; the text names both."""


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when `monitor` has not improved for `patience` evaluations, as Keras counts them."""

    monitor: str
    maximize: bool
    min_delta: float = 0.0
    patience: int = 0
    baseline: float | None = None
    start_from_epoch: int = 0

    def _better(self, value: float, than: float) -> bool:
        if self.maximize:
            return value - self.min_delta > than
        return value + self.min_delta < than

    def reason(self, results: Sequence[EvaluationResult]) -> str | None:
        """Why training ends after these evaluations; None while it goes on.

        Raises UnknownMetricError.
        """
        best = -math.inf if self.maximize else math.inf
        wait = 0
        considered = [each for each in results if each.epoch >= self.start_from_epoch]
        for position, result in enumerate(considered):
            if self.monitor not in result.metrics:
                raise UnknownMetricError(
                    f"callbacks(): EarlyStopping monitors {self.monitor!r}, but the evaluation "
                    f"gives {', '.join(sorted(result.metrics))}"
                )
            value = result.metrics[self.monitor]
            wait += 1
            if self._better(value, best):
                best = value
                if self.baseline is None or self._better(value, self.baseline):
                    wait = 0
            if wait and wait >= self.patience and position:
                return (
                    f"{self.monitor} has not improved on {best:.6g} in {wait} evaluations "
                    f"(EarlyStopping, patience {self.patience})"
                )
        return None


@dataclass(frozen=True)
class Rules:
    """max_steps: minibatches of the whole training; 0 for no limit."""

    max_steps: int = 0
    early_stopping: tuple[EarlyStopping, ...] = ()

    @classmethod
    def from_message(cls, message: pb.TrainingRules) -> Rules:
        """What the describing worker found in callbacks()."""
        return cls(
            message.max_steps,
            tuple(
                EarlyStopping(
                    each.monitor,
                    each.maximize,
                    each.min_delta,
                    each.patience,
                    each.baseline if each.HasField("baseline") else None,
                    each.start_from_epoch,
                )
                for each in message.early_stopping
            ),
        )

    def reason(self, results: Sequence[EvaluationResult]) -> str | None:
        """Why training ends after these evaluations. Raises UnknownMetricError."""
        reasons = (rule.reason(results) for rule in self.early_stopping)
        return next((reason for reason in reasons if reason is not None), None)
