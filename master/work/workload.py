"""The work of a job by kind: the tasks of each phase, given out and taken back.

Owns the tasks and their counts, from the description of the data by a worker. phase_machine.py
begins and ends the phases, task_outcomes.py handles the outcomes, members.py knows the holder of
each task. No I/O, no clock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from shoal.config.flags import flag
from shoal.config.job import JobConfig
from shoal.errors import without_secrets
from shoal.master.work import outcomes
from shoal.master.work.accounts.copies import Copies
from shoal.master.work.accounts.ledger import Ledger
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.arrivals import Arrivals
from shoal.master.work.description import Description
from shoal.master.work.evaluation.evaluation import EvaluationResult, Evaluations
from shoal.master.work.evaluation.followups import FollowUps
from shoal.master.work.evaluation.progressive import Windows
from shoal.master.work.evaluation.rules import Rules
from shoal.master.work.failures import Failure
from shoal.master.work.phases import Phase
from shoal.master.work.range_failures import Consequence, FailureCause, RangeFailures
from shoal.master.work.record import JobRecord
from shoal.master.work.tasks.cutting import cut
from shoal.master.work.tasks.kinds import ALONE_IN
from shoal.master.work.tasks.tasks import TaskBoard
from shoal.master.work.units import Duty, Requester, Source, Task, TaskIds, TaskQueue
from shoal.proto import shoal_pb2 as pb

TRAINING, VALIDATION, PREDICTION = "training", "validation", "prediction"
"""The kinds of data, as tasks and messages call them."""

_NEEDED_DATA: dict[str, tuple[str, ...]] = {
    "train": ("training_data", "validation_data"),
    "evaluate": ("validation_data",),
    "predict": ("prediction_data",),
}


MOST_EPOCHS = 20
"""After which the model is evaluated without being asked for, of all epochs of a job."""

LEAST_AHEAD = 2
"""Training tasks a worker that should be known beforehand, while there is more to be described."""


def _some(names: Sequence[str]) -> str:
    """Names of files, in words, with the verb."""
    if len(names) == 1:
        return f"{names[0]} is"
    return f"{len(names):,} files, such as {names[0]}, are"


class Workload:
    """The work of the job that `config` describes.

    board: the training tasks, once the data is known. evaluations: the rounds, likewise,
    where there is data for them. first: the round of the earlier model on the training data, before
    it is trained. rules: of callbacks(). follow_ups: of evaluations.
    failures: of ranges. copies: what servers have of the training records.
    """

    def __init__(self, config: JobConfig, record: JobRecord) -> None:
        self._config = config
        self.copies = Copies(
            config.num_servers,
            tracks=config.command == "train" and not config.sync,
            retrain=config.on_loss == "retrain",
        )
        self._next_id = TaskIds()
        arrivals = Arrivals(config.arriving, config.until_idle, config.leg, self._next_id)
        self.description = Description(self._next_id, arrivals)
        self._described = False
        self._prediction: tuple[Source, ...] = ()
        self._queue = self._nothing()  # of the phases without board or rounds
        self._predictions = self._nothing()
        self.rules = Rules()
        self.board = self._training(())
        self.evaluations = self._rounds(())
        if config.progressive_steps:
            self.evaluations = Windows(config.progressive_window, self._next_id)
        self.first = self._rounds(())
        self._evaluated_epoch = -1  # the last one at whose end a round was requested
        self.follow_ups = FollowUps(self._next_id)
        self.failures = RangeFailures(config.max_bad_records, record)

    def _nothing(self) -> TaskQueue:
        return TaskQueue([], self._next_id)

    def _training(self, sources: Sequence[Source], *, complete: bool = True) -> TaskBoard:
        config = self._config
        return TaskBoard(
            sources,
            complete=complete,
            records_per_task=config.records_per_task,
            epochs=config.epochs if sources or not complete else 0,
            seed=config.seed,
            max_steps=self.rules.max_steps,
            batch_size=config.batch_size,
            next_id=self._next_id,
            shuffle_tasks=config.shuffles_tasks,
            shuffle_buffer=config.shuffle_buffer,
        )

    def _rounds(
        self, sources: Sequence[Source], *, complete: bool = True, data: str = VALIDATION
    ) -> Evaluations:
        by_version = sources and data == VALIDATION
        return Evaluations(
            sources,
            data=data,
            complete=complete,
            records_per_task=self._config.records_per_task,
            every_versions=max(self._config.evaluation_steps, 0) if by_version else 0,
            next_id=self._next_id,
            batch_size=self._config.batch_size,
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
    def taken_back(self) -> list[Interval]:
        """Training records that are trained again, as `TaskBoard.taken_back`."""
        return self.board.taken_back

    @property
    def exporting(self) -> bool:
        """True if a worker holds the one task of a phase."""
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

    def rounds_of(self, task: Task) -> Evaluations:
        """The rounds to which a task of an evaluation belongs."""
        return self.first if task.data == TRAINING else self.evaluations

    def finished(self, phase: Phase) -> bool:
        """True if the tasks of a phase are done."""
        if phase == Phase.TRAINING:
            return self.trained and self.follow_ups.idle
        if phase == Phase.EVALUATING:
            return self.evaluations.idle
        if phase == Phase.EVALUATING_FIRST:
            return self.first.idle
        if phase == Phase.DESCRIBING and self._config.command != "train":
            return self._queue.finished and self.description.complete
        return self._queue.finished

    def tasks_left(self, phase: Phase) -> int:
        """Tasks of a phase, not of training, that are not done."""
        if phase == Phase.EVALUATING:
            return self.evaluations.tasks_left
        if phase == Phase.EVALUATING_FIRST:
            return self.first.tasks_left
        return self._queue.left

    @property
    def trained(self) -> bool:
        """True if all training tasks are done."""
        return self.board.finished

    # ------------------------------------------------------------ making

    def describe(
        self, data: outcomes.DataDescribed, note: Callable[[str], object] = lambda _: None
    ) -> Failure | None:
        """Make the work from what there is to read; why there can be none.

        note: is told what the user should know, and ends nothing.
        """
        config = self._config
        sources = {
            "training_data": data.training,
            "validation_data": data.validation,
            "prediction_data": data.prediction,
        }
        more = {
            VALIDATION: data.more_validation,
            TRAINING: data.more_training,
            PREDICTION: data.more_prediction,
        }
        for name in _NEEDED_DATA[config.command]:
            kind = name.removesuffix("_data")
            known = more[kind] or sum(source.records for source in sources[name])
            if getattr(config, name) and not known and not self._may_be_empty(kind):
                return self._no_records(kind)
        if self._described:  # the job was resumed
            return self._compare(data, note)
        self._described = True
        self._prediction = data.prediction
        self.rules = Rules.from_message(data.rules)
        self.description.add({kind: found for kind, found in more.items() if found})
        if config.command == "train":
            names = [each.name for each in data.training]
            names += [each.name for each in data.more_training]
            self.description.arrivals.known(names, data.token)
            complete = not self.description.awaits(TRAINING)
            self.board = self._training(data.training, complete=complete)
            if config.evaluates_first:
                self.first = self._rounds(data.training, complete=complete, data=TRAINING)
        if config.command != "predict" and config.validation_data:
            complete = not data.more_validation
            self.evaluations = self._rounds(data.validation, complete=complete)
        self._forget_unneeded(0)
        return None

    def sources_described(
        self, task: Task, data: outcomes.DataDescribed, version: int
    ) -> Failure | None:
        """A leased DESCRIBE_SOURCES task is done; why the job cannot go on with what it found."""
        sources = {
            TRAINING: data.training,
            VALIDATION: data.validation,
            PREDICTION: data.prediction,
        }
        self.description.done(task, sources[task.data])
        for kind, described in self.description.ready():
            complete = not self.description.awaits(kind)
            if kind == TRAINING:
                self.board.extend(described, complete=complete)
                self.first.extend(described, complete=complete, version=version, epoch=0)
            elif kind == VALIDATION:
                self.evaluations.extend(
                    described, complete=complete, version=version, epoch=self.epoch
                )
            else:
                self._prediction += described
            if complete and not self._has_records(kind) and not self._may_be_empty(kind):
                return self._no_records(kind)
        self._forget_unneeded(version)
        return None

    def sources_listed(
        self, task: Task, data: outcomes.DataDescribed, now: float, note: Callable[[str], object]
    ) -> None:
        """A leased LIST_SOURCES task is done: what has come is described, and then trained."""
        arrivals = self.description.arrivals
        new, changed = arrivals.listed(task, data.more_training, data.token, now)
        for name in changed:
            note(
                without_secrets(
                    f"warning: {name} has changed after this job had found it: its records are "
                    "trained as they were then, or fail. Write new records to a file of another "
                    "name, and rename a file into the folder when it is whole"
                )
            )
        if new:
            self.description.add({TRAINING: new})
        if not arrivals.open:
            note(f"no more data is looked for ({arrivals.ended_by})")
            if not self.description.awaits(TRAINING):
                self.board.extend((), complete=True)

    def _has_records(self, kind: str) -> bool:
        if kind == TRAINING:
            return self.board.ledger().total > 0
        if kind == VALIDATION:
            return self.evaluations.records_total > 0
        return any(source.records for source in self._prediction)

    def _may_be_empty(self, kind: str) -> bool:
        """True if having nothing to read is no error: the data may hold nothing new."""
        given = self._config
        return kind == TRAINING and (given.leaves_out_trained or given.arriving > 0)

    def _no_records(self, kind: str) -> Failure:
        name = f"{kind}_data"
        given = getattr(self._config, name)
        return Failure.of_user(without_secrets(f"{flag(name)} {given} holds no records"))

    def _forget_unneeded(self, version: int) -> None:
        """Describe no source that --max-steps leaves out anyway."""
        waits = self.description.awaits(TRAINING)
        if self._config.command == "train" and self.board.all_known and waits:
            self.description.drop(TRAINING)
            self.first.extend((), complete=True, version=version, epoch=0)

    def _compare(
        self, data: outcomes.DataDescribed, note: Callable[[str], object]
    ) -> Failure | None:
        """The reason why a resumed job cannot go on with the present data; None if it can."""
        # Old ones may go, and new ones come; with a token, also where none is waited for.
        arriving = self._config.arriving > 0 or bool(data.token)
        known = {source.name: source for source in self.board.sources}
        waiting = self.description.names(TRAINING)
        now = {source.name for source in data.training}
        now |= {found.name for found in data.more_training}
        what = f"--training-data {self._config.training_data} has changed since the job began"
        if not arriving and (gone := sorted((known.keys() | waiting) - now)):
            return Failure.of_user(without_secrets(f"{what}: {_some(gone)} not there any more"))
        for source in data.training:
            before = known.get(source.name, source)
            if before != source:
                message = (
                    f"{what}: {source.name} has {source.records:,} records in "
                    f"{len(source.units)} groups, and had {before.records:,} in {len(before.units)}"
                )
                return Failure.of_user(without_secrets(message))
        # Of a Description that dropped some, none is missed.
        # With --max-steps some may not have been needed.
        if arriving or self.rules.max_steps:
            return None
        if added := sorted(now - known.keys() - waiting):
            note(without_secrets(f"warning: {what}: {_some(added)} new, and not read by this job"))
        return None

    def begin(self, phase: Phase, version: int) -> None:
        """Make the tasks of a phase, which begins at this model version."""
        if phase == Phase.EVALUATING:
            self.evaluations.request(version, self.epoch)
        elif phase == Phase.EVALUATING_FIRST:
            if not self.first.results:  # a job that is resumed may have done it
                self.first.request(version, 0)
        elif phase == Phase.PREDICTING:
            spans = cut(self._prediction, self._config.records_per_task, self._config.batch_size)
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
            self.rules, self.evaluations.course
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
        self.description.resume()
        self.board.resume(in_model, times, version)
        self.evaluations.resume(version)
        self.first.resume(version)
        self._evaluated_epoch = -1
        self.follow_ups.resume(self.rules, self.evaluations.course)

    # ------------------------------------------------------------ giving out

    def take(
        self, phase: Phase, version: int, requester: Requester, now: float = 0.0
    ) -> Task | None:
        """Lease the next task of a phase; None while there is none."""
        if phase == Phase.DESCRIBING:
            return self._queue.take(requester) or self.description.take(requester)
        if phase == Phase.EXPORTING and not requester.exports:
            return None
        if phase == Phase.EVALUATING_FIRST:
            return self.first.take(requester) or self.description.take(requester)
        if phase not in (Phase.TRAINING, Phase.EVALUATING):
            return self._queue.take(requester)
        if phase == Phase.TRAINING and self._ends_epoch:
            self._evaluated_epoch = self.epoch
            self.evaluations.request(version, self.epoch)
        arrivals = self.description.arrivals
        if phase == Phase.TRAINING and arrivals.open:
            task = arrivals.take(requester, now)
            if task is not None:
                return task
        duty = requester.duty if phase == Phase.TRAINING else Duty.ALL
        task = None
        if duty != Duty.TRAINING:
            task = self.follow_ups.take() if requester.exports else None
            task = task or self.evaluations.take(requester)
        if task is None and (phase == Phase.EVALUATING or self._describes):
            task = self.description.take(requester)
        if task is None and phase == Phase.TRAINING:
            if duty != Duty.EVALUATION:
                task = self.board.take(requester)
            task = task or self.description.take(requester)
        return task

    @property
    def _describes(self) -> bool:
        """True if one more worker should describe sources, although it could train."""
        if not self.description.waiting:
            return False
        workers = self._config.num_workers
        few = not self.board.more_than(LEAST_AHEAD * workers)
        return few or self.description.under_way < workers // 2

    def take_ahead(self, requester: Requester, spare: int, now: float = 0.0) -> Task | None:
        """Lease a training task to a worker that has one, if more than `spare` are left.

        None also while something else is to be done first.
        """
        evaluates = requester.duty != Duty.TRAINING and not self.evaluations.idle
        arrivals = self.description.arrivals
        lists = arrivals.open and arrivals.due(now)
        first = evaluates or self._ends_epoch or self._describes or lists
        if first or not self.board.more_than(spare):
            return None
        return self.board.take(requester)

    @property
    def _ends_epoch(self) -> bool:
        """True if the model is to be evaluated before the first task of the next epoch."""
        if self._config.evaluation_steps > 0 or not self._config.validation_data:
            return False
        if not self.board.between_epochs or self._evaluated_epoch == self.epoch:
            return False
        every = math.ceil(self._config.epochs / MOST_EPOCHS)
        by_default = self._config.evaluation_steps < 0 and (self.epoch + 1) % every == 0
        # A rule that watches evaluations gets one an epoch.
        return by_default or bool(self.rules.watch)

    # ------------------------------------------------------------ taking back

    def give_back(self, task: Task) -> None:
        """Take a leased task, not of training, from a worker that will not finish it."""
        if task.kind in (pb.EVALUATE, pb.FINISH_EVALUATION):
            self.rounds_of(task).give_back(task)
        elif task.kind == pb.DESCRIBE_SOURCES:
            self.description.give_back(task)
        elif task.kind == pb.LIST_SOURCES:
            self.description.arrivals.give_back(task)
        elif self.follow_ups.leases(task):
            self.follow_ups.give_back(task)
        else:
            self._queue.give_back(task.id)

    def predicted(self, task: Task, outcome: outcomes.Done, worker: str, version: int) -> None:
        """A leased TRAIN task is done, with the states of what was predicted. Raises as `add`."""
        if outcome.progressive is not None and isinstance(self.evaluations, Windows):
            told = outcome.progressive, outcome.records
            self.evaluations.add(task, *told, worker, version, self.epoch)

    def range_failed(
        self, task: Task, cause: FailureCause, touched: int, now: float
    ) -> Consequence:
        """A leased range failed: it is tried again, cut or given up.

        touched: of a TRAIN task, the head that some server may have.
        """
        if task.kind == pb.TRAIN:
            return self.failures.training(self.board, task, cause, touched, now)
        if task.kind == pb.EVALUATE:
            return self.failures.evaluation(self.rounds_of(task), task, cause, now)
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
        """Note progress as `progress` does, for a task known only by its id. Raises KeyError."""
        if records_done:
            self.board.progress(task_id, records_done)

    def done(self, task: Task) -> int:
        """Records of a leased task that all servers have acknowledged, as far as told."""
        return self.board.lease(task.id).acknowledged if task.kind == pb.TRAIN else 0
