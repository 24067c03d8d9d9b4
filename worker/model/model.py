"""The user's model, registered with the servers, and the sequence of a step.

Owns the sequence of one step: ids, pull, compute, push. The engine finds the ids and computes, and
the callers choose the batches.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.checkpoints.saved import dense_value
from shoal.config.job import JobConfig
from shoal.worker.code.module import UserModule
from shoal.worker.engines import chosen_engine
from shoal.worker.engines.engine import StepInputs
from shoal.worker.input.batch import Batch
from shoal.worker.model.built import ToBuild, calling
from shoal.worker.model.callbacks import Callbacks
from shoal.worker.model.embeddings.table_options import check_lifecycle, chosen_options
from shoal.worker.model.learning import accumulation
from shoal.worker.model.learning.finite import FiniteCheck
from shoal.worker.model.refusals import Refusals
from shoal.worker.model.specification import model_spec
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.in_flight import NOTHING, Missing
from shoal.worker.servers.pulling import Pulled
from shoal.worker.servers.pushing import Push

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A batch with all that its training step takes."""

    batch: Batch
    pulled: Pulled
    inputs: StepInputs


@dataclass(frozen=True)
class Predicted:
    """A batch with the outputs that a step trained on, and the losses of layers."""

    batch: Batch
    outputs: Any
    of_layers: Any


class ServedModel:
    """A built model whose values are held by the servers.

    tables: by name, in their order on the servers.
    servers: that hold the values, or what stands for them (servers/local.py).
    check_lifecycle: raises UserError if its tables cannot be trained with their options.
    file: name of the user's file, for messages.
    steps: of the engine, what computes.
    """

    def __init__(
        self,
        config: JobConfig,
        module: UserModule,
        servers: ServerGroup,
        features_spec: Any,
        labels_spec: Any,
        worker: int,
        progress: Progress,
        incarnation: int = 0,
        weights_spec: Any = None,
    ) -> None:
        """Build the model and trace which ids it looks up.

        worker, incarnation: whose random numbers are drawn.
        features_spec, labels_spec: of a batch of what feed gives; labels_spec is None
            in prediction. features_spec may be None for a functional model, which tells.
        weights_spec: of the records' weights; None if feed gives none.
        progress: counts the seconds of each stage of a step.
        Raises UserError for a model shoal cannot serve, UserCodeError if it raises.
        """
        self.config = config
        self.module = module
        self.file = module.path.name
        self.servers = servers
        self._stage = progress.stage
        self._training_pull = "pull"
        self._numbers = itertools.count(1)
        self._modulate_rate = config.lr_staleness_modulation
        self.embedding_threshold = config.embedding_threshold
        self._refusals = Refusals()
        engine = chosen_engine()
        self.built = built = engine.build(
            ToBuild(
                *(module, config, self._refusals, features_spec, weights_spec, worker, incarnation)
            )
        )
        self.model, self.module = built.model, built.module
        self.features_spec = built.features_spec
        self.optimizers = built.optimizers
        self.accumulated = accumulation.minibatches_to_push(config, self.optimizers.accumulated)
        self.loss = built.loss
        self.callbacks = Callbacks(self.module, self.optimizers)
        self._ids = built.ids
        self.tables = built.tables
        self.trainable, self.state = built.trainable, built.state
        options = chosen_options(self.tables, config.table)
        self.check_lifecycle = partial(check_lifecycle, self.tables, options, config)
        if config.command == "train":
            self.check_lifecycle()
        self.spec = model_spec(
            self.tables,
            options=options,
            optimizers=self.optimizers,
            trainable=self.trainable.manifest,
            non_trainable=self.state.manifest,
            given=not config.begins_with,
        )
        self._finite = FiniteCheck(config.nonfinite_gradients, self.spec, worker)
        self.steps = engine.steps(
            built,
            self._refusals,
            labels_spec,
            weights_spec,
            clip_at_once=self.accumulated == 1,
            keeps_predictions=config.progressive_steps > 0,
        )

    def calling(self, what: str, labels: Any = None) -> AbstractContextManager[None]:
        """A context in which the model is called; see `calling` of built.py."""
        return calling(what, self._refusals, self.model, self.module, labels)

    # ------------------------------------------------------------ set-up

    def check_features(self, features_spec: Any, feed: str) -> None:
        """Other data give the features that the model takes.

        features_spec: of a batch of them. feed: the function that gives them, and of which data.
        Raises UserError, or UserCodeError where only calling the model tells.
        """
        chosen_engine().check_features(self.model, features_spec, feed)
        if isinstance(features_spec, dict) and features_spec.keys() != self.features_spec.keys():
            with self.calling(f"{feed} gives other features than for training: calling the model"):
                self.steps.trace_prediction(features_spec)

    def register(self, dense: dict[str, npt.NDArray[np.float32]] | None = None) -> None:
        """Register with the servers; the first worker's dense values are the model's.

        dense: values by variable name of a checkpoint, instead of the initial ones.
        Raises UserError if a name or shape does not fit.
        """
        if dense is not None:
            for variable in (*self.trainable.variables, *self.state.variables):
                shape = tuple(variable.shape)
                variable.assign(dense_value(dense, variable.path, shape, "checkpoint"))
        values = (np.array(each.read()) for each in (self.trainable, self.state))
        self.servers.register(self.spec, *values)

    def given_rows(self) -> Iterator[tuple[int, Iterator[tuple[Int64, Float32]]]]:
        """The tables whose first rows the user's code gives, by position, and those rows.

        In pieces, ids int64 [n] and rows float32 [n, dim]. Raises UserError or UserCodeError as
        their code does, and for rows that no table can begin with.
        """
        for position, table in enumerate(self.tables.values()):
            if table.first_rows is not None:
                yield position, table.first_rows()

    def let_go(self) -> None:
        """The servers have the rows that the user's code gives: hold them no longer."""
        for table in self.tables.values():
            table.let_go()

    # ------------------------------------------------------------ ids and pull

    def pull(self, features: Any, *, training: bool) -> Pulled:
        """The rows that `features` need, and newer dense values."""
        what = f"reading the ids from what {self.module.describe(self.module.feed_name)} gave"
        with self._stage("ids"), self.calling(what):
            calls = self._ids.by_table(features)
        with self._stage(self._training_pull if training else "pull"):
            return self.servers.pull(calls, training=training)

    # ------------------------------------------------------------ training

    def wait_for(self, update: int) -> None:
        """Let pulls for training wait until the servers have applied this update of --sync."""
        self.servers.pulls.after = update
        self._training_pull = "wait for update" if update else "pull"

    def train_batch(self, batch: Batch, task: int) -> float:
        """One step on `batch`, start to end. Returns the loss; raises as `compute`."""
        loss, push = self.compute(self.prepare(batch), task)
        if not push.left_out:
            self.servers.push(push)
        return loss

    def prepare(self, batch: Batch) -> Prepared:
        """Pull what `batch` needs for its step."""
        pulled = self.pull(batch.features, training=True)
        return Prepared(batch, pulled, self.steps.inputs(pulled))

    def compute(
        self, prepared: Prepared, task: int, missing: Missing = NOTHING
    ) -> tuple[float, Push]:
        """The loss of a prepared batch and the push of its gradients.

        missing: the own pushes before it that the values pulled do not have. With more
        than one batch to a push, the gradients are not clipped yet.
        Raises UserError if loss or gradients are not finite and are not to be left out,
        UserCodeError if the model raises.
        """
        batch, pulled = prepared.batch, prepared.pulled
        with (
            self._stage("step"),
            self.calling(f"the training step of {self.module.path.name}", batch.labels),
        ):
            loss, dense, change, tables = self.steps.train(batch, prepared.inputs, missing.change)
        rate, table_rates = self.callbacks.learning_rates(
            missing.version(pulled.versions), self.accumulated
        )
        push = Push(
            tables={
                table: (pulled.ids[table].unique, gradient)
                for table, (name, gradient) in enumerate(zip(self.tables, tables, strict=True))
                if pulled.ids[table].unique.size and not self.tables[name].frozen
            },
            dense=(dense, change),
            learning_rate=rate,
            table_rates=table_rates,
            versions=pulled.versions,
            times=pulled.times,
            applied=pulled.applied,
            task=task,
            records_done=batch.records_done,
            modulate_rate=self._modulate_rate,
            number=next(self._numbers),
            event_time=batch.event_time,
        )
        push = self._finite.checked(loss, push)
        if not push.left_out:
            self.callbacks.step(loss)
        return loss, push

    def predicted(self, batch: Batch, push: Push) -> tuple[Predicted, ...]:
        """The predictions of the step that `compute` did last, of every N-th that is pushed.

        They were made before the model trained on the batch. N: of --progressive-steps.
        """
        every = self.config.progressive_steps
        if not every or push.number % every or push.left_out:
            return ()
        return (Predicted(batch, *self.steps.predictions()),)

    def average(self, pushes: Sequence[Push]) -> Push:
        """One push of `accumulated` minibatches' gradients, or of the last few of a task."""
        dims = [table.dim for table in self.tables.values()]
        return accumulation.average(pushes, dims, self.steps.clip)

    # ------------------------------------------------------------ evaluation, prediction

    def pull_inputs(self, features: Any) -> StepInputs:
        """Pull the servers' present values that the model's outputs for `features` need."""
        return self.steps.inputs(self.pull(features, training=False))

    def predict_batch(self, features: Any, inputs: StepInputs | None = None) -> Any:
        """The model's outputs for `features`.

        inputs: as `pull_inputs` gave them for these; None: they are pulled now.
        """
        return self.evaluate_batch(features, inputs)[0]

    def evaluate_batch(self, features: Any, inputs: StepInputs | None = None) -> tuple[Any, Any]:
        """Return `predict_batch`'s outputs, and the layers' part of the loss, a float32 number."""
        if inputs is None:
            inputs = self.pull_inputs(features)
        with self.calling(f"calling the model of {self.module.path.name}"):
            return self.steps.predict(features, inputs)

    def predictions_spec(self) -> Any:
        """The spec of what `predict_batch` gives."""
        return self.steps.predictions_spec()

    def pull_dense(self) -> None:
        """Set the model's own dense variables from the servers' present values."""
        none = [[np.zeros(0, np.int64)] for _ in self.tables]
        pulled = self.servers.pull(none, training=False)
        self.trainable.assign(pulled.trainable)
        self.state.assign(pulled.state)
