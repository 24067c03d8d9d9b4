"""Metrics, to which PyTorch's predictions are added."""

from __future__ import annotations

from typing import Any

from shoal.base.nested import leaves, mapped
from shoal.errors import UserError
from shoal.torch.metrics import FunctionMetric
from shoal.worker.attribution import attributing
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.code.of_torchmetrics import is_collection, is_of_torchmetrics
from shoal.worker.engines.engine import StepInputs
from shoal.worker.engines.torch.learning.argument_order import (
    first_two,
    labels_first,
    ordered,
)
from shoal.worker.engines.torch.learning.losses import LossOfStep, of_one_rank
from shoal.worker.engines.torch.library_metrics import LibraryMetric
from shoal.worker.engines.torch.steps import EagerSteps
from shoal.worker.input.batch import Batch
from shoal.worker.model.evaluation import LOSS, Evaluation, by_features
from shoal.worker.model.model import ServedModel


class Evaluator(Evaluation):
    """The metrics of one worker."""

    kinds = (
        "a metric of shoal.torch.metrics or torchmetrics, or a function of labels and predictions"
    )

    def __init__(self, model: ServedModel, module: UserModule) -> None:
        """Raises UserError if eval_metrics_fn() gives no metrics."""
        self._model = model
        self._of_step = isinstance(model.loss, LossOfStep)
        self._loss = FunctionMetric(_no_loss if self._of_step else model.loss, LOSS)
        # The weights of records are about the loss only.
        self._losses: list[Any] = [self._loss]
        self._losses += [FunctionMetric(each, name) for name, each in model.loss.named().items()]
        super().__init__(module, self._losses)
        self._unproven = [
            each
            for each in self._metrics
            if isinstance(each, LibraryMetric) or not type(each).__module__.startswith("shoal.")
        ]

    def _checked(self, name: str, metric: Any) -> Any:
        if is_collection(metric):
            raise UserError(
                f"{self._what}: metric {name!r} is a MetricCollection: give each of its metrics by "
                "a name, as in {**collection}"
            )
        if is_of_torchmetrics(metric):
            metric = LibraryMetric(metric, name, self._what)
        return super()._checked(name, metric)

    def _is_metric(self, metric: Any) -> bool:
        if type(metric).__module__.startswith(("keras.", "torchmetrics.", "torcheval.")):
            raise UserError(
                f"{self._what}: {type(metric).__name__} is of another library: take one of "
                "shoal.torch.metrics, or give a function of labels and predictions"
            )
        update = getattr(metric, "update_state", None)
        if isinstance(metric, type) or not callable(update):
            return False
        if labels_first(update) is False:
            names = first_two(update)
            raise UserError(
                f"{self._what}: update_state() of {type(metric).__name__} takes {names[0]} and "
                f"{names[1]}, and is called (labels, predictions): exchange them"
            )
        return True

    def _of_function(self, function: Any, name: str) -> FunctionMetric:
        return FunctionMetric(ordered(function, f"{self._what}: metric {name!r}"), name)

    def build(self, labels_spec: Any, weights_spec: Any = None) -> None:
        """Nothing: states are made with the metrics."""

    def add(self, batch: Batch, inputs: StepInputs | None = None) -> None:
        """Evaluate a batch."""
        if inputs is None:
            inputs = self._model.pull_inputs(batch.features)
        predictions, of_layers = self._model.evaluate_batch(batch.features, inputs)
        if self._of_step:
            self._loss.add(self._loss_of_step(batch, inputs) * batch.size, batch.size)
        self.add_predictions(batch, predictions, of_layers)

    def add_predictions(self, batch: Batch, predictions: Any, of_layers: Any) -> None:
        """See Evaluation."""
        del of_layers  # 0: modules have none
        with user_code(f"the metrics of {self._module.path.name}"):
            with attributing(None):
                self._check_outputs(predictions)
            self._prove_additive(batch.labels, predictions)
            size = len(leaves(predictions)[0])
            weights = () if batch.weights is None else (batch.weights,)
            for metric in self._metrics:
                if metric in self._losses:
                    if not (self._of_step and metric is self._loss):
                        metric.update_state(batch.labels, predictions, *weights, size=size)
                elif not by_features(metric):
                    self._update_one(metric, batch.labels, predictions)
            with attributing(None):
                self._update_groups(batch, predictions)

    def _loss_of_step(self, batch: Batch, inputs: StepInputs) -> float:
        """The loss of a batch that training_step computes."""
        steps = self._model.steps
        assert isinstance(steps, EagerSteps)
        with self._model.calling(f"the loss of {self._model.file}", batch.labels):
            return steps.loss(batch, inputs)

    def _update_one(self, metric: Any, labels: Any, predictions: Any) -> None:
        labels, predictions = self._parts(metric, labels, predictions)
        try:
            if isinstance(metric, FunctionMetric):
                labels, predictions = of_one_rank(labels, predictions)
                metric.update_state(labels, predictions, size=len(leaves(predictions)[0]))
            else:
                metric.update_state(labels, predictions)
        except ValueError as error:
            raise UserError(f"{self._what}: metric {metric.name!r}: {error}") from error

    def _prove_additive(self, labels: Any, predictions: Any) -> None:
        """Raises UserError for a metric of the user's whose states cannot be added up.

        Its state after two halves of a batch must be the sum of its states after each.
        """
        size = len(leaves(predictions)[0])
        if size < 2 or not self._unproven:
            return
        halves = [
            mapped(lambda each, part=part: each[part], (labels, predictions))
            for part in (slice(0, size // 2), slice(size // 2, size))
        ]
        for metric in self._unproven:
            self._check_adds_up(metric, halves)
        self._unproven = []


def _no_loss(*_: Any) -> Any:
    raise AssertionError("the loss of training_step is added as a number")
