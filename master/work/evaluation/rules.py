"""The rules of the user's callbacks: what an evaluation leads to, decided here alone.

Owns the rules and their decisions, pure functions of the evaluations so far, so that they are
the same however many workers there are: whether training ends, whether a checkpoint is taken
or the model exported, how often the learning rate was reduced. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import Error
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.proto import shoal_pb2 as pb


class UnknownMetricError(Error):
    """A rule watches a metric that the evaluation does not give; the text names both."""


def _value(result: EvaluationResult, monitor: str, callback: str) -> float:
    if monitor not in result.metrics:
        raise UnknownMetricError(
            f"callbacks(): {callback} monitors {monitor!r}, but the evaluation gives "
            f"{', '.join(sorted(result.metrics))}"
        )
    # Outputs of NaN have a good share of right classes, by Keras's metrics: all count as class 0.
    if math.isnan(result.metrics.get("loss", 0.0)):
        return math.nan
    return result.metrics[monitor]


def _better(value: float, than: float, *, maximize: bool, min_delta: float) -> bool:
    if not math.isfinite(value):
        return False
    return value - min_delta > than if maximize else value + min_delta < than


@dataclass(frozen=True)
class Best:
    """Which evaluation is the best: that of the highest or lowest value of `monitor`.

    monitor: empty if every evaluation counts as better than those before.
    callback: its name, for errors.
    """

    callback: str
    monitor: str = ""
    maximize: bool = False
    min_delta: float = 0.0

    @classmethod
    def from_message(cls, callback: str, message: pb.BestRule) -> Best:
        """The rule as the describing worker sent it."""
        return cls(callback, message.monitor, message.maximize, message.min_delta)

    def better(self, value: float, than: float) -> bool:
        """True if a value counts as an improvement; one that is not finite never does."""
        return _better(value, than, maximize=self.maximize, min_delta=self.min_delta)

    @property
    def worst(self) -> float:
        """A value that every number is better than."""
        return -math.inf if self.maximize else math.inf

    def value(self, result: EvaluationResult) -> float:
        """Return the metric that the rule watches. Raises UnknownMetricError."""
        return _value(result, self.monitor, self.callback)

    def position(self, results: Sequence[EvaluationResult]) -> int | None:
        """The position of the best of these evaluations; None if there is none.

        Raises UnknownMetricError.
        """
        if not self.monitor:
            return len(results) - 1 if results else None
        best, found = self.worst, None
        for position, result in enumerate(results):
            value = self.value(result)
            if self.better(value, best):
                best, found = value, position
        return found


@dataclass(frozen=True)
class Plateau:
    """The rule that reduces the rate: as Keras's ReduceLROnPlateau, counted by evaluations."""

    best: Best
    patience: int
    cooldown: int = 0

    def reductions(self, results: Sequence[EvaluationResult]) -> int:
        """Count the reductions of the rate after these evaluations. Raises UnknownMetricError."""
        best, count, wait, cooling = self.best.worst, 0, 0, 0
        for result in results:
            value = self.best.value(result)
            if cooling:
                cooling, wait = cooling - 1, 0
            if self.best.better(value, best):
                best, wait = value, 0
            elif not cooling:
                wait += 1
                if wait >= self.patience:
                    count, cooling, wait = count + 1, self.cooldown, 0
        return count


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
        return _better(value, than, maximize=self.maximize, min_delta=self.min_delta)

    def reason(self, results: Sequence[EvaluationResult]) -> str | None:
        """Return the reason why training ends after these evaluations; None while it goes on.

        Raises UnknownMetricError.
        """
        best = -math.inf if self.maximize else math.inf
        wait = 0
        considered = [each for each in results if each.epoch >= self.start_from_epoch]
        for position, result in enumerate(considered):
            value = _value(result, self.monitor, "EarlyStopping")
            wait += 1
            if self._better(value, best):
                best = value
                # An improvement below the baseline lets the patience run on, but ends nothing.
                if self.baseline is None or self._better(value, self.baseline):
                    wait = 0
            elif wait >= self.patience and position:
                return (
                    f"{self.monitor} has not improved on {best:.6g} in {wait} evaluations "
                    f"(EarlyStopping, patience {self.patience})"
                )
        return None


@dataclass(frozen=True)
class Mlflow:
    """The MLflow run of the job, as shoal.callbacks.MLflow sets it; empty: its own settings."""

    tracking_uri: str
    experiment: str
    run_name: str
    tags: dict[str, str]

    @classmethod
    def from_message(cls, message: pb.MlflowRun) -> Mlflow:
        """Return the settings that the describing worker found in callbacks()."""
        return cls(message.tracking_uri, message.experiment, message.run_name, dict(message.tags))


@dataclass(frozen=True)
class Rules:
    """max_steps: minibatches of the whole training; 0 for no limit.

    checkpoint, export: which evaluation is to be followed by one. mlflow: where the job is
    recorded.
    """

    max_steps: int = 0
    early_stopping: tuple[EarlyStopping, ...] = ()
    checkpoint: Best | None = None
    export: Best | None = None
    plateau: Plateau | None = None
    mlflow: Mlflow | None = None

    @classmethod
    def from_message(cls, message: pb.TrainingRules) -> Rules:
        """Return the rules that the describing worker found in callbacks()."""
        plateau = None
        if message.HasField("plateau"):
            best = Best.from_message("ReduceLROnPlateau", message.plateau.best)
            plateau = Plateau(best, message.plateau.patience, message.plateau.cooldown)
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
            Best.from_message("Checkpoint", message.checkpoint)
            if message.HasField("checkpoint")
            else None,
            Best.from_message("ExportBest", message.export) if message.HasField("export") else None,
            plateau,
            Mlflow.from_message(message.mlflow) if message.HasField("mlflow") else None,
        )

    @property
    def watch(self) -> bool:
        """True if any of the rules looks at evaluations."""
        return bool(self.early_stopping or self.checkpoint or self.export or self.plateau)

    def reason(self, results: Sequence[EvaluationResult]) -> str | None:
        """The reason why training ends after these evaluations. Raises UnknownMetricError."""
        reasons = (rule.reason(results) for rule in self.early_stopping)
        return next((reason for reason in reasons if reason is not None), None)
