"""One job: its members, who holds which task, and what each event leads to.

The only object through which a job's state changes. Events come in as method calls
with the time `now` (seconds of a monotonic clock); answers are returned; what is to
be done in the world is left in `take_instructions`. What work there is belongs to
flow.py. No I/O, no lock, no clock: the caller serialises the calls (runner.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.config import JobConfig
from shoal.master import outcomes, supervisor
from shoal.master.checkpoints import Checkpoints, Taken
from shoal.master.clocks import Clocks
from shoal.master.failures import Failure
from shoal.master.flow import Flow
from shoal.master.ids import FIRST_INCARNATION, ServerId, Start, WorkerId
from shoal.master.instructions import (
    AdoptProcess,
    ApplyUpdate,
    FenceWorker,
    Finished,
    HeartbeatAnswer,
    Instruction,
    KillProcess,
    StartProcess,
    TerminateProcess,
    Wait,
)
from shoal.master.launcher import Exited
from shoal.master.left_out import LeftOut
from shoal.master.membership import Membership, ProcessState, ServerSlot, WorkerSlot
from shoal.master.phases import Phase
from shoal.master.range_failures import Trouble
from shoal.master.record import JobRecord
from shoal.master.spans import Interval
from shoal.master.tasks import AppliedPush
from shoal.master.updates import Gradient, Updates
from shoal.master.work import Asker, Task
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

WAIT_SECONDS = 0.2
"""How long a worker that finds no task waits: a call without work costs 0.3 ms."""


class Job:
    """The job that `config` describes.

    Methods that speak for a worker or server raise WireError: FENCED if the
    incarnation is over, BAD_REQUEST if it never was.
    """

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.record = JobRecord()
        self.flow = Flow(config, self.record)
        self.members = Membership(
            config.num_workers,
            config.num_ps,
            config.worker_timeout_seconds,
            config.server_timeout_seconds,
        )
        self.clocks = Clocks()
        self.resumptions: list[str] = []
        self.left_out = LeftOut()
        self._held: dict[WorkerId, Task] = {}
        # Leased beside a training task that is not reported yet. Nothing of it is pushed
        # before that is, so of a dead worker's two tasks at most the first is begun.
        self._ahead: dict[WorkerId, Task] = {}
        self._instructions: list[Instruction] = []
        self._begun = False
        self.checkpoints = Checkpoints(
            config, self.flow, self.record, self.members, self._instructions
        )

    @property
    def ended(self) -> bool:
        """Whether the job has succeeded, failed or been stopped."""
        return self.flow.phase.ended

    @property
    def has_instructions(self) -> bool:
        """Whether `take_instructions` would return any."""
        updates = self.flow.updates
        return bool(self._instructions) or (updates is not None and updates.has_decided)

    def take_instructions(self) -> list[Instruction]:
        """What is to be done since the last call, in order."""
        taken = list(self._instructions)
        self._instructions.clear()
        if self.flow.updates is not None:
            taken += map(ApplyUpdate, self.flow.updates.take_decided())
        return taken

    def begin(self, now: float) -> None:
        """Start all servers and workers at once; workers wait for the servers."""
        self.record.started = now
        self._start_all(now)

    def _start_all(self, now: float) -> None:
        for server in self.members.servers.values():
            self._instructions.append(StartProcess(Start(server.id, server.start(now))))
        for worker in self.members.workers.values():
            self._instructions.append(StartProcess(Start(worker.id, worker.start(now))))
        self._tell_of_few_workers(now)

    def _tell_of_few_workers(self, now: float) -> None:
        workers = sum(each.state != ProcessState.DEAD for each in self.members.workers.values())
        if self.flow.updates is not None and (text := self.flow.updates.few_workers(workers)):
            self.record.note(now, text)

    def master_restarted(self, now: float) -> None:
        """A new master goes on with this job: its processes are found again."""
        self.record.note(now, "the master was started again")
        self.checkpoints.master_restarted()
        for server in self.members.servers.values():
            if server.state in (ProcessState.STARTING, ProcessState.ALIVE):
                server.started = server.answered = now
                self._instructions.append(AdoptProcess(Start(server.id, server.incarnation)))
        for worker in self.members.workers.values():
            # Nobody could be heard meanwhile: its silence begins now.
            worker.last_seen = now
            start = Start(worker.id, worker.incarnation)
            if worker.exited is None and worker.incarnation >= FIRST_INCARNATION:
                self._instructions.append(AdoptProcess(start))
            if worker.state == ProcessState.DEAD and not self.ended:
                if worker.exited is None:
                    self._instructions.append(KillProcess(start))
                if not worker.fenced:
                    self._instructions.append(self._fence(worker))
        if self.flow.updates is not None:
            self.flow.updates.tell_again()

    def fail(self, failure: Failure, now: float) -> None:
        """End the job as failed, unless it has ended before."""
        self.flow.fail(failure, now)

    def stop(self, reason: str, now: float) -> None:
        """End the job as stopped, unless it has ended before."""
        self.flow.stop(reason, now)

    def scale(self, workers: int, now: float) -> None:
        """From now on so many workers are wanted; those beyond are asked to end."""
        if self.ended or workers == self.members.workers_wanted:
            return
        self.record.note(now, f"{self.members.workers_wanted} workers become {workers}")
        new, again, leaving = self.members.want_workers(workers)
        for slot in new:
            self._instructions.append(StartProcess(Start(slot.id, slot.start(now))))
        for slot in again:
            self._relaunch(slot, now)
        for slot in leaving:
            self._instructions.append(TerminateProcess(Start(slot.id, slot.incarnation)))

    def tick(self, now: float) -> None:
        """Time has passed: look for silent processes."""
        self.record.throughput.sample(now, self.flow.records[0])
        if self.ended:
            return
        for worker, reason in self.members.silent_workers(now):
            self.taken_for_dead(worker.id, worker.incarnation, reason, now)
        for server in self.members.hung_servers(now):
            self.server_hung(server.id, server.incarnation, now)
        for server in self.members.late_servers(now):
            self.fail(Failure.internal(f"{server.id} did not get ready in time; see its log"), now)
        self.checkpoints.tick(now)

    def resumed(
        self,
        token: str,
        changes: dict[str, Any],
        restored: Taken | None,
        given_up: Sequence[int],
        in_model: Sequence[Interval],
        now: float,
    ) -> None:
        """A job that was stopped, failed or killed goes on, with new processes.

        token: of this resumption. changes: of the configuration, by field. restored: the
        checkpoint that the servers restore. given_up: others, by number, that nobody is to
        restore. in_model: the training records in the one restored.
        """
        self.resumptions.append(token)
        self.config = replace(self.config, **changes)
        self.members = self.members.successor(self.config.num_workers, self.config.num_ps)
        self.checkpoints.resumed(self.members, restored, given_up)
        self.clocks = Clocks()
        self._held.clear()
        self._ahead.clear()
        self._instructions.clear()
        self.record.resumed()
        what = f"checkpoint {restored.number}" if restored is not None else "the beginning"
        self.record.note(now, f"the job was resumed from {what}")
        version = restored.version if restored is not None else 0
        self.flow.resume(in_model, version, len(self.resumptions), self.config.max_bad_records)
        self._start_all(now)

    def checkpoint_begun(self, now: float) -> None:
        """The servers are about to be asked to fix what they hold. Told for the journal."""

    def checkpoint_fixed(self, now: float) -> None:
        """All servers have fixed what they hold. Told for the journal."""

    def checkpoint_taken(self, taken: Taken, final: bool, now: float) -> None:
        """A checkpoint is complete."""
        self.checkpoints.taken(taken, final, now)

    def checkpoint_failed(self, reason: str, final: bool, now: float) -> None:
        """A checkpoint could not be taken; the job goes on without it."""
        self.checkpoints.failed(reason, final, now)

    # ------------------------------------------------------------ members

    def server_registered(
        self,
        server: ServerId,
        incarnation: int,
        address: str,
        now: float,
        restored: str = "",
        replayed: int = 0,
    ) -> None:
        """A server listens at `address`. restored: what of a checkpoint and its log, in words.

        replayed: pushes of its log that it has done again.
        """
        slot = self.members.register_server(server, incarnation, address)
        slot.replayed += replayed
        slot.answered = now
        if restored:
            self.record.note(now, f"{server} is back: {restored}")
        if self.members.servers_ready:
            self.flow.servers_ready(now)

    def server_leaving(self, server: ServerId, incarnation: int, now: float) -> str | None:
        """A server was told to end; as `Checkpoints.leaving`. Raises WireError."""
        self.members.server_calls(server, incarnation)
        return self.checkpoints.leaving(Start(server, incarnation), now)

    def worker_registered(self, worker: WorkerId, incarnation: int, now: float) -> list[str]:
        """A worker is ready; returns the servers' addresses by index.

        Raises WireError also as `server_addresses` does.
        """
        self.members.worker_calls(worker, incarnation, now)
        return self.server_addresses()

    def server_addresses(self) -> list[str]:
        """The servers' addresses by index.

        Raises WireError (NOT_READY) until all of them have registered.
        """
        if not self.members.servers_ready:
            raise WireError(pb.NOT_READY, "not all parameter servers have started yet")
        return [slot.address for slot in self.members.servers.values()]

    def server_status(self, server: ServerId, status: pb.ServerStatus) -> None:
        """What a server said of itself: its version, staleness and age of pushes."""
        slot = self.members.servers[server]
        slot.version, slot.staleness, slot.age = status.version, status.staleness, status.age
        slot.wants_checkpoint = status.wants_checkpoint

    def server_hung(self, server: ServerId, incarnation: int, now: float) -> None:
        """A server has answered nothing for too long; its process is to end."""
        slot = self.members.servers[server]
        if slot.incarnation != incarnation or slot.state != ProcessState.ALIVE:
            return
        seconds = self.config.server_timeout_seconds
        self.record.note(now, f"{server} has not answered for {seconds:g} s, and is killed")
        slot.answered = now  # or it would be killed again before it is gone
        self._instructions.append(KillProcess(Start(server, incarnation)))

    def updates_lost(self, server: ServerId, lost: int, now: float) -> None:
        """A server's incarnations have lost so many acknowledged updates in all."""
        slot = self.members.servers[server]
        self.record.note(now, f"{server} has lost {lost - slot.lost} acknowledged updates")
        slot.lost = lost

    def protection_changed(
        self, server: ServerId, absences: int, seconds: float, why: str, now: float
    ) -> None:
        """With --durability=log, a server's updates are not protected by its log, or are again.

        absences, seconds: of all its incarnations. why: they are not; "" if they are.
        """
        slot = self.members.servers[server]
        if why and (absences > slot.absences or not slot.unprotected):
            self.record.note(now, f"warning: the updates of {server} are NOT PROTECTED: {why}")
        elif not why:
            seconds_now = seconds - slot.absent_seconds
            self.record.note(
                now, f"the updates of {server} are protected again, after {seconds_now:.1f} s"
            )
        slot.absences, slot.absent_seconds, slot.unprotected = absences, seconds, why

    def process_started(self, start: Start, now: float) -> None:
        """A process has begun to run; only from now on is it late if it does not call."""
        self.members.process_started(start, now)

    def process_waits(self, start: Start, why: str, now: float) -> None:
        """A process has to wait before it can run; said once for each reason."""
        if not self.ended:
            self.record.note(now, f"{start.process} waits: {why}")

    def process_exited(self, exited: Exited, now: float) -> None:
        """A process is gone."""
        process, incarnation = exited.start.process, exited.start.incarnation
        if isinstance(process, ServerId):
            self._server_exited(self.members.servers[process], exited, now)
            return
        slot = self.members.workers[process]
        if slot.incarnation != incarnation:
            return
        if self.ended:
            self._rest(slot)
            return
        trouble = None
        if exited.crashed and not slot.leaving:
            trouble = supervisor.death_at_records(slot, exited)
        self._bury(slot, exited.cause, now, trouble, kill=False)
        slot.exited = exited
        slot.forgiven += slot.leaving or not exited.counted
        self._relaunch(slot, now)

    def _server_exited(self, slot: ServerSlot, exited: Exited, now: float) -> None:
        if slot.incarnation != exited.start.incarnation or slot.state == ProcessState.DEAD:
            return
        slot.state = ProcessState.DEAD
        slot.deaths += 1
        slot.forgiven += not exited.counted
        if self.ended:
            return
        self.record.note(now, f"{slot.id} died ({exited.cause})")
        decision = supervisor.after_server_death(slot, exited, self.config, self.flow.phase)
        if isinstance(decision, supervisor.GiveUp):
            self.fail(decision.failure, now)
            return
        self._instructions.append(StartProcess(Start(slot.id, slot.start(now))))

    def process_failed(self, start: Start, failure: Failure, now: float) -> None:
        """A process said that it cannot go on."""
        process = start.process
        if isinstance(process, ServerId):
            message = f"parameter server {process}: {failure.message}"
            self.fail(replace(failure, message=message), now)
            return
        slot = self.members.worker_calls(process, start.incarnation, now)
        if failure.kind == pb.INTERNAL:
            self._crashed(slot, failure, now)
        else:
            self.fail(failure, now)

    def taken_for_dead(self, worker: WorkerId, incarnation: int, cause: str, now: float) -> None:
        """A worker has been silent for too long."""
        slot = self.members.workers[worker]
        if slot.incarnation == incarnation:
            self._bury(slot, cause, now, kill=True)

    def _crashed(self, slot: WorkerSlot, failure: Failure, now: float) -> None:
        # Its process is in an unknown state, so it is replaced like one that died.
        slot.failure = failure
        if not self.ended:
            # Only what is about records is held against them.
            trouble = failure if failure.span is not None else None
            self._bury(slot, failure.message, now, trouble, kill=True)

    def _rest(self, slot: WorkerSlot) -> None:
        slot.state = ProcessState.DEAD
        self.record.keep_stages(slot.stage_seconds)
        slot.stage_seconds = {}

    def _bury(
        self,
        slot: WorkerSlot,
        cause: str,
        now: float,
        trouble: Failure | None = None,
        *,
        kill: bool,
    ) -> None:
        """Take a worker for dead: it is not heard any more, its task goes to others.

        trouble: of what it died, if its task may be at fault.
        """
        if slot.state == ProcessState.DEAD:
            return
        self._rest(slot)
        slot.trouble = trouble
        self.clocks.forget(slot.id)
        if slot.leaving:
            self.record.note(now, f"{slot.id} left")
        else:
            slot.deaths += 1
            self.record.note(now, f"{slot.id} died ({cause})")
        if kill:
            self._instructions.append(KillProcess(Start(slot.id, slot.incarnation)))
        self._tell_of_few_workers(now)
        if self.flow.updates is not None:
            self.flow.updates.leave(slot.id)
        # Also where it holds no task: a push under way must not arrive later.
        self._instructions.append(self._fence(slot))
        task = self._held.get(slot.id)
        if task is not None and task.kind != pb.TRAIN:
            del self._held[slot.id]
            slot.forgiven += self.flow.give_back(task, _trouble(slot), now)

    def _fence(self, slot: WorkerSlot) -> FenceWorker:
        updates = self.flow.updates
        kept = () if updates is None else updates.kept(slot.id, slot.incarnation)
        return FenceWorker(slot.id, slot.incarnation, kept)

    def fenced(
        self,
        worker: WorkerId,
        incarnation: int,
        pushes: Sequence[AppliedPush | None],
        now: float,
    ) -> None:
        """The servers take no more pushes of this worker; what each had of it last.

        pushes: of each server; None for one that could not be asked.
        """
        slot = self.members.workers[worker]
        if slot.incarnation != incarnation or slot.fenced:
            return
        slot.fenced = True
        if self.flow.updates is not None:
            # What the servers hold counts for nothing: only what was admitted is applied.
            pushes = [self.flow.updates.forget(worker)]
        if (task := self._held.pop(worker, None)) is not None:
            repeated = self.flow.give_back_training(task, pushes, _trouble(slot), now)
            slot.forgiven += repeated
        if (ahead := self._ahead.pop(worker, None)) is not None:
            self.flow.give_back_training(ahead, (), None, now)
        self._relaunch(slot, now)

    def _relaunch(self, slot: WorkerSlot, now: float) -> None:
        # Not before the fence has answered: a server tells what the dead incarnation
        # did only as long as no later one has pushed.
        if self.ended or slot.exited is None or not slot.fenced or not self.members.wanted(slot):
            return
        decision = supervisor.after_worker_death(slot, slot.exited, self.config.relaunch_limit)
        if isinstance(decision, supervisor.GiveUp):
            self.fail(decision.failure, now)
            return
        incarnation = slot.start(now)
        self.record.note(now, f"{slot.id} was started again, restart {slot.starts - 1}")
        self._instructions.append(StartProcess(Start(slot.id, incarnation)))

    # ------------------------------------------------------------ tasks

    def task_wanted(self, worker: WorkerId, incarnation: int, now: float) -> Task | Wait | Finished:
        """A worker asks for work."""
        self.members.worker_calls(worker, incarnation, now)
        if self.ended:
            return Finished()
        if self.flow.phase == Phase.TRAINING and not self._enough_workers():
            return Wait(WAIT_SECONDS)
        # Asking while holding a task means that the answer before was lost.
        # One that failed on this worker is for another to try, if one will ask soon.
        asker = Asker(worker.index, others=any(each != worker for each in self._held))
        task = self._held.get(worker) or self.flow.take(asker)
        # Not when a task ends: between two of them a worker goes on counting, or the
        # others could slip ahead of it there.
        for each in (self.clocks, self.flow.updates):
            if each is not None:
                (each.enter if task and task.kind == pb.TRAIN else each.leave)(worker)
        if task is None:
            return Wait(WAIT_SECONDS)
        self._held[worker] = task
        return task

    def task_ahead_wanted(
        self, worker: WorkerId, incarnation: int, held: int, now: float
    ) -> Task | Finished:
        """A worker at training task `held` asks for the one after it; Finished: none yet.

        None either if `held` is not at work, but itself leased ahead or over.
        """
        self.members.worker_calls(worker, incarnation, now)
        present = self._held.get(worker)
        if self.ended or present is None or present.id != held or present.kind != pb.TRAIN:
            return Finished()
        if (ahead := self._ahead.get(worker)) is not None:
            return ahead  # the answer before was lost
        # Where few tasks are left, each goes to who is free first.
        asker = Asker(worker.index, others=any(each != worker for each in self._held))
        task = self.flow.take_ahead(asker, self.members.workers_alive)
        if task is None:
            return Finished()
        self._ahead[worker] = task
        return task

    def _enough_workers(self) -> bool:
        least = min(self.config.min_workers, self.members.workers_wanted)
        self._begun = self._begun or self.members.workers_alive >= least
        return self._begun

    def held(self, worker: WorkerId) -> Task | None:
        """The task that a worker holds, and is at."""
        return self._held.get(worker)

    def held_ahead(self, worker: WorkerId) -> Task | None:
        """The training task that a worker holds beside that, and has not begun."""
        return self._ahead.get(worker)

    def leased(self, worker: WorkerId, task_id: int) -> Task | None:
        """The task of this id if the worker holds it."""
        held = (self._held.get(worker), self._ahead.get(worker))
        return next((task for task in held if task is not None and task.id == task_id), None)

    def version_seen(self, version: int, now: float) -> None:
        """A worker has seen this model version."""
        del now  # a round of evaluation begins at a version
        self.flow.version_seen(version)

    def clock_reported(self, worker: WorkerId, incarnation: int, clock: int, now: float) -> int:
        """A worker has had so many steps applied; returns the slowest clock."""
        self.members.worker_calls(worker, incarnation, now)
        return self.clocks.advance(worker, clock)

    def update_wanted(self, worker: WorkerId, incarnation: int, now: float) -> int | None:
        """With --sync, a worker asks for which update to compute a gradient; None: wait."""
        self.members.worker_calls(worker, incarnation, now)
        return self._updates().join(worker)

    def gradient_offered(
        self, gradient: Gradient, update: int, task_id: int, records_done: int, now: float
    ) -> bool:
        """With --sync, all servers hold a gradient for `update`; whether it will be applied."""
        self.members.worker_calls(gradient.worker, gradient.incarnation, now)
        task = self._held.get(gradient.worker)
        leased = task is not None and task.id == task_id
        admitted = self._updates().offer(gradient, update, task_id, records_done, leased=leased)
        if admitted and task is not None:
            self.flow.progress(task, records_done)
        return admitted

    def update_applied(self, number: int, version: int, now: float) -> None:
        """All servers have applied an update, and are at this version."""
        self._updates().applied(number)
        self.flow.version_seen(version)
        self.flow.advance(now)

    def _updates(self) -> Updates:
        if self.flow.updates is None:
            raise WireError(pb.BAD_REQUEST, "the job does not train with --sync")
        return self.flow.updates

    def heartbeat(
        self, worker: WorkerId, incarnation: int, beat: outcomes.Heartbeat, now: float
    ) -> HeartbeatAnswer:
        """A worker lives, and tells how far it is."""
        slot = self.members.worker_calls(worker, incarnation, now)
        slot.stage_seconds = beat.stage_seconds
        if beat.loss_batches:
            self.record.loss.add(now, beat.loss, beat.loss_batches)
        task = self._held.get(worker)
        if task is not None and task.id == beat.task:
            self.flow.progress(task, beat.records_done)
            abandon = False
        else:
            # A heartbeat overtaken by the report of its task asks for nothing.
            abandon = beat.task not in (0, slot.last_finished_task)
        self.version_seen(beat.version, now)
        return HeartbeatAnswer(self.ended, abandon)

    def gradients_left_out(
        self,
        worker: WorkerId,
        incarnation: int,
        minibatches: int,
        records: int,
        why: str,
        now: float,
    ) -> None:
        """A worker has left out so many minibatches in all, of so many records."""
        slot = self.members.worker_calls(worker, incarnation, now)
        first = not self.left_out.minibatches
        if self.left_out.count(slot, minibatches, records, why) and first:
            self.record.note(now, f"warning: {worker} has left out a minibatch: {why}")

    def task_reported(
        self,
        worker: WorkerId,
        incarnation: int,
        task_id: int,
        outcome: outcomes.Outcome,
        version: int,
        now: float,
        trained: outcomes.Trained = outcomes.NOTHING_TRAINED,
    ) -> None:
        """A worker is through with its task, well or badly.

        trained: of a TRAIN task that failed, how far it came.

        Raises WireError also with UNKNOWN_TASK if it does not hold the task, and
        with BAD_REQUEST if the outcome is not one of such a task.
        """
        slot = self.members.worker_calls(worker, incarnation, now)
        if task_id == slot.last_finished_task:
            return
        task = self._held.get(worker)
        if task is None or task.id != task_id:
            raise WireError(pb.UNKNOWN_TASK, f"{worker} does not hold task {task_id}")
        if isinstance(outcome, Failure):
            self.flow.progress(task, trained.done)
            if outcome.kind == pb.INTERNAL:
                self.flow.task_broke(task, outcome, now)
                self._crashed(slot, outcome, now)
            else:
                self._end_lease(worker, task)
                trouble = Trouble(outcome, crash=False, worker=worker)
                self.flow.task_failed(task, trouble, trained, now)
            return
        if not isinstance(outcome, outcomes.EXPECTED[task.kind]):
            kind = pb.TaskKind.Name(task.kind)
            raise WireError(pb.BAD_REQUEST, f"not an outcome of a {kind} task: {outcome}")
        self._end_lease(worker, task)
        # First: if this is the end of training, the last round begins at this version.
        self.flow.version_seen(version)
        self.flow.settle(task, outcome, str(worker), now)
        self.checkpoints.tick(now)

    def _end_lease(self, worker: WorkerId, task: Task) -> None:
        """A worker is through with the task that it was at."""
        self.members.workers[worker].last_finished_task = task.id
        del self._held[worker]
        if (ahead := self._ahead.pop(worker, None)) is not None:
            self._held[worker] = ahead


def _trouble(slot: WorkerSlot) -> Trouble | None:
    """Of what a worker died, if its task may be at fault."""
    if slot.trouble is None:
        return None
    return Trouble(slot.trouble, crash=True, worker=slot.id)
