"""The consequences of the end of a lease: a report, its worker's death, or a server's loss.

Owns what is trained again, who tries a task that failed, and when that ends the job; likewise what
evaluations say of training. The phases themselves are phase_machine.py's, tasks and counts
workload.py's, who holds a task members.py's. No I/O, no clock.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from shoal.errors import UserError
from shoal.master.job.state import JobState
from shoal.master.work import outcomes
from shoal.master.work.accounts.applied import AppliedPush, applied_heads
from shoal.master.work.accounts.lease_copies import Piece
from shoal.master.work.evaluation.evaluation import MetricMismatchError
from shoal.master.work.evaluation.rules import UnknownMetricError
from shoal.master.work.failures import Failure
from shoal.master.work.ids import WorkerId
from shoal.master.work.phases import Phase
from shoal.master.work.range_failures import FailureCause, shortened
from shoal.master.work.tasks.kinds import KINDS
from shoal.master.work.units import Task
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""Errors at one of these that end the job: what fails on a fresh process too will go on
failing, and trying costs the start of a worker each time."""


class TaskOutcomes:
    """The consequences of what comes of a job's tasks."""

    def __init__(self, state: JobState) -> None:
        self._phases = state.phases
        self._work = state.work
        self._record = state.record
        self._errors: Counter[tuple[pb.TaskKind, int, tuple[str, ...]]] = Counter()

    def resumed(self) -> None:
        """The job goes on: no error counts any more."""
        self._errors.clear()

    # ------------------------------------------------------------ by a report

    def settle(self, task: Task, outcome: outcomes.Success, worker: str, now: float) -> None:
        """A leased task has succeeded with the outcome that its kind expects."""
        work = self._work
        self._errors.pop(_key(task), None)  # some kinds come again and again, for days
        match outcome:
            case outcomes.StatesComputed(states):
                with self._merging(now):
                    work.rounds_of(task).states_in(task, states, worker)
            case outcomes.MetricsComputed():
                self._evaluated(task, outcome, now)
            case outcomes.Done(stop):
                self._ended(task, outcomes.Trained(task.records, task.records), now)
                with self._merging(now):
                    work.predicted(task, outcome, worker, self._phases.version)
                work.complete(task)
                stop = stop if task.kind == pb.TRAIN else ""
                self._stop_training(stop, self._phases.version, now)
            case outcomes.DataDescribed():
                failure, note = None, partial(self._record.note, now)
                for text in outcome.notes:
                    note(text)
                if task.kind == pb.LIST_SOURCES:
                    work.sources_listed(task, outcome, now, note)
                elif task.kind == pb.DESCRIBE_SOURCES:
                    failure = work.sources_described(task, outcome, self._phases.version)
                else:
                    work.complete(task)
                    failure = work.describe(outcome, note)
                if failure is not None:
                    self._phases.fail(failure, now)
        self._phases.advance(now)

    @contextmanager
    def _merging(self, now: float) -> Iterator[None]:
        """End the job if the body cannot add metric states."""
        try:
            yield
        except MetricMismatchError as error:
            self._phases.give_up(Failure.internal(str(error)), now)
        except UserError as error:
            self._phases.give_up(Failure.of_user(str(error)), now)

    def _evaluated(self, task: Task, outcome: outcomes.MetricsComputed, now: float) -> None:
        """A round has its numbers."""
        work, metrics = self._work, outcome.metrics
        rounds, first = work.rounds_of(task), work.rounds_of(task) is work.first
        loss = None if first else self._record.loss.taken()
        result = rounds.metrics_in(
            task, metrics, self._phases.version, work.epoch, loss, outcome.slices
        )
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        if first:  # of a model that this job has not trained
            text = f"the earlier model on the {result.records:,} new records: {numbers}"
            self._record.note(now, text)
            return
        logger.info("evaluation at version %d: %s", result.version, numbers)
        self._stop_training(outcome.stop, result.version, now)
        self._follow_rules(now)

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
            self._range_failed(task, cause, trained.touched, now)
            return
        if task.kind == pb.TRAIN:
            self._work.board.fail(task.id)
        else:
            self._work.give_back(task)
        self._phases.give_up(failure, now, task)

    def task_broke(self, task: Task, failure: Failure, now: float) -> None:
        """A worker met an error of ours at a leased task; another is to try, or none."""
        what = KINDS[task.kind].doing
        if not what:
            return  # a range of many: the limit of restarts is limit enough
        self._errors[_key(task)] += 1
        if (times := self._errors[_key(task)]) >= ATTEMPTS:
            message = f"{what} failed {times} times, the last time with {failure.message}"
            self._phases.give_up(replace(failure, message=message), now, task)

    def _storage_failed(self, task: Task, failure: Failure, now: float) -> None:
        """The storage failed at a task on which all others wait; another worker tries, or none."""
        self._errors[_key(task)] += 1
        if self._phases.data_known and self._errors[_key(task)] < ATTEMPTS:
            self._record.note(now, shortened(f"{KINDS[task.kind].doing}: {failure.message}"))
            self._work.give_back(task)
        else:
            self._phases.fail(replace(failure, kind=pb.USER_ERROR), now)

    def _ended(self, task: Task, trained: outcomes.Trained, now: float) -> None:
        """A lease has ended by a report; what of it a server has lost is trained again."""
        if task.kind == pb.TRAIN:
            self._work.progress(task, trained.done)
            lease = self._work.board.lease(task.id)
            self._train_again(self._work.copies.reported(lease, trained.touched, now), now)

    def _range_failed(self, task: Task, cause: FailureCause, touched: int, now: float) -> bool:
        """A leased range failed; whether in the same way as before."""
        what = self._work.range_failed(task, cause, touched, now)
        if what.failure is not None:
            self._phases.give_up(what.failure, now)
        self._phases.advance(now)
        return what.repeated

    # ------------------------------------------------------------ by a death

    def give_back(self, task: Task, cause: FailureCause | None, now: float) -> bool:
        """Take a leased task, not of training, from a worker that will not finish it.

        cause: of what the worker died, if the task may be at fault. Returns whether the
        task's records had ended a worker before.
        """
        if cause is not None and task.span is not None:
            return self._range_failed(task, cause, 0, now)
        self._work.give_back(task)
        return False

    def fenced(
        self,
        worker: WorkerId,
        incarnation: int,
        held: Sequence[Task],
        pushes: Sequence[AppliedPush | None],
        cause: FailureCause | None,
        now: float,
    ) -> bool:
        """The servers take no more pushes of a worker, and the tasks that it held go to others.

        held: of training, the one that it was at first. pushes: the last one that each server
        applied; None where it is not known. cause: of what it died, if the first task may be at
        fault. Returns as `give_back`.
        """
        repeated, touched = False, []
        for task in held:
            done_by_all, done_by_any = applied_heads(task, pushes, self._work.done(task))
            self._work.progress(task, done_by_all)
            touched.append(done_by_any)
        # Before its tasks go back: what is trained again belongs to the phase that it is in.
        self._train_again(self._work.copies.fenced(worker, incarnation, pushes, now), now)
        for task, head in zip(held, touched, strict=True):
            if cause is not None and task is held[0]:
                repeated = self._range_failed(task, cause, head, now)
            else:
                self._work.board.give_back(task.id, head)
                self._phases.advance(now)
        return repeated

    def records_lost(self, pieces: Sequence[Piece], now: float) -> None:
        """A server has lost the gradients of records that count as trained."""
        self._train_again(pieces, now)
        self._phases.advance(now)

    def _train_again(self, pieces: Sequence[Piece], now: float) -> None:
        if pieces:
            self._work.board.train_again(pieces)
            records = sum(len(piece.span) for piece in pieces)
            self._record.note(now, f"{records:,} records are trained again, since they were lost")

    # ------------------------------------------------------------ what evaluations say

    def _follow_rules(self, now: float) -> None:
        """Do what the evaluations so far say."""
        results, rules = self._work.evaluations.course, self._work.rules
        try:
            self._stop_training(rules.reason(results), results[-1].version, now)
            training = self._phases.phase == Phase.TRAINING
            for said in self._work.follow_ups.follow(rules, results, training=training):
                self._record.note(now, said)
        except UnknownMetricError as error:
            self._phases.give_up(Failure.of_user(str(error)), now)

    def _stop_training(self, reason: str | None, version: int, now: float) -> None:
        """Give out no more training tasks, if there is a reason, by the model of this version."""
        board = self._work.board
        if reason and self._phases.phase == Phase.TRAINING:
            if not board.all_leased:
                self._record.note(now, f"training ends early: {reason}")
            board.stop(version)


def _key(task: Task) -> tuple[pb.TaskKind, int, tuple[str, ...]]:
    """The key of a task on which others wait, the same however often it is tried."""
    return task.kind, task.evaluation, task.sources[:1]
