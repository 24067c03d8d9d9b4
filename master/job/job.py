"""One job: everything that can happen to it, each event as a value.

This is the only object through which a job's state changes. `Job.on` takes an event (events.py) at
the time `now` (seconds of a monotonic clock). It returns the answer, and leaves instructions for
the world outside in `take_instructions`. There is no I/O, no lock and no clock: the caller
serialises the calls (shared_job.py), and journal/events.py writes the events down. The other
methods are calls that are no events themselves, and may lead to some.

Owns who may speak, and the order in which the parts hear of an event. The parts decide on the
consequences: worker_lifecycle.py, server_lifecycle.py, assignments.py (who gets which task),
task_outcomes.py (what follows from its result), phase_machine.py and checkpoints.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from shoal.config.job import JobConfig
from shoal.master.job import events
from shoal.master.job.assignments import Assignments
from shoal.master.job.checkpoints.checkpoints import Checkpoints
from shoal.master.job.checkpoints.drains import Drained
from shoal.master.job.events import Event, Result
from shoal.master.job.instructions import (
    ApplyUpdate,
    Assignment,
    FenceWorker,
    Finished,
    Instruction,
    Wait,
)
from shoal.master.job.members.launcher import Exited, Waiting
from shoal.master.job.members.members import ProcessState
from shoal.master.job.members.start_waits import StartWaits
from shoal.master.job.members.storage_waits import StorageWaits
from shoal.master.job.moves.placement import Weights
from shoal.master.job.publishing.publishing import Publishing
from shoal.master.job.scaling.autoscaling import SCALE_SECONDS, Autoscaler
from shoal.master.job.scaling.server_scaling import ServerScaler
from shoal.master.job.scaling.stragglers import Stragglers
from shoal.master.job.server_lifecycle import ServerLifecycle
from shoal.master.job.state import JobState
from shoal.master.job.task_outcomes import TaskOutcomes
from shoal.master.job.worker_lifecycle import WorkerLifecycle
from shoal.master.work.failures import Failure
from shoal.master.work.ids import FIRST_INCARNATION, ServerId, Start, WorkerId
from shoal.master.work.phases import BEFORE_THE_END_OF_TRAINING, Phase
from shoal.master.work.range_failures import shortened
from shoal.master.work.units import Task
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError


class Job:
    """The job that `config` describes.

    Events and calls that speak for a worker or server raise WireError: FENCED if the incarnation is
    over, BAD_REQUEST if it never was.
    """

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        state = JobState.of(config)
        self.record, self.work, self.updates = state.record, state.work, state.updates
        self.phases, self.members, self.moves = state.phases, state.members, state.moves
        self.clocks, self.left_out = state.clocks, state.left_out
        self.resumptions: list[str] = []
        self.start_waits = StartWaits(config)
        self.storage_waits = StorageWaits()
        self._instructions = state.instructions
        self.outcomes = TaskOutcomes(state)
        self.servers = ServerLifecycle(config, state, self.outcomes)
        self._workers = WorkerLifecycle(config, state, self.outcomes, self.servers)
        self.checkpoints = Checkpoints(config, state)
        self.publishing = Publishing(config, state)
        self._look_anew()
        self._assignments = Assignments(
            config.min_workers, config.evaluation_workers, state, self.outcomes, self._workers
        )

    def _look_anew(self) -> None:
        """Measure anew: nothing that was seen until now holds any more."""
        self.autoscaler = Autoscaler(self.config, SCALE_SECONDS)
        self.stragglers = Stragglers(SCALE_SECONDS)
        self.server_scaler = ServerScaler(self.config, SCALE_SECONDS)

    @property
    def ended(self) -> bool:
        """True if the job has succeeded, failed or been stopped."""
        return self.phases.phase.ended

    @property
    def halted(self) -> bool:
        """True if all processes are to end: the job has ended, or is to be resumed once more."""
        return self.ended or self.checkpoints.refused is not None

    @property
    def has_instructions(self) -> bool:
        """True if `take_instructions` would return any."""
        return bool(self._instructions) or self.updates.has_decided

    def take_instructions(self) -> list[Instruction]:
        """Take the instructions since the last call, in order."""
        taken = [*self._instructions, *map(ApplyUpdate, self.updates.take_decided())]
        self._instructions.clear()
        return taken

    # ------------------------------------------------------------ events

    def on(self, event: Event[Result], now: float) -> Result:
        """Let an event happen; returns its answer."""
        answer: Result = self._handlers[type(event)](event, now)
        return answer

    @cached_property
    def _handlers(self) -> dict[type[Event[Any]], Callable[[Any, float], Any]]:
        return {
            events.JobBegun: self._begun,
            events.MasterRestarted: self._master_restarted,
            events.Resumed: self._resumed,
            events.Noted: self._noted,
            events.JobFailed: self._failed,
            events.JobStopped: self._stopped,
            events.WorkersWanted: self._workers_wanted,
            events.Autoscaled: self._autoscaled,
            events.ServersWanted: self._servers_wanted,
            events.VersionSeen: self._version_seen,
            events.TableWanted: self.moves.want_table,
            events.MoveBegun: self.moves.begun,
            events.MoveCommitted: self._move_committed,
            events.MoveEnded: self._move_ended,
            events.MoveFailed: self.moves.failed,
            events.CheckpointBegun: self.checkpoints.begun,
            events.CheckpointFixed: self.checkpoints.fixed,
            events.CheckpointTaken: self.checkpoints.taken,
            events.CheckpointFailed: self.checkpoints.failed,
            events.CheckpointsFound: self.checkpoints.found,
            events.CheckpointRecovered: self.checkpoints.recovered,
            events.CheckpointRefused: self.checkpoints.refuse,
            events.DeltaPublished: self.publishing.published,
            events.DeltaFailed: self.publishing.failed,
            events.DeltaLeftOut: self.publishing.left_out,
            events.PublishingHeld: self.publishing.hold,
            events.ServerRegistered: self._server_registered,
            events.ServerHung: self.servers.hung,
            events.ServersConfirmed: self.servers.confirmed,
            events.WorkerMet: self.servers.met,
            events.ProtectionChanged: self.servers.protection_changed,
            events.ProcessFailed: self._process_failed,
            Exited: self._exited,
            Waiting: self.start_waits.waits,
            events.WorkerRegistered: self._worker_registered,
            events.WorkerReplaced: self._worker_replaced,
            events.TakenForDead: self._workers.taken_for_dead,
            events.WorkerFenced: self._workers.fenced,
            events.TaskWanted: self._assignments.wanted,
            events.TaskAheadWanted: self._assignments.wanted_ahead,
            events.TaskReported: self._task_reported,
            events.TrainingAllowed: self._assignments.allow_training,
            events.WorkerGivenBack: self._workers.give_back,
            events.WorkersCalledBack: self._workers.call_back,
            events.GradientsLeftOut: self._gradients_left_out,
            events.PipelineDeepened: self._pipeline_deepened,
            events.WorkerWaits: self._worker_waits,
            events.GradientOffered: self._assignments.gradient_offered,
            events.UpdateApplied: self._update_applied,
        }

    def _begun(self, _: events.JobBegun, now: float) -> None:
        self.record.started = self.record.run_began = now
        if self.config.continue_from:
            self.record.note(now, f"the job continues from {self.config.continue_from}")
        self.servers.start_all(now)
        self._workers.start_all(now)

    def _master_restarted(self, _: events.MasterRestarted, now: float) -> None:
        self.record.note(now, "the master was started again")
        self.checkpoints.master_restarted()
        self.publishing.master_restarted()
        self.moves.master_restarted()
        self.servers.adopt_all(now)
        self._workers.adopt_all(now)
        self.updates.tell_again()

    def _resumed(self, event: events.Resumed, now: float) -> None:
        self.resumptions.append(event.token)
        self.config = config = replace(self.config, **event.changes)
        same_table = self.moves.keeps_table(config.num_servers)
        self.members.resume(config)
        self.servers.resumed(config)
        self._workers.resumed(config)
        self._look_anew()
        self.moves.resumed(config)
        restored = event.restored
        same_servers = config.sync or same_table
        self.checkpoints.resumed(restored, event.given_up, same_servers=same_servers)
        self.publishing.resumed(config)
        self.start_waits.resumed(config)
        self.clocks.clear()
        self._instructions.clear()
        self.record.resumed(now)
        what = f"checkpoint {restored.number}" if restored is not None else "the beginning"
        self.record.note(now, f"the job was resumed from {what}")
        if event.log:
            self.record.note(now, f"warning: not all of the log of updates is in it: {event.log}")
        number, version = (restored.number, restored.version) if restored is not None else (0, 0)
        in_model = event.in_model
        self.work.copies.resumed(config.num_servers, number, event.shards, in_model, now)
        self.outcomes.resumed()
        self._assignments.resumed()
        self.phases.resume(in_model, version, len(self.resumptions), config.max_bad_records)
        self.servers.start_all(now)
        self._workers.start_all(now)

    def _noted(self, event: events.Noted, now: float) -> None:
        self.record.note(now, event.text)

    def _failed(self, event: events.JobFailed, now: float) -> None:
        self.phases.fail(event.failure, now)

    def _stopped(self, event: events.JobStopped, now: float) -> None:
        self.phases.stop(event.reason, now)

    def _workers_wanted(self, event: events.WorkersWanted, now: float) -> None:
        if not self.ended and event.workers != self.members.workers_wanted:
            self._workers.scale(event.workers, "", now)
            self.autoscaler.restart()

    def _autoscaled(self, event: events.Autoscaled, now: float) -> None:
        self.autoscaler.decided(event.state)
        before = self.members.workers_wanted
        self.record.scalings["up" if event.workers > before else "down"] += 1
        self._workers.scale(event.workers, event.why, now)

    def _worker_replaced(self, event: events.WorkerReplaced, now: float) -> None:
        self.stragglers.replaced(event.worker)
        self._workers.replace(event, now)

    def _servers_wanted(self, event: events.ServersWanted, now: float) -> None:
        if not self.ended:
            self.moves.want_servers(event, now)

    def _version_seen(self, event: events.VersionSeen, now: float) -> None:
        del now
        self.phases.version_seen(event.version)

    def _move_committed(self, _: events.MoveCommitted, now: float) -> None:
        self.moves.committed(now)
        routing = self.moves.routing
        self.work.copies.have_servers(routing.servers, routing.present)
        self.servers.memory.have(routing.servers)

    def _move_ended(self, event: events.MoveEnded, now: float) -> None:
        self.moves.ended(event, now)
        self.checkpoints.tick(now)

    def _server_registered(self, event: events.ServerRegistered, now: float) -> list[FenceWorker]:
        server = event.server
        member, again = self.members.register_server(event, now)
        if server not in self.members.servers:
            self.start_waits.came(server)  # with the first move it gets rows
        elif not again:
            self.start_waits.came(server)
            self.checkpoints.kept.restored(server, event.checkpoint)
            if member.registered and (lacks := self.updates.lacks(event.update, event.held)):
                self.servers.bereft(server, lacks, now)
            self.servers.registered(member, event, now)
        return [
            FenceWorker(worker, over, self.updates.kept(worker, over))
            for worker, over in self.members.fences()
        ]

    def _exited(self, exited: Exited, now: float) -> None:
        process = exited.start.process
        if self.halted and not self.ended:
            return  # as it was to
        if isinstance(process, ServerId):
            self.servers.exited(process, exited, now)
        else:
            self._workers.exited(process, exited, now)

    def _process_failed(self, event: events.ProcessFailed, now: float) -> None:
        process, incarnation = event.start.process, event.start.incarnation
        if self.halted and not self.ended:
            return  # whatever it is about: the next incarnation will say it
        if isinstance(process, ServerId):
            self.members.server_calls(process, incarnation)
            self.servers.failed(process, event.failure, now)
        else:
            member = self.members.worker_calls(process, incarnation, now)
            self._workers.failed(member, event.failure, now)

    def _worker_registered(
        self, event: events.WorkerRegistered, now: float
    ) -> pb.RegisterWorkerReply:
        member = self.members.worker_calls(event.worker, event.incarnation, now)
        addresses = self.servers.addresses()
        member.state = ProcessState.ALIVE
        self.start_waits.came(event.worker)
        return pb.RegisterWorkerReply(servers=addresses, data_known=self.phases.data_known)

    def _task_reported(self, event: events.TaskReported, now: float) -> None:
        if self._assignments.reported(event, now):
            self.checkpoints.tick(now)

    def _gradients_left_out(self, event: events.GradientsLeftOut, now: float) -> None:
        worker, why = event.worker, event.why
        member = self.members.worker_calls(worker, event.incarnation, now)
        first = not self.left_out.minibatches
        if self.left_out.count(member, event.minibatches, event.records, why) and first:
            self.record.note(now, f"warning: {worker} has left out a minibatch: {why}")

    def _pipeline_deepened(self, event: events.PipelineDeepened, now: float) -> None:
        self.members.deepest_pipeline = event.depth
        many = f"up to {event.depth + 1} steps under way (--pipeline-depth)"
        self.record.note(now, f"{event.worker} has {many}: {event.why}")

    def _worker_waits(self, event: events.WorkerWaits, now: float) -> None:
        member = self.members.worker_calls(event.worker, event.incarnation, now)
        if text := self.storage_waits.says(member, event.what, self.members.workers.values()):
            self.record.note(now, shortened(text))

    def _update_applied(self, event: events.UpdateApplied, now: float) -> None:
        self.updates.applied(event.number)
        self.phases.version_seen(event.version)
        self.phases.advance(now)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Time has passed: look for silent processes, and for what is due."""
        self.record.throughput.sample(now, self.work.records[0])
        if self.halted:
            return
        for event in self.members.overdue(now):
            self.on(event, now)
        if self.phases.workers_needed is None and self.members.given_back:
            self.on(events.WorkersCalledBack(), now)
        still = not (self.checkpoints.under_way or self.checkpoints.servers_drain)
        still = still and self.work.follow_ups.idle
        # Before checkpoints, which one may ask for at once after another; and a move asks for one.
        self.moves.tick(self.phases.phase, now, may_move=still)
        self.checkpoints.moves_had_their_turn()
        self.checkpoints.tick(now)
        for event in self.publishing.due(now):
            self.on(event, now)
        self.servers.tick()
        for event in self._scaled(now):
            self.on(event, now)
        deadline = self.config.active_deadline_seconds
        if deadline and self.record.seconds_of_run(now) > deadline:
            why = f"it has taken {deadline} s, as --active-deadline-seconds allows"
            self.on(events.JobFailed(Failure.of_user(why)), now)
        late = self.start_waits.too_long(self.members, self.config.min_workers, now)
        if late is not None:
            self.on(events.JobFailed(late), now)

    def _scaled(self, now: float) -> Iterator[Event[None]]:
        """The events by which the job gets another number of processes, or says that it would."""
        members, moves, budget = self.members, self.moves, self.config.budget
        if self._trains and self.autoscaler.wants and not members.given_back:
            allowed = budget.most_workers(moves.servers_wanted)
            yield from self.autoscaler.due(members, self._steps_left, now, allowed)
            yield from self.stragglers.due(members, now, acts=self.autoscaler.acts)
        scaler = self.server_scaler
        if self._trains and scaler.wants and members.servers_ready and not moves.pending:
            yield from scaler.due(members, moves, self.servers.memory.of, budget, now)

    @property
    def _trains(self) -> bool:
        return self.phases.phase is Phase.TRAINING

    def _steps_left(self) -> float | None:
        """Steps of training that are left; None while not all data are known."""
        board = self.work.board
        if not board.all_known:
            return None
        ledger = board.ledger()
        return (ledger.total - ledger.trained) / self.config.records_per_step

    # ------------------------------------------------------------ clients

    def check_servers(self, servers: int) -> None:
        """Raises WireError(BAD_REQUEST) if the job cannot have so many servers."""
        if self.phases.phase not in BEFORE_THE_END_OF_TRAINING:
            raise WireError(pb.BAD_REQUEST, "the job has been trained: its servers stay")
        self.moves.check_servers(servers)

    def scale_servers(self, servers: int, now: float) -> None:
        """Go on with so many servers. Raises as `check_servers`."""
        self.check_servers(servers)
        if servers != self.moves.servers_wanted:
            self.on(events.ServersWanted(servers), now)

    def rebalance(self, weights: Weights, now: float) -> bool:
        """Divide the work equally among the servers; False if they do already.

        weights: of the routing slots, as `placement.balanced` takes them. Raises WireError.
        """
        self.check_servers(self.moves.routing.servers)
        if self.moves.pending:
            raise WireError(pb.BAD_REQUEST, "rows are being moved already: try again after that")
        table = self.moves.rebalanced(weights)
        if table is None:
            return False
        why = "slots are to move, so that the servers do equal shares"
        self.on(events.TableWanted(table, why), now)
        return True

    # ------------------------------------------------------------ processes

    def process_started(self, start: Start, now: float) -> None:
        """A process has begun to run; only from now on is it late if it does not call."""
        self.members.process_started(start, now)

    # ------------------------------------------------------------ servers

    def restore_wanted(self, server: ServerId, incarnation: int, now: float) -> pb.RestoreReply:
        """A server asks what it is to restore before it registers. Raises WireError."""
        del now
        # Until one has registered, the log is of an earlier course: what that has beyond the
        # checkpoint does not count as trained, and will be trained again.
        replay = self.members.server_calls(server, incarnation).registered
        joins = server not in self.members.servers
        again = incarnation > FIRST_INCARNATION and not joins
        offered = self.checkpoints.kept.offered(server) if again else []
        # Of a job that was resumed all servers begin with the same one.
        whole_job = bool(offered and self.resumptions and not replay)
        if whole_job:
            offered = offered[:1]
        moves = self.moves
        logged = replay and not moves.unsaved
        return pb.RestoreReply(
            again=again,
            replay=replay,
            whole_job=whole_job,
            checkpoints=[each.number for each in offered],
            nonces=[each.nonce for each in offered],
            holder=self.members.holder_of(server, moves.routing.dense) if logged else "",
            joins=joins,
            routing=moves.routing.to_message(),
        )

    def server_addresses(self, now: float) -> list[str]:
        """The servers' addresses by index. Raises WireError as `ServerLifecycle.addresses` does."""
        del now
        return self.servers.addresses()

    def server_progressed(
        self, server: ServerId, incarnation: int, progress: pb.ServerProgress, now: float
    ) -> None:
        """Note the progress of a server that cannot serve yet. It will say so again."""
        self.members.server_calls(server, incarnation).told_progress(progress, now)

    def server_draining(
        self,
        server: ServerId,
        incarnation: int,
        now: float,
        seconds: float = 0.0,
        *,
        closed: bool = True,
    ) -> Drained:
        """A server was told to end, and will be killed after so many seconds. Raises WireError.

        closed: it takes no more pushes, so that a checkpoint has all that it ever acknowledged.
        """
        start = Start(server, incarnation)
        if self.moves.departures.gone(start):
            return Drained("its rows are at other servers")
        self.members.server_calls(server, incarnation)
        member = self.members.servers.get(server)
        if member is None:
            return Drained("it has no rows of the job")
        training = self.phases.phase is Phase.TRAINING
        if not closed:
            # Where another one waits for a checkpoint, that has all of this one as well; after it
            # that other one is away, and nothing could move.
            able = training and not self.checkpoints.servers_drain
            return Drained(None, self.moves.departs(member, seconds, now, able=able))
        self.moves.departures.closed(start)
        return Drained(self.checkpoints.draining(start, now))

    # ------------------------------------------------------------ workers

    def assignment_wanted(
        self, worker: WorkerId, incarnation: int, held: int, now: float
    ) -> Assignment | Wait | Finished:
        """A worker asks for work. held: the training task that it is at; 0 for none."""
        answer = (
            self.on(events.TaskAheadWanted(worker, incarnation, held), now)
            if held
            else self.task_wanted(worker, incarnation, now)
        )
        if not isinstance(answer, Task):
            return answer
        reductions = self.work.follow_ups.rate_reductions
        return Assignment(answer, self.clocks.of(worker), reductions)

    def task_wanted(self, worker: WorkerId, incarnation: int, now: float) -> Task | Wait | Finished:
        """A worker that is at no task asks for one."""
        self.members.worker_calls(worker, incarnation, now)  # one that is refused changes nothing
        if self._assignments.enough_workers:
            self.on(events.TrainingAllowed(), now)
        answer = self.on(events.TaskWanted(worker, incarnation), now)
        if isinstance(answer, Wait) and self._assignments.too_many:
            self.on(events.WorkerGivenBack(worker), now)
            return Finished()
        return answer

    def report_made(
        self, report: events.TaskReported, held: int, now: float
    ) -> Assignment | Wait | Finished:
        """A worker reports a task, and asks for another in the same call.

        held: the training task that it goes on with: as `assignment_wanted` takes it. 0: it asks
        for none, and is given none. Raises as `TaskReported`; then nothing is leased.
        """
        self.on(report, now)
        if not held:
            return Finished()
        return self.assignment_wanted(report.worker, report.incarnation, held, now)

    def heartbeat(
        self, worker: WorkerId, incarnation: int, beat: pb.HeartbeatRequest, now: float
    ) -> pb.HeartbeatReply:
        """A worker lives, and tells how far it is."""
        member = self.members.worker_calls(worker, incarnation, now)
        member.stage_seconds = dict(beat.stage_seconds)
        member.steps_done = beat.steps_done
        self.members.worker_busy(member, beat.busy_seconds, beat.busy_with, beat.longest_seconds)
        if beat.loss_batches:
            self.record.loss.add(now, beat.loss, beat.loss_batches)
        self.record.learning_rate = beat.learning_rate or self.record.learning_rate
        abandon = self._assignments.progressed(member, beat.task, beat.records_done)
        self.work.copies.acknowledged(worker, incarnation, beat.acknowledged)
        if self.phases.starts_round(beat.version):
            self.on(events.VersionSeen(beat.version), now)
        else:
            self.phases.version_seen(beat.version)
        member.pipeline = depth, why = beat.pipeline_depth, beat.pipeline_why
        if why and depth > self.members.deepest_pipeline:
            self.on(events.PipelineDeepened(worker, depth, why), now)
        if beat.waits_for != member.waits_for:
            self.on(events.WorkerWaits(worker, incarnation, beat.waits_for), now)
        if beat.left_out > member.left_out[0]:
            left_out = (beat.left_out, beat.left_out_records, beat.left_out_why)
            self.on(events.GradientsLeftOut(worker, incarnation, *left_out), now)
        limit = self.members.step_limit
        return pb.HeartbeatReply(stop=self.ended, abandon_task=abandon, step_limit_seconds=limit)

    def clock_reported(
        self, worker: WorkerId, incarnation: int, clock: int, now: float
    ) -> pb.ClockReply:
        """A worker has had so many steps applied."""
        self.members.worker_calls(worker, incarnation, now)
        slowest = self.clocks.advance(worker, clock)
        bound = self.config.staleness_bound
        return pb.ClockReply(slowest=slowest, next=self.clocks.next_told(worker, bound))

    def update_wanted(self, worker: WorkerId, incarnation: int, now: float) -> int | None:
        """With --sync, a worker asks for which update to compute a gradient; None: wait."""
        self.members.worker_calls(worker, incarnation, now)
        return self.updates.join(worker)
