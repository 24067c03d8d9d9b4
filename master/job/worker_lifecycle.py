"""The lives of workers: their start, death, fencing, and the start of a successor.

A worker taken for dead is fenced: no server takes its pushes any more. Only then is it
known what of its task is trained, the rest goes to others, and a successor may start.
Owns that order. Who is a member is membership.py's, whether a dead worker is started
again supervisor.py's, what becomes of its task task_outcomes.py's. No I/O.
"""

from __future__ import annotations

from dataclasses import replace

from shoal.config.job import JobConfig
from shoal.master.job import events
from shoal.master.job.heard import uses_heard
from shoal.master.job.instructions import (
    AdoptProcess,
    FenceWorker,
    KillProcess,
    StartProcess,
    TerminateProcess,
)
from shoal.master.job.members import supervisor
from shoal.master.job.members.launcher import Exited
from shoal.master.job.members.members import ProcessState, WorkerMember
from shoal.master.job.members.restarts import RelaunchLimit
from shoal.master.job.server_lifecycle import ServerLifecycle
from shoal.master.job.state import JobState
from shoal.master.job.task_outcomes import TaskOutcomes
from shoal.master.work.failures import Failure
from shoal.master.work.ids import FIRST_INCARNATION, ServerId, Start, WorkerId
from shoal.master.work.range_failures import FailureCause
from shoal.proto import shoal_pb2 as pb


class WorkerLifecycle:
    """The workers of a job."""

    def __init__(
        self,
        config: JobConfig,
        state: JobState,
        outcomes: TaskOutcomes,
        servers: ServerLifecycle,
    ) -> None:
        self._relaunch_limit = RelaunchLimit.of(config)
        self._outcomes = outcomes
        self._servers = servers
        self._phases = state.phases
        self._record = state.record
        self._members = state.members
        self._updates = state.updates
        self._clocks = state.clocks
        self._instructions = state.instructions

    def resumed(self, config: JobConfig) -> None:
        """The job goes on with this configuration."""
        self._relaunch_limit = RelaunchLimit.of(config)

    def start_all(self, now: float) -> None:
        """Start all workers."""
        for member in self._members.workers.values():
            self._start(member, now)
        self._tell_of_few(now)

    def _start(self, member: WorkerMember, now: float) -> None:
        self._instructions.append(StartProcess(Start(member.id, member.start(now))))

    def _tell_of_few(self, now: float) -> None:
        workers = sum(each.state != ProcessState.DEAD for each in self._members.workers.values())
        if text := self._updates.few_workers(workers):
            self._record.note(now, text)

    def adopt_all(self, now: float) -> None:
        """Find those again that another master started."""
        for member in self._members.workers.values():
            # Nobody could be heard meanwhile: its silence begins now.
            member.last_seen = now
            start = Start(member.id, member.incarnation)
            if member.exited is None and member.incarnation >= FIRST_INCARNATION:
                self._instructions.append(AdoptProcess(start))
            if member.state == ProcessState.DEAD and not self._phases.phase.ended:
                if member.exited is None:
                    self._instructions.append(KillProcess(start))
                if not member.fenced:
                    self._fence(member)

    def scale(self, workers: int, why: str, now: float) -> None:
        """From now on so many workers are wanted; those beyond are asked to end.

        why: in words, "" if somebody asked for it.
        """
        before = self._members.workers_wanted
        said = f"the number of workers goes from {before} to {workers}"
        self._record.note(now, f"{said}: {why}" if why else said)
        new, again, draining = self._members.want_workers(workers)
        for member in new:
            self._start(member, now)
        for member in again:
            self._relaunch(member, now)
        for member in draining:
            self._instructions.append(TerminateProcess(Start(member.id, member.incarnation)))

    def replace(self, event: events.WorkerReplaced, now: float) -> None:
        """Ask a worker to end, which is then started again."""
        member = self._members.workers[event.worker]
        if member.incarnation != event.incarnation or member.state is not ProcessState.ALIVE:
            return
        self._record.note(now, f"{member.id} is replaced: {event.why}")
        member.draining = True
        self._instructions.append(TerminateProcess(Start(member.id, member.incarnation)))

    def give_back(self, event: events.WorkerGivenBack, now: float) -> None:
        """There is nothing left for a worker to do, which will end when it hears so."""
        member = self._members.workers[event.worker]
        member.draining = member.given_back = True
        for each in (self._clocks, self._updates):
            each.leave(member.id)
        self._record.note(now, f"{member.id} ends: no work is left for it")

    def call_back(self, _: events.WorkersCalledBack, now: float) -> None:
        """The workers that were given back are needed again."""
        for member in self._members.workers.values():
            if member.given_back:
                member.given_back = False
                self._relaunch(member, now)

    def exited(self, worker: WorkerId, exited: Exited, now: float) -> None:
        """A worker's process is gone."""
        member = self._members.workers[worker]
        if member.incarnation != exited.start.incarnation:
            return
        if self._phases.phase.ended:
            self._rest(member)
            return
        died_of = None
        if exited.crashed and not member.draining:
            died_of = supervisor.death_at_records(member, exited)
        self._mark_dead(member, exited.cause, now, died_of, kill=False)
        member.exited = exited
        member.excused |= member.draining or not exited.counted
        self._relaunch(member, now)

    def taken_for_dead(self, event: events.TakenForDead, now: float) -> None:
        """A worker has been silent for too long."""
        member = self._members.workers[event.worker]
        if member.incarnation == event.incarnation:
            self._mark_dead(member, event.cause, now, kill=True)

    def failed(self, member: WorkerMember, failure: Failure, now: float) -> None:
        """A worker said that it cannot go on."""
        storage = failure.kind == pb.STORAGE
        if failure.another_tries or (storage and self._phases.data_known):
            self.crashed(member, failure, now)
        elif storage:
            # Nothing of the data was ever read: it is more likely not as the user means it.
            self._phases.fail(replace(failure, kind=pb.USER_ERROR), now)
        else:
            self._phases.give_up(failure, now)

    def crashed(self, member: WorkerMember, failure: Failure, now: float) -> None:
        """A worker met an error of ours, or did not reach a server."""
        # Its process is in an unknown state, so it is replaced like one that died.
        member.failure = failure
        member.excused |= failure.kind in (pb.SERVER_AWAY, pb.STORAGE)
        if not self._phases.phase.ended:
            # Only what is about records is held against them.
            died_of = failure if failure.span is not None else None
            self._mark_dead(member, failure.message, now, died_of, kill=True)
            if failure.server is not None:
                self._servers.missed(ServerId(failure.server), member.id, now)

    @uses_heard
    def _rest(self, member: WorkerMember) -> None:
        self._record.keep_stages(member.stage_seconds)
        member.rest()

    def _mark_dead(
        self,
        member: WorkerMember,
        cause: str,
        now: float,
        died_of: Failure | None = None,
        *,
        kill: bool,
    ) -> None:
        """Take a worker for dead: it is not heard any more, its task goes to others.

        died_of: of what it died, if its task may be at fault.
        """
        if member.state == ProcessState.DEAD:
            return
        self._rest(member)
        member.died_of = died_of
        self._clocks.forget(member.id)
        if member.draining:
            if not member.given_back:
                self._record.note(now, f"{member.id} left")
        else:
            member.deaths += 1
            self._record.note(now, f"{member.id} died ({cause})")
        if kill:
            self._instructions.append(KillProcess(Start(member.id, member.incarnation)))
        if not member.given_back:
            self._tell_of_few(now)
        self._updates.leave(member.id)
        # Also where it holds no task: a push under way must not arrive later.
        self._fence(member)
        task = member.held
        if task is not None and task.kind != pb.TRAIN:
            member.end_task()
            member.excused |= self._outcomes.give_back(task, _failure_cause(member), now)

    def _fence(self, member: WorkerMember) -> None:
        kept = self._updates.kept(member.id, member.incarnation)
        self._instructions.append(FenceWorker(member.id, member.incarnation, kept))

    def fenced(self, event: events.WorkerFenced, now: float) -> None:
        """The servers take no more pushes of a worker: its tasks go to others."""
        worker = event.worker
        member = self._members.workers[worker]
        if member.incarnation != event.incarnation or member.fenced:
            return
        member.fenced = True
        pushes = self._updates.counted(worker, event.pushes)
        self._updates.forget(worker)
        held = [task for task in (member.held, member.ahead) if task is not None]
        member.held = member.ahead = None
        cause = _failure_cause(member)
        who = worker, event.incarnation
        member.excused |= self._outcomes.fenced(*who, held, pushes, cause, now)
        self._relaunch(member, now)

    def _others_work(self, member: WorkerMember, now: float) -> bool:
        """True if a worker is there that has not failed too often itself."""
        return any(
            each.state is ProcessState.ALIVE
            and self._members.wanted(each)
            and not each.restarts.beyond(now, self._relaunch_limit)
            for each in self._members.workers.values()
            if each is not member
        )

    def _relaunch(self, member: WorkerMember, now: float) -> None:
        # Not before the fence has answered: a server tells what the dead incarnation
        # did only as long as no later one has pushed.
        ended = self._phases.phase.ended
        if ended or member.exited is None or not member.fenced or not self._members.wanted(member):
            return
        decision = supervisor.after_worker_death(member, member.exited, self._relaunch_limit, now)
        if isinstance(decision, supervisor.GiveUp) and self._others_work(member, now):
            decision = supervisor.Relaunch(member.restarts.long_pause(now, self._relaunch_limit))
            self._record.note(now, f"warning: {member.id} fails again and again; the others go on")
        if isinstance(decision, supervisor.GiveUp):
            self._phases.give_up(decision.failure, now)
            return
        reason = supervisor.restart_reason(member.exited, member.failure, asked=member.draining)
        self._record.restarts[member.id.role, reason] += 1
        incarnation = member.start(now)
        pause = f", after a pause of {decision.pause:g} s" if decision.pause else ""
        self._record.note(now, f"{member.id} was started again, restart {member.starts - 1}{pause}")
        self._instructions.append(StartProcess(Start(member.id, incarnation), decision.pause))


def _failure_cause(member: WorkerMember) -> FailureCause | None:
    """The cause of a worker's death, if its task may be at fault."""
    if member.died_of is None:
        return None
    return FailureCause(member.died_of, crash=True, worker=member.id)
