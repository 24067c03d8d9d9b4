"""What there is to do in a job, by kind: the tasks of each phase, given out and taken back.

Owns the tasks and their counts, from what a worker found the data to be. When a phase begins
and ends is phase_machine.py's, what an outcome leads to task_outcomes.py's, who holds a task
leases.py's. No I/O, no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shoal.config.flags import flag
from shoal.config.job import JobConfig
from shoal.errors import without_secrets
from shoal.master.work import outcomes
from shoal.master.work.copies import Copies
from shoal.master.work.evaluation import EvaluationResult, Evaluations
from shoal.master.work.failures import Failure
from shoal.master.work.followups import FollowUps
from shoal.master.work.kinds import ALONE_IN
from shoal.master.work.ledger import Ledger
from shoal.master.work.phases import Phase
from shoal.master.work.range_failures import Consequence, FailureCause, RangeFailures
from shoal.master.work.record import JobRecord
from shoal.master.work.rules import Rules
from shoal.master.work.spans import Interval
from shoal.master.work.tasks import TaskBoard
from shoal.master.work.units import Requester, Source, Task, TaskIds, TaskQueue, cut
from shoal.proto import shoal_pb2 as pb

_NEEDED_DATA: dict[str, tuple[str, ...]] = {
    "train": ("training_data", "validation_data"),
    "evaluate": ("validation_data",),
    "predict": ("prediction_data",),
}


class Workload:
    """The work of the job that `config` describes.

    board: the training tasks, once the data is known. evaluations: the rounds, likewise,
    where there is data for them. rules: of callbacks(). follow_ups: of evaluations.
    failures: of ranges. copies: what servers have of the training records.
    """

    def __init__(self, config: JobConfig, record: JobRecord) -> None:
        self._config = config
        self.copies = Copies(
            config.num_ps,
            tracks=config.command == "train" and not config.sync,
            retrain=config.on_loss == "retrain",
        )
        self._next_id = TaskIds()
        self._prediction: tuple[Source, ...] = ()
        self._queue = self._nothing()  # of the phases without board or rounds
        self._predictions = self._nothing()
        self.rules = Rules()
        self.board = self._training(())
        self.evaluations = self._rounds(())
        self.follow_ups = FollowUps(self._next_id)
        self.failures = RangeFailures(config.max_bad_records, record)

    def _nothing(self) -> TaskQueue:
        return TaskQueue([], self._next_id)

    def _training(self, sources: Sequence[Source]) -> TaskBoard:
        config = self._config
        return TaskBoard(
            sources,
            records_per_task=config.records_per_task,
            epochs=config.num_epochs if sources else 0,
            seed=config.seed,
            max_steps=self.rules.max_steps,
            minibatch_size=config.minibatch_size,
            next_id=self._next_id,
        )

    def _rounds(self, sources: Sequence[Source]) -> Evaluations:
        return Evaluations(
            sources,
            records_per_task=self._config.records_per_task,
            every_versions=self._config.evaluation_steps if sources else 0,
            next_id=self._next_id,
        )

    # ------------------------------------------------------------ reading

    @property
    def epoch(self) -> int:
        """The epoch whose tasks are given out, from 0."""
        return self.board.epoch

    @property
    def ledger(self) -> Ledger:
        """The training records' counts; all 0 before the data is known, or untrained."""
        return self.board.ledger()

    @property
    def given_up(self) -> Sequence[Interval]:
        """Training records given up one by one, in the order of that, in each epoch."""
        return self.board.given_up

    @property
    def taken_back(self) -> Sequence[Interval]:
        """Training records that are trained again, as `TaskBoard.taken_back`."""
        return self.board.taken_back

    @property
    def exporting(self) -> bool:
        """Whether a worker is at the one task of a phase."""
        return self._queue.under_way

    @property
    def tasks(self) -> tuple[int, int]:
        """Tasks done and in all: of training, or else of the phase."""
        sources = (self.board, self._predictions, self._queue)
        source = next((each for each in sources if each.tasks_total), self._queue)
        return source.tasks_done, source.tasks_total

    @property
    def records(self) -> tuple[int, int]:
        """Records done and in all, of what the job is there for."""
        if self._config.command == "train":
            ledger = self.board.ledger()
            return ledger.trained, ledger.total
        source = self.evaluations if self._config.command == "evaluate" else self._predictions
        return source.records_done, source.records_total

    @property
    def evaluation_results(self) -> list[EvaluationResult]:
        """The rounds that have ended, oldest first."""
        return self.evaluations.results

    def finished(self, phase: Phase) -> bool:
        """Whether the tasks of a phase are done."""
        if phase == Phase.TRAINING:
            return self.trained and self.follow_ups.idle
        if phase == Phase.EVALUATING:
            return self.evaluations.idle
        return self._queue.finished

    def tasks_left(self, phase: Phase) -> int:
        """Tasks of a phase, not of training, that are not done."""
        if phase == Phase.EVALUATING:
            return self.evaluations.tasks_left
        return self._queue.left

    @property
    def trained(self) -> bool:
        """Whether all training tasks are done."""
        return self.board.finished

    # ------------------------------------------------------------ making

    def describe(self, data: outcomes.DataDescribed) -> Failure | None:
        """Make the work from what there is to read; why there can be none."""
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
                return Failure.of_user(message)
        if self.board.sources:  # the job was resumed
            if self.board.sources != data.training:
                message = f"--training-data {config.training_data} has changed since the job began"
                return Failure.of_user(message)
            return None
        self._prediction = data.prediction
        self.rules = Rules.from_message(data.rules)
        self.follow_ups.checkpoint_wanted = self.rules.first_checkpoint
        if config.command == "train":
            self.board = self._training(data.training)
        if config.command != "predict" and config.validation_data:
            self.evaluations = self._rounds(data.validation)
        return None

    def begin(self, phase: Phase, version: int) -> None:
        """Make the tasks of a phase, which begins at this model version."""
        if phase == Phase.EVALUATING:
            self.evaluations.request(version, self.epoch)
        elif phase == Phase.PREDICTING:
            spans = cut(self._prediction, self._config.records_per_task)
            before = itertools.accumulate(map(len, spans), initial=0)
            tasks = [
                Task(self._next_id(), pb.PREDICT, span, position=position)
                for span, position in zip(spans, before, strict=False)
            ]
            self._queue = self._predictions = TaskQueue(tasks, self._next_id)
        elif phase == Phase.FINISHING:
            total = sum(source.records for source in self._prediction)
            skipped = tuple(sorted(self.failures.skipped))
            task = Task(self._next_id(), pb.FINISH_PREDICTION, position=total, skipped=skipped)
            self._queue = TaskQueue([task], self._next_id)
        elif phase == Phase.EXPORTING and self.follow_ups.export_holds(
            self.rules, self.evaluation_results
        ):
            self._queue = self._nothing()
        elif (kind := ALONE_IN.get(phase)) is not None:
            self._queue = TaskQueue([Task(self._next_id(), kind)], self._next_id)

    def resume(
        self, in_model: Sequence[Interval], version: int, times: int, max_bad_records: int
    ) -> None:
        """Begin again with a model at `version`, which holds these training records."""
        self.failures.resumed(max_bad_records)
        self._queue = self._nothing()
        self.board.resume(in_model, times)
        self.evaluations.resume(version)
        self.follow_ups.resume()

    # ------------------------------------------------------------ giving out

    def take(self, phase: Phase, version: int, requester: Requester) -> Task | None:
        """Lease the next task of a phase; None while there is none."""
        if phase not in (Phase.TRAINING, Phase.EVALUATING):
            return self._queue.take(requester)
        task = self.follow_ups.take() or self.evaluations.take(requester)
        if task is None and phase == Phase.TRAINING:
            task = self._take_training(version, requester)
        return task

    def take_ahead(self, version: int, requester: Requester, spare: int) -> Task | None:
        """Lease a training task to a worker that has one, if more than `spare` are left.

        None also while something else is to be done first.
        """
        if not self.evaluations.idle or not self.board.more_than(spare):
            return None
        return self._take_training(version, requester)

    def _take_training(self, version: int, requester: Requester) -> Task | None:
        epoch = self.board.epoch
        task = self.board.take(requester)
        # A rule that watches evaluations gets one an epoch where none were asked for.
        watched = self.rules.watch and not self._config.evaluation_steps
        if watched and self.board.epoch > epoch and self._config.validation_data:
            self.evaluations.request(version, epoch)
        return task

    # ------------------------------------------------------------ taking back

    def give_back(self, task: Task) -> None:
        """Take a leased task, not of training, from a worker that will not finish it."""
        if task.kind in (pb.EVALUATE, pb.FINISH_EVALUATION):
            self.evaluations.give_back(task)
        elif self.follow_ups.leases(task):
            self.follow_ups.give_back(task)
        else:
            self._queue.give_back(task.id)

    def range_failed(
        self, task: Task, cause: FailureCause, done: int, touched: int, now: float
    ) -> Consequence:
        """A leased range failed: it is tried again, cut or given up.

        done, touched: of a TRAIN task, as outcomes.Trained.
        """
        if task.kind == pb.TRAIN:
            return self.failures.training(self.board, task, cause, done, touched, now)
        if task.kind == pb.EVALUATE:
            return self.failures.evaluation(self.evaluations, task, cause, now)
        return self.failures.prediction(self._predictions, task, cause, now)

    def complete(self, task: Task) -> None:
        """A leased task is done, whose kind has no result that would be kept."""
        if task.kind == pb.TRAIN:
            self.board.complete(task.id)
        elif self.follow_ups.leases(task):
            self.follow_ups.complete(task)
        else:
            self._queue.complete(task.id)

    def progress(self, task: Task, records_done: int) -> None:
        """All servers have acknowledged the first records of a leased TRAIN task."""
        if task.kind == pb.TRAIN:
            self.progress_of(task.id, records_done)

    def progress_of(self, task_id: int, records_done: int) -> None:
        """As `progress`, for a task of which only the id is known. Raises KeyError."""
        if records_done:
            self.board.progress(task_id, records_done)
            self.copies.progressed(task_id, records_done)

    def done(self, task: Task) -> int:
        """Records of a leased task that all servers have acknowledged, as far as told."""
        return self.board.done(task.id) if task.kind == pb.TRAIN else 0
