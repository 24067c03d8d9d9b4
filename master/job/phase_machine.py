"""The course of a job: its phase, which phase follows, and what an outcome leads to.

Owns the phase and the rules by which training goes on or ends. What tasks there are is
workload.py's, who holds them leases.py's, deaths and processes worker_lifecycle.py's and
server_lifecycle.py's. No I/O, no clock.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shoal.config.job import JobConfig
from shoal.master.job.updates import Updates
from shoal.master.work import outcomes, phases
from shoal.master.work.applied import AppliedPush, applied_heads
from shoal.master.work.evaluation import MetricMismatchError
from shoal.master.work.failures import Failure
from shoal.master.work.ids import WorkerId
from shoal.master.work.kinds import KINDS
from shoal.master.work.lease_copies import Piece
from shoal.master.work.phases import Phase
from shoal.master.work.range_failures import FailureCause, shortened
from shoal.master.work.record import JobRecord
from shoal.master.work.rules import UnknownMetricError
from shoal.master.work.spans import Interval
from shoal.master.work.units import Task
from shoal.master.work.workload import Workload
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)

_LAST = frozenset(
    {Phase.EVALUATING, Phase.PREDICTING, Phase.FINISHING, Phase.EXPORTING, Phase.CONFIRMING}
)
"""Phases after which no other has more tasks."""

ATTEMPTS = 2
"""Errors at one of these that end the job: what fails on a fresh process too will go on
failing, and trying costs the start of a worker each time."""


class PhaseMachine:
    """The course of the job that `config` describes; what happens is kept in `record`.

    work: its tasks. updates: those of --sync. version: the highest seen of the model.
    failure: why the job failed. giving_up: why it is about to, as soon as a checkpoint has what
    was trained. returns: how often training has begun again. newest_checkpoint: its number; 0
    for none.
    """

    def __init__(
        self, config: JobConfig, record: JobRecord, work: Workload, updates: Updates
    ) -> None:
        self._config = config
        self._record = record
        self._plan = phases.plan(config)
        self._work = work
        self._updates = updates
        self._errors: Counter[tuple[pb.TaskKind, int]] = Counter()
        self.phase = Phase.STARTING
        self.failure: Failure | None = None
        self.giving_up: Failure | None = None
        self.version = 0
        self._saved = self._confirmed = False
        self._whole = False  # the newest checkpoint has all that was trained
        self.returns = self.newest_checkpoint = 0

    # ------------------------------------------------------------ phases

    def _go(self, target: Phase, now: float) -> None:
        phases.TRANSITIONS.step(self.phase, target)
        if self.phase == Phase.TRAINING:
            self._record.training_ended = now
        self.phase = target
        if target == Phase.TRAINING:
            self._record.training_begins(now)
            self._saved = self._whole = False
        elif target == Phase.CONFIRMING:
            self._confirmed = False
        elif target == Phase.DEGRADED:
            self._tell_of_loss(now)
        if target.ended:
            self._record.ended = now
            self._work.board.train_again(self._work.copies.ended())
        self._work.begin(target, self.version)
        logger.info("the job is now %s", target.value)

    def _work_done(self) -> bool:
        if self.phase == Phase.SAVING:
            return self._saved
        if self.phase == Phase.CONFIRMING:
            return self._confirmed
        if self.phase == Phase.TRAINING and not self._updates.idle:
            return False
        return self._work.finished(self.phase)

    def resume(
        self, in_model: Sequence[Interval], version: int, times: int, max_bad_records: int
    ) -> None:
        """Begin again with a model at `version`, which holds these training records.

        version: 0 for a new model, for which the data is loaded anew too.
        """
        self.phase = Phase.STARTING
        self.failure = self.giving_up = None
        self.version = version
        self._saved = self._confirmed = self._whole = False
        self._errors.clear()
        self._plan = phases.plan(self._config)
        self._work.resume(in_model, version, times, max_bad_records)
        self._updates.resumed()

    @property
    def saves(self) -> bool:
        """Whether the job waits for a checkpoint of all that was trained."""
        return self.phase == Phase.SAVING or self.giving_up is not None

    def saved(self, now: float, lacks: str = "") -> None:
        """The last checkpoint is there. lacks: why not, if it cannot be had."""
        self._saved, self._whole = True, not lacks
        if self.giving_up is not None:
            self._end_failed(self.giving_up, now, lacks, exports=True)
        self.advance(now)

    def confirmed(self, now: float) -> None:
        """The servers have said what they have, and the job knows what they lack."""
        self._confirmed = True
        self.advance(now)

    def _tell_of_loss(self, now: float) -> None:
        for server, records in self._work.copies.lacked.items():
            self._record.note(
                now, f"warning: the updates of {records:,} records stay lost on ps-{server}"
            )

    @property
    def data_known(self) -> bool:
        """Whether a worker has read the job's data."""
        return self.phase not in (Phase.STARTING, Phase.DESCRIBING)

    @property
    def workers_needed(self) -> int | None:
        """How many workers what is left to do can occupy, at least 1; None: all there are.

        Those that wait while a last checkpoint is taken are kept: who knows what comes after it.
        """
        if self.phase not in _LAST:
            return None
        return max(1, self._work.tasks_left(self.phase))

    def servers_ready(self, now: float) -> None:
        """All servers have registered: the work can begin."""
        if self.phase == Phase.STARTING:
            self._go(Phase.DESCRIBING, now)

    def advance(self, now: float) -> None:
        """Go on to the next phases while the work of this one is done."""
        if self._work.trained:
            self._updates.flush()
        while not (self.phase.ended or self.phase == Phase.STARTING):
            if self.giving_up is not None:
                break  # what a server has lost meanwhile is trained again by --resume
            if self._must_train_again():
                self.returns += 1
                self._go(Phase.TRAINING, now)
            elif self._work_done():
                following = self._plan[self._plan.index(self.phase) + 1]
                if following == Phase.SUCCEEDED and self._work.copies.lacked:
                    following = Phase.DEGRADED
                self._go(following, now)
            else:
                break

    def _must_train_again(self) -> bool:
        """Whether records were lost after training, and nobody is at what else is done."""
        return self._is_after_training and not self._work.trained and not self._work.exporting

    @property
    def _is_after_training(self) -> bool:
        plan = self._plan
        trains = Phase.TRAINING in plan and self.phase in plan
        return trains and plan.index(self.phase) > plan.index(Phase.TRAINING)

    def fail(self, failure: Failure, now: float, task: Task | None = None) -> None:
        """End the job as failed, unless it has ended before: the first reason counts.

        task: that could not be done.
        """
        if self.phase.ended:
            return
        lacks = ""
        if self.giving_up is not None:
            failure, lacks = self.giving_up, failure.message
        self._end_failed(failure, now, lacks, exports=_exports(task))

    def give_up(self, failure: Failure, now: float, task: Task | None = None) -> None:
        """As `fail`; but first have a checkpoint taken, if no other has a model that is trained.

        For failures at which the servers are well.
        """
        if self.phase.ended or self.giving_up is not None:
            return
        first_export = _exports(task) and not self.newest_checkpoint
        if first_export or (self._is_after_training and not self._whole):
            self.giving_up = failure
            what = "a checkpoint is taken of what was trained, as the job fails"
            self._record.note(now, f"{what}: {failure.message}")
        else:
            self.fail(failure, now, task)

    def _end_failed(self, failure: Failure, now: float, lacks: str, *, exports: bool) -> None:
        """lacks: why no checkpoint has what was trained, where one was to be taken.

        exports: it is an export that has failed.
        """
        told = [failure.message]
        if lacks:
            told.append(f"A checkpoint of what was trained could not be taken: {lacks}")
        trained = exports or self.giving_up is not None or self._is_after_training
        if self.newest_checkpoint and trained:
            told.append(self._way_out())
        self.failure, self.giving_up = replace(failure, message="\n".join(told)), None
        self._record.note(now, f"the job failed: {self.failure.message}")
        self._go(Phase.FAILED, now)

    def _way_out(self) -> str:
        """How to export the model that was trained."""
        config = self._config
        number = f"the job's newest checkpoint, number {self.newest_checkpoint}"
        here = not config.image
        what = config.job_dir if here else f"{config.checkpoint_dir} --model-def {config.model_def}"
        command = f"shoal export {what} --output FOLDER"
        if not self._whole:
            return f"T{number[1:]}, is older: {command}"
        lost = self._is_after_training and not self._work.trained
        but = ", but for records that a server has lost since," if lost else ""
        return f"What was trained{but} is in {number}: {command}"

    def stop(self, reason: str, now: float) -> None:
        """End the job as stopped, unless it has ended before."""
        if self.giving_up is not None:
            self.fail(Failure.internal(f"the job was stopped: {reason}"), now)
        if not self.phase.ended:
            self._record.note(now, f"the job was stopped: {reason}")
            self._go(Phase.STOPPED, now)

    # ------------------------------------------------------------ rules

    def _stop_training(self, reason: str | None, now: float) -> None:
        """Give out no more training tasks, if there is a reason."""
        board = self._work.board
        if reason and self.phase == Phase.TRAINING:
            if not board.all_leased:
                self._record.note(now, f"training ends early: {reason}")
            board.stop()

    def _follow_rules(self, now: float) -> None:
        """Do what the evaluations so far say."""
        results, rules = self._work.evaluation_results, self._work.rules
        try:
            self._stop_training(rules.reason(results), now)
            training = self.phase == Phase.TRAINING
            for said in self._work.follow_ups.follow(rules, results, training=training):
                self._record.note(now, said)
        except UnknownMetricError as error:
            self.give_up(Failure.of_user(str(error)), now)

    def starts_round(self, version: int) -> bool:
        """Whether an evaluation is due once this model version is seen."""
        # With the last tasks under way, the last round is about to tell the same.
        if self.phase != Phase.TRAINING or self._work.board.all_leased:
            return False
        return self._work.evaluations.due_at(max(self.version, version))

    def version_seen(self, version: int) -> None:
        """A worker has seen this model version."""
        self.version = max(self.version, version)
        if self.starts_round(version):
            self._work.evaluations.version_reached(self.version, self._work.epoch)

    # ------------------------------------------------------------ tasks

    @property
    def gives_out(self) -> bool:
        """Whether workers are given tasks now."""
        idle = self.phase.ended or self.phase == Phase.STARTING
        return not idle and self.giving_up is None

    def give_back(self, task: Task, cause: FailureCause | None, now: float) -> bool:
        """Take a leased task, not of training, from a worker that will not finish it.

        cause: of what the worker died, if the task may be at fault. Returns whether the
        task's records had ended a worker before.
        """
        if cause is not None and task.span is not None:
            return self._range_failed(task, cause, 0, 0, now)
        self._work.give_back(task)
        return False

    def fenced(
        self,
        worker: WorkerId,
        incarnation: int,
        pushes: Sequence[AppliedPush | None],
        now: float,
    ) -> None:
        """The servers take no more pushes of a worker; what each had of it last."""
        # Before its task goes back: what is trained again belongs to the phase that it is in.
        self._train_again(self._work.copies.fenced(worker, incarnation, pushes, now), now)

    def records_lost(self, pieces: Sequence[Piece], now: float) -> None:
        """A server has lost the gradients of records that count as trained."""
        self._train_again(pieces, now)
        self.advance(now)

    def _train_again(self, pieces: Sequence[Piece], now: float) -> None:
        if pieces:
            self._work.board.train_again(pieces)
            records = sum(len(piece.span) for piece in pieces)
            self._record.note(now, f"{records:,} records are trained again, since they were lost")

    def give_back_training(
        self,
        task: Task,
        pushes: Iterable[AppliedPush | None],
        cause: FailureCause | None,
        now: float,
    ) -> bool:
        """Take a leased TRAIN task from a dead worker.

        pushes: the last one that each server applied; None where it is not known.
        cause: of what it died, if the task may be at fault. Returns as `give_back`.
        """
        board = self._work.board
        done_by_all, done_by_any = applied_heads(task, pushes, board.done(task.id))
        if cause is not None:
            return self._range_failed(task, cause, done_by_all, done_by_any, now)
        board.give_back(task.id, done_by_all, done_by_any)
        self.advance(now)
        return False

    def _range_failed(
        self, task: Task, cause: FailureCause, done: int, touched: int, now: float
    ) -> bool:
        """A leased range failed; whether in the same way as before."""
        what = self._work.range_failed(task, cause, done, touched, now)
        if what.failure is not None:
            self.give_up(what.failure, now)
        self.advance(now)
        return what.repeated

    def task_broke(self, task: Task, failure: Failure, now: float) -> None:
        """A worker met an error of ours at a leased task; another is to try, or none."""
        what = KINDS[task.kind].doing
        if not what:
            return  # a range of many: the limit of restarts is limit enough
        self._errors[task.kind, task.evaluation] += 1
        if (times := self._errors[task.kind, task.evaluation]) >= ATTEMPTS:
            message = f"{what} failed {times} times, the last time with {failure.message}"
            self.give_up(replace(failure, message=message), now, task)

    def task_failed(
        self, task: Task, cause: FailureCause, trained: outcomes.Trained, now: float
    ) -> None:
        """A leased task failed in the user's code, or for wrong input.

        Where it is about records, they are found; otherwise no worker can do it.
        """
        failure = cause.failure
        self._ended(task, trained, now)
        if failure.kind == pb.STORAGE and task.span is None:
            self._storage_failed(task, failure, now)
            return
        if task.span is not None and failure.span is not None:
            self._range_failed(task, cause, trained.done, trained.touched, now)
            return
        if task.kind == pb.TRAIN:
            self._work.board.fail(task.id)
        else:
            self._work.give_back(task)
        self.give_up(failure, now, task)

    def _storage_failed(self, task: Task, failure: Failure, now: float) -> None:
        """The storage failed at a task on which all others wait; another worker tries, or none."""
        self._errors[task.kind, task.evaluation] += 1
        if self.data_known and self._errors[task.kind, task.evaluation] < ATTEMPTS:
            self._record.note(now, shortened(f"{KINDS[task.kind].doing}: {failure.message}"))
            self._work.give_back(task)
        else:
            self.fail(replace(failure, kind=pb.USER_ERROR), now)

    def _ended(self, task: Task, trained: outcomes.Trained, now: float) -> None:
        """A lease has ended by a report; what of it a server has lost is trained again."""
        if task.kind == pb.TRAIN:
            copies = self._work.copies
            self._train_again(copies.reported(task.id, trained.done, trained.touched, now), now)

    def settle(self, task: Task, outcome: outcomes.Success, worker: str, now: float) -> None:
        """A leased task has succeeded with the outcome that its kind expects."""
        work = self._work
        match outcome:
            case outcomes.StatesComputed(states):
                try:
                    work.evaluations.states_in(task, states, worker)
                except MetricMismatchError as error:
                    self.give_up(Failure.internal(str(error)), now)
            case outcomes.MetricsComputed(metrics, stop):
                result = work.evaluations.metrics_in(task, metrics, self.version, work.epoch)
                numbers = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
                logger.info("evaluation at version %d: %s", result.version, numbers)
                self._stop_training(stop, now)
                self._follow_rules(now)
            case outcomes.Done(stop):
                self._ended(task, outcomes.Trained(task.records, task.records), now)
                work.complete(task)
                self._stop_training(stop if task.kind == pb.TRAIN else None, now)
            case outcomes.DataDescribed():
                work.complete(task)
                for note in outcome.notes:
                    self._record.note(now, note)
                if (failure := work.describe(outcome)) is not None:
                    self.fail(failure, now)
        self.advance(now)


def _exports(task: Task | None) -> bool:
    return task is not None and task.kind == pb.EXPORT
