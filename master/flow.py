"""The course of a job: its phase, the work of that phase, and what an outcome leads to.

Knows tasks, not who holds them: holders are leases.py's, deaths and processes
worker_lifecycle.py's and server_lifecycle.py's. No I/O, no clock.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shoal.config import JobConfig
from shoal.errors import without_secrets
from shoal.flags import flag
from shoal.master import outcomes, phases
from shoal.master.evaluation import EvaluationResult, Evaluations, MetricMismatchError
from shoal.master.failures import Failure
from shoal.master.followups import FollowUps
from shoal.master.phases import Phase
from shoal.master.range_failures import RangeFailures, Trouble
from shoal.master.record import JobRecord
from shoal.master.rules import Rules, UnknownMetricError
from shoal.master.spans import Interval
from shoal.master.tasks import AppliedPush, Ledger, TaskBoard, applied_heads
from shoal.master.updates import updates_of
from shoal.master.work import Asker, Source, Task, TaskQueue, cut
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)

_SINGLE_TASKS = {
    Phase.DESCRIBING: pb.DESCRIBE_DATA,
    Phase.LOADING: pb.LOAD,
    Phase.EXPORTING: pb.EXPORT,
}
"""Phases whose only work is one task, which a single worker does."""

_WHOLE_TASKS = {
    pb.DESCRIBE_DATA: "reading the data",
    pb.LOAD: "loading --restore-from",
    pb.FINISH_EVALUATION: "computing the metrics",
    pb.EXPORT: "exporting the model",
    pb.FINISH_PREDICTION: "completing the predictions",
}
"""Tasks on which all others wait, in words."""

ATTEMPTS = 2
"""Errors at one of these that end the job: what fails on a fresh process too will go on
failing, and trying costs the start of a worker each time."""

_NEEDED_DATA: dict[str, tuple[str, ...]] = {
    "train": ("training_data", "validation_data"),
    "evaluate": ("validation_data",),
    "predict": ("prediction_data",),
}


class Flow:
    """The course of the job that `config` describes; what happens is kept in `record`."""

    def __init__(self, config: JobConfig, record: JobRecord) -> None:
        self._config = config
        self._record = record
        self._plan = phases.plan(config)
        self._ids = itertools.count(1)
        self._rules = Rules()
        self._prediction: tuple[Source, ...] = ()
        self._queue: TaskQueue | None = None  # of the phases without board or rounds
        self._predictions: TaskQueue | None = None
        self._board: TaskBoard | None = None
        self._evaluations: Evaluations | None = None
        self.updates = updates_of(config)
        self.follow_ups = FollowUps(self._next_id)
        self.failures = RangeFailures(config.max_bad_records, record)
        self._errors: Counter[tuple[pb.TaskKind, int]] = Counter()
        self.phase = Phase.STARTING
        self.failure: Failure | None = None
        self.version = 0
        self._saved = False

    # ------------------------------------------------------------ reading

    @property
    def epoch(self) -> int:
        """The epoch whose tasks are given out, from 0."""
        return 0 if self._board is None else self._board.epoch

    @property
    def ledger(self) -> Ledger:
        """The training records' counts; all 0 before the data is known, or untrained."""
        return Ledger() if self._board is None else self._board.ledger()

    @property
    def given_up(self) -> Sequence[Interval]:
        """Training records given up one by one, in the order of that, in each epoch."""
        return () if self._board is None else self._board.given_up

    @property
    def tasks(self) -> tuple[int, int]:
        """Tasks done and in all: of training, or else of the phase."""
        source = self._board or self._predictions or self._queue
        return (0, 0) if source is None else (source.tasks_done, source.tasks_total)

    @property
    def records(self) -> tuple[int, int]:
        """Records done and in all, of what the job is there for."""
        if self._board is not None:
            ledger = self._board.ledger()
            return ledger.trained, ledger.total
        if self._evaluations is not None:
            return self._evaluations.records_done, self._evaluations.records_total
        if self._predictions is not None:
            return self._predictions.records_done, self._predictions.records_total
        return 0, 0

    @property
    def evaluation_results(self) -> list[EvaluationResult]:
        """The rounds that have ended, oldest first."""
        return [] if self._evaluations is None else self._evaluations.results

    @property
    def needs_first_checkpoint(self) -> bool:
        """Whether servers hold rows that they would not draw again."""
        return self._rules.first_checkpoint

    # ------------------------------------------------------------ phases

    def _next_id(self) -> int:
        return next(self._ids)

    def _go(self, target: Phase, now: float) -> None:
        phases.check_transition(self.phase, target)
        if self.phase == Phase.TRAINING:
            self._record.training_ended = now
        self.phase = target
        if target == Phase.TRAINING:
            self._record.training_started = now
        elif target == Phase.EVALUATING:
            assert self._evaluations is not None
            self._evaluations.request(self.version, self.epoch)
        elif target == Phase.PREDICTING:
            spans = cut(self._prediction, self._config.records_per_task)
            before = itertools.accumulate(map(len, spans), initial=0)
            tasks = [
                Task(self._next_id(), pb.PREDICT, span, position=position)
                for span, position in zip(spans, before, strict=False)
            ]
            self._queue = self._predictions = TaskQueue(tasks, self._next_id)
        elif target == Phase.FINISHING:
            total = sum(source.records for source in self._prediction)
            skipped = tuple(sorted(self.failures.skipped))
            task = Task(self._next_id(), pb.FINISH_PREDICTION, position=total, skipped=skipped)
            self._queue = TaskQueue([task], self._next_id)
        elif target == Phase.EXPORTING and self.follow_ups.export_holds(
            self._rules, self.evaluation_results
        ):
            self._queue = TaskQueue([], self._next_id)
        elif (kind := _SINGLE_TASKS.get(target)) is not None:
            self._queue = TaskQueue([Task(self._next_id(), kind)], self._next_id)
        elif target.ended:
            self._record.ended = now
        logger.info("the job is now %s", target.value)

    def _work_done(self) -> bool:
        if self.phase == Phase.TRAINING:
            trained = self._board is not None and self._board.finished
            return trained and self.updates.idle and self.follow_ups.idle
        if self.phase == Phase.SAVING:
            return self._saved
        if self.phase == Phase.EVALUATING:
            return self._evaluations is not None and self._evaluations.idle
        return self._queue is not None and self._queue.finished

    def resume(
        self, in_model: Sequence[Interval], version: int, times: int, max_bad_records: int
    ) -> None:
        """Begin again with a model at `version`, which holds these training records.

        version: 0 for a new model, for which the data is loaded anew too.
        """
        self.failures.resumed(max_bad_records)
        self.phase = Phase.STARTING
        self.failure = None
        self.version = version
        self._saved = False
        self._queue = None
        self._errors.clear()
        self._plan = phases.plan(self._config)
        if version and Phase.LOADING in self._plan:
            self._plan.remove(Phase.LOADING)
        if self._board is not None:
            self._board.resume(in_model, times)
        if self._evaluations is not None:
            self._evaluations.resume(version)
        self.follow_ups.resume()

    def saved(self, now: float) -> None:
        """The last checkpoint is there, or cannot be had."""
        self._saved = True
        self.advance(now)

    def servers_ready(self, now: float) -> None:
        """All servers have registered: the work can begin."""
        if self.phase == Phase.STARTING:
            self._go(Phase.DESCRIBING, now)

    def advance(self, now: float) -> None:
        """Go on to the next phases while the work of this one is done."""
        if self._board is not None and self._board.finished:
            self.updates.flush()
        while not (self.phase.ended or self.phase == Phase.STARTING) and self._work_done():
            self._go(self._plan[self._plan.index(self.phase) + 1], now)

    def fail(self, failure: Failure, now: float) -> None:
        """End the job as failed, unless it has ended before: the first reason counts."""
        if not self.phase.ended:
            self.failure = failure
            self._record.note(now, f"the job failed: {failure.message}")
            self._go(Phase.FAILED, now)

    def stop(self, reason: str, now: float) -> None:
        """End the job as stopped, unless it has ended before."""
        if not self.phase.ended:
            self._record.note(now, f"the job was stopped: {reason}")
            self._go(Phase.STOPPED, now)

    # ------------------------------------------------------------ tasks

    def take(self, asker: Asker) -> Task | None:
        """Lease the next task; None while there is none."""
        if self.phase.ended or self.phase == Phase.STARTING:
            return None
        task = None
        if self.phase in (Phase.TRAINING, Phase.EVALUATING):
            task = self.follow_ups.take()
            if task is None and self._evaluations is not None:
                task = self._evaluations.take(asker)
            if task is None and self.phase == Phase.TRAINING and self._board is not None:
                task = self._take_training(self._board, asker)
        elif self._queue is not None:
            task = self._queue.take(asker)
        return task

    def take_ahead(self, asker: Asker, spare: int) -> Task | None:
        """Lease a training task to a worker that has one, if more than `spare` are left.

        None also while something else is to be done first.
        """
        if self.phase != Phase.TRAINING or self._board is None:
            return None
        if self._evaluations is not None and not self._evaluations.idle:
            return None
        return self._take_training(self._board, asker) if self._board.more_than(spare) else None

    def _take_training(self, board: TaskBoard, asker: Asker) -> Task | None:
        epoch = board.epoch
        task = board.take(asker)
        # A rule that watches evaluations gets one an epoch where none were asked for.
        watched = self._rules.watch and not self._config.evaluation_steps
        if watched and board.epoch > epoch and self._evaluations is not None:
            self._evaluations.request(self.version, epoch)
        return task

    def _stop_training(self, reason: str | None, now: float) -> None:
        """Give out no more training tasks, if there is a reason."""
        if reason and self.phase == Phase.TRAINING and self._board is not None:
            if not self._board.all_leased:
                self._record.note(now, f"training ends early: {reason}")
            self._board.stop()

    def _follow_rules(self, now: float) -> None:
        """Do what the evaluations so far say."""
        results = self.evaluation_results
        try:
            self._stop_training(self._rules.reason(results), now)
            training = self.phase == Phase.TRAINING
            for said in self.follow_ups.follow(self._rules, results, training=training):
                self._record.note(now, said)
        except UnknownMetricError as error:
            self.fail(Failure.of_user(str(error)), now)

    def give_back(self, task: Task, trouble: Trouble | None, now: float) -> bool:
        """Take a leased task, not of training, from a worker that will not finish it.

        trouble: of what the worker died, if the task may be at fault. Returns whether the
        task's records had ended a worker before.
        """
        if trouble is not None and task.span is not None:
            return self._range_failed(task, trouble, 0, 0, now)
        if task.kind in (pb.EVALUATE, pb.FINISH_EVALUATION):
            assert self._evaluations is not None
            self._evaluations.give_back(task)
        elif self.follow_ups.leases(task):
            self.follow_ups.give_back(task)
        else:
            assert self._queue is not None
            self._queue.give_back(task.id)
        return False

    def give_back_training(
        self,
        task: Task,
        pushes: Iterable[AppliedPush | None],
        trouble: Trouble | None,
        now: float,
    ) -> bool:
        """Take a leased TRAIN task from a dead worker.

        pushes: the last one that each server applied; None where it is not known.
        trouble: of what it died, if the task may be at fault. Returns as `give_back`.
        """
        assert self._board is not None
        acknowledged = self._board.done(task.id)
        done_by_all, done_by_any = applied_heads(task, pushes, acknowledged)
        if trouble is not None:
            return self._range_failed(task, trouble, done_by_all, done_by_any, now)
        self._board.give_back(task.id, done_by_all, done_by_any)
        self.advance(now)
        return False

    def _range_failed(
        self, task: Task, trouble: Trouble, done: int, touched: int, now: float
    ) -> bool:
        """A leased range failed; whether in the same way as before."""
        if task.kind == pb.TRAIN:
            assert self._board is not None
            what = self.failures.training(self._board, task, trouble, done, touched, now)
        elif task.kind == pb.EVALUATE:
            assert self._evaluations is not None
            what = self.failures.evaluation(self._evaluations, task, trouble, now)
        else:
            assert self._predictions is not None
            what = self.failures.prediction(self._predictions, task, trouble, now)
        if what.failure is not None:
            self.fail(what.failure, now)
        self.advance(now)
        return what.repeated

    def progress(self, task: Task, records_done: int) -> None:
        """All servers have acknowledged the first records of a leased TRAIN task."""
        if task.kind == pb.TRAIN and self._board is not None:
            self._board.progress(task.id, records_done)

    def done(self, task: Task) -> int:
        """Records of a leased task that all servers have acknowledged, as far as told."""
        return 0 if task.kind != pb.TRAIN or self._board is None else self._board.done(task.id)

    def progress_of(self, task_id: int, records_done: int) -> None:
        """As `progress`, for a task of which only the id is known. Raises KeyError."""
        if records_done and self._board is not None:
            self._board.progress(task_id, records_done)

    def starts_round(self, version: int) -> bool:
        """Whether an evaluation is due once this model version is seen."""
        if self.phase != Phase.TRAINING or self._evaluations is None:
            return False
        assert self._board is not None
        # With the last tasks under way, the last round is about to tell the same.
        version = max(self.version, version)
        return not self._board.all_leased and self._evaluations.due_at(version)

    def version_seen(self, version: int) -> None:
        """A worker has seen this model version."""
        self.version = max(self.version, version)
        if self.starts_round(version):
            assert self._evaluations is not None
            self._evaluations.version_reached(self.version, self.epoch)

    def task_broke(self, task: Task, failure: Failure, now: float) -> None:
        """A worker met an error of ours at a leased task; another is to try, or none."""
        what = _WHOLE_TASKS.get(task.kind)
        if what is None:
            return  # a range of many: the limit of restarts is limit enough
        self._errors[task.kind, task.evaluation] += 1
        if (times := self._errors[task.kind, task.evaluation]) >= ATTEMPTS:
            message = f"{what} failed {times} times, the last time with {failure.message}"
            self.fail(replace(failure, message=message), now)

    def task_failed(
        self, task: Task, trouble: Trouble, trained: outcomes.Trained, now: float
    ) -> None:
        """A leased task failed in the user's code, or for wrong input.

        Where it is about records, they are found; otherwise no worker can do it.
        """
        failure = trouble.failure
        if task.span is not None and failure.span is not None:
            self._range_failed(task, trouble, trained.done, trained.touched, now)
            return
        if task.kind == pb.TRAIN and self._board is not None:
            self._board.fail(task.id)
        self.fail(failure, now)

    def settle(self, task: Task, outcome: outcomes.Success, worker: str, now: float) -> None:
        """A leased task has succeeded with the outcome that its kind expects."""
        match outcome:
            case outcomes.Done() if task.kind == pb.TRAIN:
                assert self._board is not None
                self._board.complete(task.id)
                self._stop_training(outcome.stop, now)
            case outcomes.StatesComputed(states):
                assert self._evaluations is not None
                try:
                    self._evaluations.states_in(task, states, worker)
                except MetricMismatchError as error:
                    self.fail(Failure.internal(str(error)), now)
            case outcomes.MetricsComputed(metrics, stop):
                assert self._evaluations is not None
                result = self._evaluations.metrics_in(task, metrics, self.version, self.epoch)
                numbers = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
                logger.info("evaluation at version %d: %s", result.version, numbers)
                self._stop_training(stop, now)
                self._follow_rules(now)
            case outcomes.Done() if self.follow_ups.leases(task):
                self.follow_ups.complete(task)
            case outcomes.Done() | outcomes.DataDescribed():
                assert self._queue is not None
                self._queue.complete(task.id)
                if isinstance(outcome, outcomes.DataDescribed):
                    self._described(outcome, now)
        self.advance(now)

    def _described(self, data: outcomes.DataDescribed, now: float) -> None:
        config = self._config
        sources = {
            "training_data": data.training,
            "validation_data": data.validation,
            "prediction_data": data.prediction,
        }
        for name in _NEEDED_DATA[config.command]:
            given = getattr(config, name)
            if given and not sum(source.records for source in sources[name]):
                message = without_secrets(f"{flag(name)} {given} holds no records")
                self.fail(Failure.of_user(message), now)
                return
        if self._board is not None:  # the job was resumed
            if self._board.sources != data.training:
                message = f"--training-data {config.training_data} has changed since the job began"
                self.fail(Failure.of_user(message), now)
            return
        self._prediction = data.prediction
        self._rules = Rules.from_message(data.rules)
        self.follow_ups.checkpoint_wanted = self._rules.first_checkpoint
        if config.command == "train":
            self._board = TaskBoard(
                data.training,
                records_per_task=config.records_per_task,
                epochs=config.num_epochs,
                seed=config.seed,
                max_steps=self._rules.max_steps,
                minibatch_size=config.minibatch_size,
                next_id=self._next_id,
            )
        if config.command != "predict" and config.validation_data:
            self._evaluations = Evaluations(
                data.validation,
                records_per_task=config.records_per_task,
                every_versions=config.evaluation_steps,
                next_id=self._next_id,
            )
