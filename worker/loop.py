"""The worker's loop: lease a task, do it, report, until the job is finished.

Owns dispatch by kind of task and what a failure becomes. How each kind is done is
in the modules around it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator
from contextlib import closing

from shoal.checkpoints.outputs import check_output, try_output, written
from shoal.checkpoints.saved import open_saved
from shoal.config.conditions import check_metrics
from shoal.config.job import JobConfig
from shoal.errors import (
    GoneError,
    StorageAwayError,
    StorageError,
    UserCodeError,
    UserError,
    without_secrets,
)
from shoal.files.patience import Patience
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import ServerAwayError, WireError
from shoal.worker.attribution import attributed, attributing
from shoal.worker.code.module import UserModule, summary
from shoal.worker.engines import chosen_engine
from shoal.worker.engines.engine import InputPipeline, StepInputs
from shoal.worker.input import modes
from shoal.worker.input.batch import Batch
from shoal.worker.input.data import DATA, JobData
from shoal.worker.model.evaluation import Evaluation
from shoal.worker.model.lookahead import pulled_ahead
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs import export
from shoal.worker.outputs.first_rows import write_first_rows
from shoal.worker.outputs.live_model import write_live_model
from shoal.worker.outputs.prediction import PredictionWriter
from shoal.worker.outputs.prediction_output import begin_output, finish_output
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.group import ServerGroup
from shoal.worker.tasks import TaskClient, TrainingTasks
from shoal.worker.training.pipeline import TaskError, TrainingPipeline
from shoal.worker.training.staleness import StalenessBound
from shoal.worker.training.synchronous import SynchronousTraining

logger = logging.getLogger(__name__)

_TO_MEND = (pb.NOT_FINITE, pb.CHECKPOINT_FAILED)
"""Refusals of a server that no other worker would be spared."""

_MODES = {
    pb.TRAIN: modes.TRAINING,
    pb.EVALUATE: modes.EVALUATION,
    pb.PREDICT: modes.PREDICTION,
}
"""Kind of task -> the mode of the data whose records it is about."""


def failure_of(error: Exception) -> pb.Failure:
    """An exception as the master is told of it."""
    line, server = "", None
    if isinstance(error, StorageAwayError):
        kind, message, text = pb.STORAGE, str(error), ""
    elif isinstance(error, UserError):
        kind, message, text = pb.USER_ERROR, str(error), ""
    elif isinstance(error, StorageError):
        kind, message, text = pb.ENVIRONMENT, str(error), ""
    elif isinstance(error, UserCodeError):
        kind, message, text = pb.USER_CODE, error.message, error.traceback
        if error.__cause__ is not None:
            line = without_secrets(summary(error.__cause__))
    elif isinstance(error, WireError) and error.kind in _TO_MEND:
        kind, message, text = pb.USER_ERROR, error.message, ""
    elif isinstance(error, ServerAwayError):
        kind, message, text, server = pb.SERVER_AWAY, str(error), "", error.server
    else:
        kind, text = pb.INTERNAL, without_secrets(traceback.format_exc())
        message = without_secrets(f"{type(error).__name__}: {error}")
    line = line or (message.splitlines() or [""])[0]
    return pb.Failure(
        kind=kind,
        message=message,
        traceback=text,
        range=attributed(error),
        error=line,
        server=server,
        gone=error.records if isinstance(error, GoneError) else 0,
    )


class Worker:
    """One worker: the model, its data, and the tasks it gets."""

    def __init__(
        self,
        config: JobConfig,
        module: UserModule,
        master: Connection,
        servers: ServerGroup,
        progress: Progress,
        heartbeat: Heartbeat,
        worker: int,
        incarnation: int,
    ) -> None:
        """Build the model and register it with the servers, once these have what it brings.

        Raises UserError or UserCodeError for what is the user's to mend.
        """
        self._config = config
        self._module = module
        self._servers = servers
        self._progress = progress
        self._worker = worker
        self._data_known = servers.data_known
        self._patience = Patience(
            config.storage_patience_seconds,
            progress,
            lambda trouble: trouble.may_be_mistake and not self._data_known,
        )
        self._client = TaskClient(master, worker, incarnation, servers, progress, heartbeat)
        self._data = JobData(config, module, progress, self._patience, self._client.index_of)
        described = self._data.pipeline(self._data.mode)
        self._model = ServedModel(
            config,
            module,
            servers,
            described.features_spec,
            described.labels_spec,
            worker,
            progress,
            incarnation,
            described.weights_spec,
        )
        if config.restore_from:
            # The servers read it. What its manifest tells is told before they begin.
            saved = open_saved(config.restore_from)
            for name, table in self._model.tables.items():
                saved.check_table(name, table.dim)
        # The rows that servers begin with are written with the first task, by one worker.
        self._brings = not config.begins_with and any(True for _ in self._model.given_rows())
        if not self._brings:
            self._model.register()
            self._model.let_go()
        self._staleness = (
            StalenessBound(master, worker, incarnation, config.staleness_bound, progress)
            if config.staleness_bound >= 0
            else None
        )
        self._tasks = TrainingTasks(self._client, self._data, self._model, self._evaluator_ready)
        self._training = (
            SynchronousTraining(self._model, master, worker, incarnation, progress, self._tasks)
            if config.sync
            else TrainingPipeline(
                self._model, config.pipeline_depth, progress, self._tasks, self._staleness
            )
        )
        self._evaluator: Evaluation | None = None
        self._writer: PredictionWriter | None = None
        self._work: dict[pb.TaskKind, Callable[[pb.Task, pb.ReportTaskRequest], None]] = {
            pb.DESCRIBE_DATA: self._describe,
            pb.DESCRIBE_SOURCES: self._describe_sources,
            pb.LIST_SOURCES: self._list_sources,
            pb.TRAIN: self._train,
            pb.EVALUATE: self._evaluate,
            pb.FINISH_EVALUATION: self._finish_evaluation,
            pb.PREDICT: self._predict,
            pb.FINISH_PREDICTION: self._finish_prediction,
            pb.EXPORT: self._export,
        }

    def run(self) -> None:
        """Work until the master says that the job is finished, or to stop."""
        try:
            self._run()
        finally:
            self._data.keep()

    def _run(self) -> None:
        while not self._progress.stopped.is_set():
            reply = self._client.lease()
            if reply.WhichOneof("answer") == "task":
                if self._staleness is not None and reply.task.kind == pb.TRAIN:
                    self._staleness.begin(reply.clock)
                self._model.callbacks.rate_reductions = reply.rate_reductions
                self._do(reply.task)
            elif reply.finished:
                self._model.callbacks.end()
                logger.info("nothing more to do")
                return
            else:
                self._progress.stopped.wait(reply.wait_seconds)

    def _do(self, task: pb.Task) -> None:
        logger.debug("task %d: %s", task.id, pb.TaskKind.Name(task.kind))
        report = pb.ReportTaskRequest(task=task.id)
        self._progress.begin(task.id)
        # From now on what is missing was there when the data was described.
        self._data_known |= task.kind != pb.DESCRIBE_DATA
        try:
            if self._brings:
                self._write_first_rows()
                self._model.register()
                self._model.let_go()
                self._brings = False
            self._work[task.kind](task, report)
        except Exception as caught:
            error = caught
            if isinstance(caught, TaskError):
                task, error = caught.task, caught.error
                report.task = task.id
            logger.error("task %d failed", task.id, exc_info=error)
            # What was acknowledged before the error is trained, and counts as that.
            report.records_done, report.records_touched = self._progress.trained(
                task.range.end - task.range.start
            )
            report.failure.CopyFrom(failure_of(error))
            if report.failure.kind == pb.STORAGE and task.HasField("range"):
                report.failure.range.CopyFrom(task.range)  # which goes back whole
            self._name_place(task, report.failure)
        if self._progress.interrupted:
            logger.info("task %d left: the job ends or the lease is gone", task.id)
            return
        self._client.report(report)
        if task.kind == pb.LIST_SOURCES:
            self._data.listings.confirmed()

    def _name_place(self, task: pb.Task, failure: pb.Failure) -> None:
        """Let the reader name the first of the records that are at fault."""
        mode = _MODES.get(task.kind)
        if task.kind == pb.EVALUATE and task.data == DATA[modes.TRAINING]:
            mode = modes.TRAINING
        if mode is None or not failure.HasField("range") or failure.kind == pb.STORAGE:
            return
        try:
            records = failure.range
            order = self._data.order(task)
            first = records.start if order is None else order.record(records.start)
            failure.place = self._data.place(mode, records.source, first)
            if records.end - records.start == 1:
                empty = self._data.pipeline(mode).missing(records.source, first)
                if empty:
                    failure.place += f" without a value in column {', '.join(map(repr, empty))}"
        except Exception:
            logger.exception("where the records are could not be told")

    # ------------------------------------------------------------ kinds of task

    def _describe(self, _: pb.Task, report: pb.ReportTaskRequest) -> None:
        # Done once, before training, which must not be in vain.
        config = self._config
        # Here, in a process of the kind that will write: the client may be elsewhere.
        check_output(config)
        try_output(config)
        lacking = export.check(self._model, config) if config.command == "train" else []
        if config.publish:
            lacking += write_live_model(self._model, config)
        if config.command == "predict":
            begin_output(config)
        if config.command == "train":
            self._model.callbacks.check(config)
        if config.command == "train" and config.validation_data:
            spec = self._data.pipeline(modes.EVALUATION).features_spec
            self._model.check_features(spec, self._data.feed(modes.EVALUATION))
        evaluates = config.validation_data or config.evaluates_first or config.progressive_steps
        if config.command == "train" and evaluates:
            evaluator = self._evaluator_ready()
            evaluator.check_features(self._first_evaluated().features_spec)
            if config.publish_if:
                check_metrics(config.publish_if, evaluator.result_names())
        report.data.CopyFrom(self._data.description())
        report.data.notes.extend(lacking)
        if config.command == "train":
            report.data.rules.CopyFrom(self._model.callbacks.rules)

    def _write_first_rows(self) -> None:
        """Raises StorageError where that fails, and as `write_first_rows`."""
        try:
            self._patience.call(lambda: write_first_rows(self._model, self._config))
        except OSError as error:
            raise StorageError(
                f"cannot write the rows that the model begins with: {error}"
            ) from error

    def _describe_sources(self, task: pb.Task, report: pb.ReportTaskRequest) -> None:
        found = self._data.describe(task.data, task.sources)
        getattr(report.data, task.data).extend(found)
        faults.point("sources-described")

    def _list_sources(self, task: pb.Task, report: pb.ReportTaskRequest) -> None:
        report.data.CopyFrom(self._data.arrivals(task.token))

    def _train(self, task: pb.Task, report: pb.ReportTaskRequest) -> None:
        self._tasks.forget_predicted()
        self._tasks.fill(report, self._training.run(task))

    def _evaluate(self, task: pb.Task, report: pb.ReportTaskRequest) -> None:
        evaluator = self._evaluator_ready()
        evaluator.reset()
        with closing(self._pulled(self._data.evaluated(task.data), task)) as batches:
            for batch, inputs in batches:
                doing = self._progress.watch.doing("the evaluation", batch.records)
                with doing, attributing(batch.records):
                    evaluator.add(batch, inputs)
                faults.point("batch-evaluated")
                if self._progress.interrupted:
                    return
        report.states.CopyFrom(evaluator.states())

    def _pulled(
        self, pipeline: InputPipeline, task: pb.Task
    ) -> Generator[tuple[Batch, StepInputs], None, None]:
        return pulled_ahead(pipeline.batches(task.range), self._model, self._progress)

    def _finish_evaluation(self, task: pb.Task, report: pb.ReportTaskRequest) -> None:
        metrics = self._evaluator_ready().finish(task.states)
        for name, value in metrics.items():
            report.metrics.values[name] = value
        report.metrics.slices.extend(self._evaluator_ready().slices())
        if task.data != DATA[modes.TRAINING]:  # which says nothing of this job's training
            self._model.callbacks.evaluated(self._model.model, metrics)
        faults.point("metrics-computed")
        report.stop_training = self._model.callbacks.stop_reason()

    def _evaluator_ready(self) -> Evaluation:
        if self._evaluator is None:
            self._evaluator = chosen_engine().evaluator(self._model, self._model.module)
            pipeline = self._first_evaluated()
            self._evaluator.build(pipeline.labels_spec, pipeline.weights_spec)
        return self._evaluator

    def _first_evaluated(self) -> InputPipeline:
        """The pipeline of data that are evaluated: of several, their labels are of one form."""
        if self._config.progressive_steps:
            return self._data.pipeline(modes.TRAINING)
        mode = modes.EVALUATION if self._config.validation_data else modes.TRAINING
        return self._data.evaluated(DATA[mode])

    def _predict(self, task: pb.Task, report: pb.ReportTaskRequest) -> None:
        if self._writer is None:
            self._writer = PredictionWriter(
                self._config, self._module, self._worker, self._patience
            )
        outputs = []
        with closing(self._pulled(self._data.pipeline(modes.PREDICTION), task)) as batches:
            for batch, inputs in batches:
                doing = self._progress.watch.doing("the prediction", batch.records)
                with doing, attributing(batch.records):
                    outputs.append(self._model.predict_batch(batch.features, inputs))
                faults.point("batch-predicted")
                if self._progress.interrupted:
                    return
        self._writer.write(task.range, task.position, outputs)
        report.done = True

    def _finish_prediction(self, task: pb.Task, report: pb.ReportTaskRequest) -> None:
        written(
            self._patience,
            self._config.output,
            lambda: finish_output(self._config, task.position, task.skipped),
        )
        report.done = True

    def _export(self, _: pb.Task, report: pb.ReportTaskRequest) -> None:
        export.export(self._model, self._servers, self._config, patience=self._patience)
        report.done = True
