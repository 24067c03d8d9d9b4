"""Which worker gets which task, and what its word of it leads to.

Owns when a worker is given work, and that only the holder of a task speaks for it. What
work there is, is workload.py's, what an outcome leads to task_outcomes.py's; a worker that broke
at its task is worker_lifecycle.py's. No I/O.
"""

from __future__ import annotations

from shoal.master.job import events
from shoal.master.job.instructions import Finished, Wait
from shoal.master.job.members.members import WorkerMember
from shoal.master.job.state import JobState
from shoal.master.job.task_outcomes import TaskOutcomes
from shoal.master.job.worker_lifecycle import WorkerLifecycle
from shoal.master.work import outcomes
from shoal.master.work.failures import Failure
from shoal.master.work.ids import WorkerId
from shoal.master.work.phases import Phase
from shoal.master.work.range_failures import FailureCause
from shoal.master.work.tasks.kinds import KINDS
from shoal.master.work.units import Duty, Requester, Task
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

WAIT_SECONDS = 0.2
"""How long a worker that finds no task waits: a call without work costs 0.3 ms."""


class Assignments:
    """The tasks that a job's workers hold.

    min_workers: training does not begin before so many are ready.
    evaluation_workers: so many, the first ones, do evaluations while the others train.
    """

    def __init__(
        self,
        min_workers: int,
        evaluation_workers: int,
        state: JobState,
        outcomes: TaskOutcomes,
        workers: WorkerLifecycle,
    ) -> None:
        self._min_workers = min_workers
        self._evaluation_workers = evaluation_workers
        self._outcomes = outcomes
        self._workers = workers
        self._phases = state.phases
        self._work = state.work
        self._members = state.members
        self._moves = state.moves
        self._updates = state.updates
        self._clocks = state.clocks
        self.resumed()

    def resumed(self) -> None:
        """The job goes on with new workers, of which training waits for so many again."""
        self._allowed = self._min_workers <= 1  # who asks is there

    def wanted(self, event: events.TaskWanted, now: float) -> Task | Wait | Finished:
        """A worker asks for work."""
        worker = event.worker
        member = self._members.worker_calls(worker, event.incarnation, now)
        if self._phases.phase.ended or member.draining:
            return Finished()
        if self._phases.phase == Phase.TRAINING and not self._allowed:
            return Wait(WAIT_SECONDS)
        # Asking while holding a task means that the answer before was lost.
        task = member.held
        if task is None and self._phases.gives_out:
            phase, version = self._phases.phase, self._phases.version
            task = self._work.take(phase, version, self._requester(member), now)
            self._begun_at(task, now)
        # Not when a task ends: between two of them a worker goes on counting, or the
        # others could slip ahead of it there.
        for each in (self._clocks, self._updates):
            (each.enter if task and task.kind == pb.TRAIN else each.leave)(worker)
        if task is None:
            return Wait(WAIT_SECONDS)
        member.held = task
        return task

    @property
    def too_many(self) -> bool:
        """True if there are more workers than the work that is left can occupy."""
        needed = self._phases.workers_needed
        return needed is not None and self._members.workers_staying > needed

    def _begun_at(self, task: Task | None, now: float) -> None:
        if task is not None and task.kind == pb.TRAIN:
            self._work.copies.begun(self._work.board.lease(task.id), now)

    def wanted_ahead(self, event: events.TaskAheadWanted, now: float) -> Task | Finished:
        """A worker at a training task asks for the one after it; Finished: none yet."""
        worker = event.worker
        member = self._members.worker_calls(worker, event.incarnation, now)
        present = member.holds(event.held)
        if self._phases.phase.ended or present is None or present.kind != pb.TRAIN:
            return Finished()
        if member.ahead is not None:
            return member.ahead  # the answer before was lost
        if self._phases.phase != Phase.TRAINING or not self._phases.gives_out:
            return Finished()
        # Where few tasks are left, each goes to who is free first.
        task = self._work.take_ahead(self._requester(member), self._members.workers_alive, now)
        if task is None:
            return Finished()
        member.ahead = task
        self._begun_at(task, now)
        return task

    def _requester(self, member: WorkerMember) -> Requester:
        # A task that failed on this worker is for another to try, if one will ask soon.
        others = any(each.held for each in self._members.workers.values() if each is not member)
        still = not self._moves.begun_or_settling
        return Requester(
            member.id.index, member.incarnation, others, self._duty(member.id), exports=still
        )

    def _duty(self, worker: WorkerId) -> Duty:
        """The work of a worker while training goes on; all work where one of the two has nobody."""
        if not self._evaluation_workers:
            return Duty.ALL
        alive = (each.index for each in self._members.alive)
        evaluate = [index < self._evaluation_workers for index in alive]
        if all(evaluate) or not any(evaluate):
            return Duty.ALL
        return Duty.EVALUATION if worker.index < self._evaluation_workers else Duty.TRAINING

    @property
    def enough_workers(self) -> bool:
        """True if training, which has waited for workers, can begin now."""
        if self._allowed or self._phases.phase != Phase.TRAINING:
            return False
        least = min(self._min_workers, self._members.workers_wanted)
        return self._members.workers_alive >= least

    def allow_training(self, _event: events.TrainingAllowed, _: float) -> None:
        """Give out training tasks from now on, however few workers are left."""
        self._allowed = True

    def progressed(self, member: WorkerMember, task_id: int, records_done: int) -> bool:
        """A worker says how far it is with a task (0: with none); whether it is to leave it."""
        if (task := member.holds(task_id)) is not None:
            self._work.progress(task, records_done)
            return False
        # A heartbeat overtaken by the report of its task asks for nothing.
        return task_id not in (0, member.last_finished_task)

    def gradient_offered(self, event: events.GradientOffered, now: float) -> bool:
        """All servers hold a gradient; returns whether it will be applied."""
        gradient, task_id, done = event.gradient, event.task_id, event.records_done
        member = self._members.worker_calls(gradient.worker, gradient.incarnation, now)
        leased = member.holds(task_id) is not None
        admitted = self._updates.offer(gradient, event.update, task_id, done, leased=leased)
        if admitted and member.held is not None:
            self._work.progress(member.held, done)
        return admitted

    def reported(self, event: events.TaskReported, now: float) -> bool:
        """A worker is through with its task; returns whether that succeeded just now."""
        task_id, outcome = event.task_id, event.outcome
        member = self._members.worker_calls(event.worker, event.incarnation, now)
        if task_id == member.last_finished_task:
            return False
        if (task := member.holds(task_id)) is None:
            raise WireError(pb.UNKNOWN_TASK, f"{member.id} does not hold task {task_id}")
        if not isinstance(outcome, (Failure, KINDS[task.kind].succeeds)):
            kind = pb.TaskKind.Name(task.kind)
            raise WireError(pb.BAD_REQUEST, f"not an outcome of a {kind} task: {outcome}")
        # Not before: a call that is refused is no event, and so changes nothing that one reads.
        self._work.copies.acknowledged(member.id, member.incarnation, event.acknowledged)
        if isinstance(outcome, Failure):
            self._failed(member, task, outcome, event.trained, now)
            return False
        self._end(member, task)
        # First: if this is the end of training, the last round begins at this version.
        self._phases.version_seen(event.version)
        self._outcomes.settle(task, outcome, str(member.id), now)
        if task.kind == pb.TRAIN:
            self._members.reached_all()
        return True

    def _failed(
        self,
        member: WorkerMember,
        task: Task,
        failure: Failure,
        trained: outcomes.Trained,
        now: float,
    ) -> None:
        self._work.progress(task, trained.done)
        if failure.another_tries:
            if failure.kind == pb.INTERNAL:
                self._outcomes.task_broke(task, failure, now)
            self._workers.crashed(member, failure, now)
        else:
            self._end(member, task)
            cause = FailureCause(failure, crash=False, worker=member.id)
            self._outcomes.task_failed(task, cause, trained, now)

    def _end(self, member: WorkerMember, task: Task) -> None:
        member.last_finished_task = task.id
        member.end_task()
