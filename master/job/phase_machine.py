"""The course of a job: its phase, which phase follows, and how it ends.

Owns the phase and the reason of a failure. task_outcomes.py decides on the consequences of a task,
workload.py makes the tasks, worker_lifecycle.py and server_lifecycle.py follow the processes. No
I/O and no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from shoal.config.job import JobConfig
from shoal.master.job.members.left_out import LeftOut
from shoal.master.job.updates import Updates
from shoal.master.work import phases
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.failures import Failure
from shoal.master.work.phases import Phase
from shoal.master.work.record import JobRecord
from shoal.master.work.units import Task
from shoal.master.work.workload import Workload
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)

_ROUNDS = 3
"""In a row of training what was lost, and no push: only a defect of ours goes on so."""

_LAST = frozenset(
    {
        *(Phase.EVALUATING, Phase.PREDICTING, Phase.FINISHING, Phase.EXPORTING),
        *(Phase.PUBLISHING, Phase.CONFIRMING),
    }
)
"""Phases after which no other has more tasks."""


class PhaseMachine:
    """The course of the job that `config` describes; `record` keeps the events.

    work: its tasks. updates: those of --sync. left_out: minibatches that are in no push.
    version: the highest version seen of the model. failure: the reason why the job failed.
    giving_up: the reason why it is about to fail, once a checkpoint has all that was trained.
    returns: how often training has begun again. newest_checkpoint: its number; 0 for none.
    """

    def __init__(
        self,
        config: JobConfig,
        record: JobRecord,
        work: Workload,
        updates: Updates,
        left_out: LeftOut,
    ) -> None:
        self._config = config
        self._record = record
        self._plan = phases.plan(config)
        self._work = work
        self._updates = updates
        self._left_out = left_out
        self.phase = Phase.STARTING
        self.failure: Failure | None = None
        self.giving_up: Failure | None = None
        self.version = 0
        self._saved = self._published = self._confirmed = False
        self.whole = False  # the newest checkpoint has all that was trained
        self.returns = self.newest_checkpoint = 0
        self._rounds = self._before = 0  # the former since as little was made as the latter

    # ------------------------------------------------------------ phases

    def _go(self, target: Phase, now: float) -> None:
        phases.TRANSITIONS.step(self.phase, target)
        if self.phase == Phase.TRAINING:
            self._record.training_ended = now
        self.phase = target
        if target == Phase.TRAINING:
            self._record.training_begins(now)
            self._saved = self.whole = False
        elif target == Phase.PUBLISHING:
            self._published = False
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
        if self.phase == Phase.PUBLISHING:
            return self._published
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
        self._saved = self._published = self._confirmed = self.whole = False
        self._plan = phases.plan(self._config)
        self._work.resume(in_model, version, times, max_bad_records)
        self._updates.resumed()

    @property
    def saves(self) -> bool:
        """True if the job waits for a checkpoint of all that was trained."""
        return self.phase == Phase.SAVING or self.giving_up is not None

    def saved(self, now: float, lacks: str = "") -> None:
        """The last checkpoint is there. lacks: why not, if it cannot be had."""
        self._saved, self.whole = True, not lacks
        if self.giving_up is not None:
            self._end_failed(self.giving_up, now, lacks, exports=True)
        self.advance(now)

    def published(self, now: float) -> None:
        """The last delta is published, or is not to be."""
        self._published = True
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
        """True if a worker has read the job's data."""
        return self.phase not in (Phase.STARTING, Phase.DESCRIBING)

    @property
    def workers_needed(self) -> int | None:
        """The workers that the rest of the work can occupy, at least 1; None: all there are.

        That is not known before all data are described.

        While the last checkpoint is taken, waiting workers are kept: training may begin again
        after it.
        """
        if self.phase not in _LAST or not self._work.description.complete:
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
                self._train_again(now)
            elif self._work_done():
                if self.phase == Phase.TRAINING and (why := self._why_nothing_was_trained()):
                    self.fail(Failure.of_user(why), now)
                    break
                following = self._plan[self._plan.index(self.phase) + 1]
                if following == Phase.SUCCEEDED and self._work.copies.lacked:
                    following = Phase.DEGRADED
                self._go(following, now)
            else:
                break

    @property
    def _made(self) -> int:
        """The number of pushes that have reached a server, or of the updates made of them."""
        return self._work.copies.pushes + self._updates.made

    def _why_nothing_was_trained(self) -> str:
        """The reason, for a job whose records count as trained; "" where a gradient was pushed."""
        records, minibatches = self._work.ledger.trained, self._left_out.minibatches
        if not records or self._made:
            return ""
        if minibatches:
            return (
                f"no minibatch was trained: --nonfinite-gradients=skip left out all {minibatches:,}"
                f" of them, the last one as {self._left_out.last}"
            )
        return (
            f"no record was trained: the model's feed left none of the {records:,} records of "
            "--training-data. Look at its filter, or name other data"
        )

    def _train_again(self, now: float) -> None:
        """Go back to training, unless this has led to nothing before."""
        self._rounds = self._rounds + 1 if self._made == self._before else 1
        self._before = self._made
        if self._rounds > _ROUNDS:
            text = f"the records that were lost were given out {_ROUNDS} times and never pushed"
            self.fail(Failure.internal(text), now)
        else:
            self.returns += 1
            self._go(Phase.TRAINING, now)

    def _must_train_again(self) -> bool:
        """True if records were lost after training, and no worker is at another task."""
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
        """Fail as `fail` does, after a checkpoint if no other has a model that is trained.

        For failures at which the servers are well.
        """
        if self.phase.ended or self.giving_up is not None:
            return
        first_export = _exports(task) and not self.newest_checkpoint
        if first_export or (self._is_after_training and not self.whole):
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
        """The way to export the model that was trained, in words."""
        config = self._config
        number = self.newest_checkpoint
        here = not config.image
        what = config.job_dir if here else f"{config.checkpoint_dir} --model-def {config.model_def}"
        command = f"shoal export {what} --output FOLDER"
        if not self.whole:
            return f"The job's newest checkpoint, number {number}, is older: {command}"
        lost = self._is_after_training and not self._work.trained
        but = ", but for records that a server has lost since," if lost else ""
        return (
            f"What was trained{but} is in the job's newest checkpoint, number {number}: {command}"
        )

    def stop(self, reason: str, now: float) -> None:
        """End the job as stopped, unless it has ended before."""
        if self.giving_up is not None:
            self.fail(Failure.internal(f"the job was stopped: {reason}"), now)
        if not self.phase.ended:
            self._record.note(now, f"the job was stopped: {reason}")
            self._go(Phase.STOPPED, now)

    # ------------------------------------------------------------ what the phase allows

    @property
    def gives_out(self) -> bool:
        """True if workers are given tasks now."""
        idle = self.phase.ended or self.phase == Phase.STARTING
        return not idle and self.giving_up is None

    def starts_round(self, version: int) -> bool:
        """True if an evaluation is due once this model version is seen."""
        # With the last tasks under way, the last round is about to tell the same.
        if self.phase != Phase.TRAINING or self._work.board.all_leased:
            return False
        return self._work.evaluations.due_at(max(self.version, version))

    def version_seen(self, version: int) -> None:
        """A worker has seen this model version."""
        self.version = max(self.version, version)
        if self.starts_round(version):
            self._work.evaluations.version_reached(self.version, self._work.epoch)


def _exports(task: Task | None) -> bool:
    return task is not None and task.kind == pb.EXPORT
