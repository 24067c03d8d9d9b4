"""One job: everything that can happen to it, each event as a method.

This is the only object through which a job's state changes. An event comes in as a method call
with the time `now` (seconds of a monotonic clock). The method returns the answer, and leaves
instructions for the world outside in `take_instructions`. There is no I/O, no lock and no clock:
the caller serialises the calls (shared_job.py), and journal/events.py writes them down by their
names and arguments.

Owns who may speak, and the order in which the parts hear of an event. The parts decide on the
consequences: worker_lifecycle.py, server_lifecycle.py, assignments.py (who gets which task),
task_outcomes.py (what follows from its result), phase_machine.py and checkpoints.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.config.job import JobConfig
from shoal.master.job.assignments import Assignments
from shoal.master.job.checkpoints.checkpoints import Checkpoints
from shoal.master.job.checkpoints.drains import Drained
from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import (
    ApplyUpdate,
    Assignment,
    ClockAnswer,
    FenceWorker,
    Finished,
    HeartbeatAnswer,
    Instruction,
    RestoreOffer,
    Wait,
    WorkerWelcome,
)
from shoal.master.job.members.launcher import Exited
from shoal.master.job.members.members import ProcessState
from shoal.master.job.members.start_waits import StartWaits
from shoal.master.job.members.storage_waits import StorageWaits
from shoal.master.job.moves.placement import Weights
from shoal.master.job.scaling.autoscaling import SCALE_SECONDS, Autoscaler
from shoal.master.job.scaling.server_scaling import ServerScaler
from shoal.master.job.scaling.stragglers import Stragglers
from shoal.master.job.server_lifecycle import ServerLifecycle
from shoal.master.job.state import JobState
from shoal.master.job.task_outcomes import TaskOutcomes
from shoal.master.job.updates import Gradient
from shoal.master.job.worker_lifecycle import WorkerLifecycle
from shoal.master.work import outcomes
from shoal.master.work.accounts.applied import AppliedPush, LastPush
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.failures import Failure
from shoal.master.work.ids import FIRST_INCARNATION, ServerId, Start, WorkerId
from shoal.master.work.phases import Phase
from shoal.master.work.range_failures import shortened
from shoal.master.work.units import Task
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError


class Job:
    """The job that `config` describes.

    Methods that speak for a worker or server raise WireError: FENCED if the
    incarnation is over, BAD_REQUEST if it never was.
    """

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        state = JobState.of(config)
        self.record, self.work, self.updates = state.record, state.work, state.updates
        self.phases, self.members, self.moves = state.phases, state.members, state.moves
        self.clocks, self.leases, self.left_out = state.clocks, state.leases, state.left_out
        self.resumptions: list[str] = []
        self.start_waits = StartWaits(config)
        self.storage_waits = StorageWaits()
        self._instructions = state.instructions
        self.outcomes = TaskOutcomes(state)
        self.servers = ServerLifecycle(config, state, self.outcomes)
        self._workers = WorkerLifecycle(config, state, self.outcomes, self.servers)
        self.checkpoints = Checkpoints(config, state)
        self.autoscaler = Autoscaler(config, SCALE_SECONDS)
        self.stragglers = Stragglers(SCALE_SECONDS)
        self.server_scaler = ServerScaler(config, SCALE_SECONDS)
        self._assignments = Assignments(
            config.min_workers, config.evaluation_workers, state, self.outcomes, self._workers
        )

    @property
    def ended(self) -> bool:
        """Whether the job has succeeded, failed or been stopped."""
        return self.phases.phase.ended

    @property
    def halted(self) -> bool:
        """Whether all processes are to end: the job has ended, or is to be resumed once more."""
        return self.ended or self.checkpoints.refused is not None

    @property
    def has_instructions(self) -> bool:
        """Whether `take_instructions` would return any."""
        return bool(self._instructions) or self.updates.has_decided

    def take_instructions(self) -> list[Instruction]:
        """What is to be done since the last call, in order."""
        taken = [*self._instructions, *map(ApplyUpdate, self.updates.take_decided())]
        self._instructions.clear()
        return taken

    # ------------------------------------------------------------ the job

    def begin(self, now: float) -> None:
        """Start all servers and workers at once; workers wait for the servers."""
        self.record.started = self.record.run_began = now
        if self.config.continue_from:
            self.record.note(now, f"the job continues from {self.config.continue_from}")
        self.servers.start_all(now)
        self._workers.start_all(now)

    def master_restarted(self, now: float) -> None:
        """A new master goes on with this job: its processes are found again."""
        self.record.note(now, "the master was started again")
        self.checkpoints.master_restarted()
        self.moves.master_restarted()
        self.servers.adopt_all(now)
        self._workers.adopt_all(now)
        self.updates.tell_again()

    def resumed(
        self,
        token: str,
        changes: dict[str, Any],
        restored: Taken | None,
        given_up: Sequence[int],
        in_model: Sequence[Interval],
        now: float,
        log: str = "",
        shards: Sequence[Sequence[LastPush]] = (),
    ) -> None:
        """A job that was stopped, failed or killed goes on, with new processes.

        token: of this resumption. changes: of the configuration, by field. restored: the
        checkpoint that the servers restore. given_up: others, by number, that nobody is to
        restore. in_model: the training records in the one restored. log: why the log of updates
        was not used, or not to its end. shards: of the one restored, the last push of each worker
        in each server's shard; none with --sync.
        """
        self.resumptions.append(token)
        self.config = replace(self.config, **changes)
        same_table = self.moves.keeps_table(self.config.num_servers)
        self.members.resume(self.config)
        self.servers.resumed(self.config)
        self._workers.resumed(self.config)
        self.autoscaler = Autoscaler(self.config, SCALE_SECONDS)
        self.stragglers = Stragglers(SCALE_SECONDS)
        self.server_scaler = ServerScaler(self.config, SCALE_SECONDS)
        self.moves.resumed(self.config)
        same_servers = self.config.sync or same_table
        self.checkpoints.resumed(restored, given_up, same_servers=same_servers)
        self.start_waits.resumed(self.config)
        self.clocks.clear()
        self.leases.clear()
        self._instructions.clear()
        self.record.resumed(now)
        what = f"checkpoint {restored.number}" if restored is not None else "the beginning"
        self.record.note(now, f"the job was resumed from {what}")
        if log:
            self.record.note(now, f"warning: not all of the log of updates is in it: {log}")
        number, version = (restored.number, restored.version) if restored is not None else (0, 0)
        self.work.copies.resumed(self.config.num_servers, number, shards, in_model, now)
        self.outcomes.resumed()
        self._assignments.resumed()
        self.phases.resume(in_model, version, len(self.resumptions), self.config.max_bad_records)
        self.servers.start_all(now)
        self._workers.start_all(now)

    def scale(self, workers: int, now: float) -> None:
        """From now on so many workers are wanted; those beyond are asked to end."""
        if not self.ended and workers != self.members.workers_wanted:
            self._workers.scale(workers, "", now)
            self.autoscaler.restart()

    def check_servers(self, servers: int, now: float) -> None:
        """Raises WireError(BAD_REQUEST) if the job cannot have so many servers."""
        del now
        if self.phases.phase not in (Phase.STARTING, Phase.DESCRIBING, Phase.TRAINING):
            raise WireError(pb.BAD_REQUEST, "the job has been trained: its servers stay")
        self.moves.check_servers(servers)

    def scale_servers(self, servers: int, why: str, now: float) -> None:
        """From now on so many servers are wanted, which `check_servers` has found possible."""
        if not self.ended and servers != self.moves.servers_wanted:
            self.moves.want_servers(servers, why, now)

    def rebalance(self, weights: Weights, now: float) -> bool:
        """Have the servers do equal shares of the work; False if they do already.

        weights: of the routing slots, as `placement.balanced` takes them. Raises WireError.
        """
        self.check_servers(self.moves.routing.servers, now)
        if self.moves.pending:
            raise WireError(pb.BAD_REQUEST, "rows are being moved already: try again after that")
        table = self.moves.rebalanced(weights)
        if table is None:
            return False
        # By the method of this object, as in `tick`.
        self.move_wanted(table, "slots are to move, so that the servers do equal shares", now)
        return True

    def move_wanted(self, table: pb.RoutingTable, why: str, now: float) -> None:
        """Slots are to be where this table has them."""
        self.moves.want_table(table, why, now)

    def move_begun(self, table: pb.RoutingTable, now: float) -> int:
        """Rows begin to move to where this table has them; the number of this attempt."""
        del now
        self.moves.begun(table)
        return self.moves.attempt

    def move_committed(self, now: float) -> None:
        """All rows are where they are to be: from now on the new table holds."""
        self.moves.committed(now)
        routing = self.moves.routing
        self.work.copies.have_servers(routing.servers, routing.present)
        self.servers.memory.have(routing.servers)

    def move_ended(
        self, slots: int, rows: int, size: int, seconds: float, paused: float, now: float
    ) -> None:
        """All servers know that the move is over, and have only their own rows.

        size: bytes that moved. paused: seconds for which no push was taken.
        """
        self.moves.ended(slots, rows, size, seconds, paused, now)
        self.checkpoints.tick(now)

    def move_failed(self, why: str, now: float) -> None:
        """A move was given up, and all servers know it."""
        self.moves.failed(why, now)

    def autoscaled(self, workers: int, why: str, state: dict[str, Any], now: float) -> None:
        """The job has decided on its number of workers. state: of the search, after that."""
        self.autoscaler.decided(state)
        before = self.members.workers_wanted
        self.record.scalings["up" if workers > before else "down"] += 1
        self._workers.scale(workers, why, now)

    def worker_replaced(self, worker: WorkerId, incarnation: int, why: str, now: float) -> None:
        """The job has decided that a worker is to end, and to be started again elsewhere.

        why: in words.
        """
        self.stragglers.replaced(worker)
        self._workers.replace(worker, incarnation, why, now)

    def tick(self, now: float) -> None:
        """Time has passed: look for silent processes."""
        self.record.throughput.sample(now, self.work.records[0])
        if self.halted:
            return
        # By the methods of this object: what they do is written down, a tick is not.
        for worker, reason in self.members.silent_workers(now):
            self.taken_for_dead(worker.id, worker.incarnation, reason, now)
        for server in self.members.hung_servers(now):
            self.server_hung(server.id, server.incarnation, now)
        for server in self.members.late_servers(now):
            doing = f"it was to {server.progress.what}; " if server.progress.what else ""
            late = f"{server.id} did not get ready in time; {doing}see its log"
            self.fail(Failure.internal(late), now)
        if self.phases.workers_needed is None and self.members.given_back:
            self.workers_called_back(now)
        still = not (self.checkpoints.under_way or self.checkpoints.drains.pending)
        still = still and self.work.follow_ups.idle
        # Before checkpoints, which one may ask for at once after another; and a move asks for one.
        self.moves.tick(self.phases.phase, now, may_move=still)
        self.checkpoints.moves_had_their_turn()
        self.checkpoints.tick(now)
        self.servers.tick()
        self._autoscale(now)
        self._autoscale_servers(now)
        self._look_at_limits(now)

    def _autoscale(self, now: float) -> None:
        """Have another number of workers, or others, if their speed says so."""
        training = self.phases.phase is Phase.TRAINING and not self.members.given_back
        if not (self.autoscaler.wants and training):
            return
        self._search_workers(now)
        self._replace_straggler(now)

    def _search_workers(self, now: float) -> None:
        wanted = self.members.workers_wanted
        allowed = self.config.budget.most_workers(self.moves.servers_wanted)
        found = self.autoscaler.look(self.members, self._steps_left, now, allowed)
        if found is None or found.workers == wanted:
            return
        if self.autoscaler.acts:
            # By the method of this object, as in `tick`.
            self.autoscaled(found.workers, found.why, self.autoscaler.search.state(), now)
        elif self.autoscaler.is_news(found):
            change = f"from {wanted} to {found.workers}"
            self.noted(f"the number of workers would go {change}: {found.why}", now)

    def _replace_straggler(self, now: float) -> None:
        """Have another worker in the place of one that is far slower than the others."""
        found = self.stragglers.look(self.members, now)
        if found is None:
            return
        if self.autoscaler.acts:
            # By the method of this object, as in `tick`.
            self.worker_replaced(found.worker, found.incarnation, found.why, now)
        else:
            self.stragglers.replaced(found.worker)
            self.noted(f"{found.worker} would be replaced: {found.why}", now)

    def _autoscale_servers(self, now: float) -> None:
        """Have one more server, if those that are there will not do."""
        training = self.phases.phase is Phase.TRAINING and self.members.servers_ready
        if not (self.server_scaler.wants and training) or self.moves.pending:
            return
        moves = self.moves
        absent = len(moves.routing.absent)
        forecast = self.servers.memory.of
        found = self.server_scaler.look(self.members, forecast, now, absent, moves.count)
        if found is None:
            return
        if resource := self.config.budget.lacks(self.members.workers_wanted, found.servers):
            if self.server_scaler.is_news(found):
                limit = f"--max-resources has too little {resource} for a further server"
                self.noted(f"warning: {limit}, and {found.why}", now)
            return
        if self.server_scaler.acts:
            # By the method of this object, as in `tick`.
            self.scale_servers(found.servers, found.why, now)
        elif self.server_scaler.is_news(found):
            change = f"from {self.moves.servers_wanted} to {found.servers}"
            self.noted(f"the number of servers would go {change}: {found.why}", now)

    def _steps_left(self) -> float | None:
        """Steps of training that are left; None while not all data are known."""
        board = self.work.board
        if not board.all_known:
            return None
        ledger = board.ledger()
        return (ledger.total - ledger.trained) / self.config.records_per_step

    def _look_at_limits(self, now: float) -> None:
        """End the job if it, or a process that it waits for, has taken longer than it may."""
        deadline = self.config.active_deadline_seconds
        if deadline and self.record.seconds_of_run(now) > deadline:
            why = f"it has taken {deadline} s, as --active-deadline-seconds allows"
            self.fail(Failure.of_user(why), now)
        late = self.start_waits.too_long(self.members, self.config.min_workers, now)
        if late is not None:
            self.fail(late, now)

    def noted(self, text: str, now: float) -> None:
        """Something happened around the job that its user is to read."""
        self.record.note(now, text)

    def fail(self, failure: Failure, now: float) -> None:
        """End the job as failed, unless it has ended before."""
        self.phases.fail(failure, now)

    def stop(self, reason: str, now: float) -> None:
        """End the job as stopped, unless it has ended before."""
        self.phases.stop(reason, now)

    def checkpoint_begun(self, now: float) -> None:
        """The servers are about to be asked to fix what they hold."""
        del now
        self.checkpoints.begun()

    def checkpoint_fixed(self, now: float) -> None:
        """All servers have fixed what they hold. Told for the journal."""

    def checkpoint_taken(self, taken: Taken, final: bool, now: float) -> None:
        """A checkpoint is complete."""
        self.checkpoints.taken(taken, final, now)

    def checkpoints_found(self, there: Sequence[Taken], now: float) -> None:
        """Those that a new master finds, oldest first: they may be others than events tell of."""
        del now
        self.checkpoints.found(there)

    def checkpoint_recovered(self, taken: Taken, base: int, replayed: int, now: float) -> None:
        """A checkpoint was made of checkpoint `base` (0: of the beginning) and the log after it.

        replayed: pushes that were done again for it. The job is about to be resumed from it.
        """
        self.checkpoints.recovered(taken, base, replayed, now)

    def checkpoint_refused(
        self, server: ServerId, incarnation: int, number: int, why: str, now: float
    ) -> None:
        """A server finds its shard of the checkpoint that the job was resumed from damaged.

        No server has been pushed to since: all processes end, and the job is resumed once more,
        from another one (`resumed`). Raises WireError.
        """
        registered = self.members.server_calls(server, incarnation).registered
        kept = self.checkpoints.kept.all
        if self.halted or registered or not kept or kept[-1].number != number:
            return
        self.checkpoints.refused = number, why
        self.record.note(now, f"warning: checkpoint {number} is refused: {why}")

    def checkpoint_failed(self, reason: str, final: bool, now: float) -> None:
        """A checkpoint could not be taken; the job goes on without it."""
        self.checkpoints.failed(reason, final, now)

    # ------------------------------------------------------------ processes

    def process_started(self, start: Start, now: float) -> None:
        """A process has begun to run; only from now on is it late if it does not call."""
        self.members.process_started(start, now)

    def process_waits(self, start: Start, why: str, now: float, error: bool = False) -> None:
        """A process has to wait before it can run; the runner tells of it, with others.

        error: for something else than room.
        """
        self.start_waits.waits(start, why, error, now)

    def process_exited(self, exited: Exited, now: float) -> None:
        """A process is gone."""
        process = exited.start.process
        if self.halted and not self.ended:
            return  # as it was to
        if isinstance(process, ServerId):
            self.servers.exited(process, exited, now)
        else:
            self._workers.exited(process, exited, now)

    def process_failed(self, start: Start, failure: Failure, now: float) -> None:
        """A process said that it cannot go on."""
        process = start.process
        if self.halted and not self.ended:
            return  # whatever it is about: the next incarnation will say it
        if isinstance(process, ServerId):
            self.members.server_calls(process, start.incarnation)
            self.servers.failed(process, failure, now)
        else:
            member = self.members.worker_calls(process, start.incarnation, now)
            self._workers.failed(member, failure, now)

    # ------------------------------------------------------------ servers

    def restore_wanted(self, server: ServerId, incarnation: int, now: float) -> RestoreOffer:
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
        holder = self.members.holder_of(server, moves.routing.dense) if replay else ""
        former = moves.former_dense if replay and not joins else 0
        former_holder = self.members.holder_of(server, former) if former else ""
        checkpoints = tuple((each.number, each.nonce) for each in offered)
        table = moves.routing.to_message()
        return RestoreOffer(
            again, replay, whole_job, checkpoints, holder, joins, table, former, former_holder
        )

    def server_addresses(self, now: float) -> list[str]:
        """The servers' addresses by index. Raises WireError as `ServerLifecycle.addresses` does."""
        del now
        return self.servers.addresses()

    def server_registered(
        self,
        server: ServerId,
        incarnation: int,
        address: str,
        now: float,
        restored: str = "",
        replayed: int = 0,
        has: Sequence[LastPush] = (),
        checkpoint: int = 0,
        update: int = 0,
        held: Sequence[Gradient] = (),
    ) -> list[FenceWorker]:
        """A server listens at `address`. restored: what of a checkpoint and its log, in words.

        checkpoint: the one that it has restored, by number; 0 for none. replayed: pushes of its log
        that it has done again. has: the last push of each worker that it has. update, held: with
        --sync, the last update that it has, and the gradients that it holds. A server says so
        again if it got no answer, and such a call may come late, when it has served workers since:
        one incarnation counts once.

        Returns the fences of the workers' incarnations that are over: no push of them is to be
        applied.
        """
        member, again = self.members.register_server(server, incarnation, address, now)
        if server not in self.members.servers:
            self.start_waits.came(server)  # with the first move it gets rows
        elif not again:
            self.start_waits.came(server)
            self.checkpoints.kept.restored(server, checkpoint)
            if member.registered and (lacks := self.updates.lacks(update, held)):
                self.servers.bereft(server, lacks, now)
            self.servers.registered(member, restored, replayed, has, checkpoint, now)
        return [
            FenceWorker(worker, over, self.updates.kept(worker, over))
            for worker, over in self.members.fences()
        ]

    def server_progressed(
        self, server: ServerId, incarnation: int, progress: pb.ServerProgress, now: float
    ) -> None:
        """How far a server is with what it does before it can serve. It will say so again."""
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
            able = training and not self.checkpoints.drains.pending
            return Drained(None, self.moves.departs(member, seconds, now, able=able))
        self.moves.departures.closed(start)
        return Drained(self.checkpoints.draining(start, now))

    def server_hung(self, server: ServerId, incarnation: int, now: float) -> None:
        """A server has answered nothing for too long; its process is to end."""
        self.servers.hung(server, incarnation, now)

    def servers_confirmed(self, has: Sequence[Sequence[LastPush] | None], now: float) -> None:
        """At the end, what each server has, the last push of each worker.

        None for one that did not answer.
        """
        self.servers.confirmed(has, now)

    def worker_met(self, server: ServerId, incarnation: int, told: LastPush, now: float) -> None:
        """A worker meets a server that was started again.

        told: its last push that an earlier incarnation of the server had acknowledged.
        """
        self.members.server_calls(server, incarnation)
        self.servers.met(server, told, now)

    def protection_changed(
        self, server: ServerId, absences: int, seconds: float, why: str, now: float
    ) -> None:
        """With --durability=log, a server's updates are not protected by its log, or are again.

        absences, seconds: of all its incarnations. why: they are not; "" if they are.
        """
        self.servers.protection_changed(server, absences, seconds, why, now)

    # ------------------------------------------------------------ workers

    def worker_registered(self, worker: WorkerId, incarnation: int, now: float) -> WorkerWelcome:
        """A worker is ready. Raises WireError also as `ServerLifecycle.addresses` does."""
        member = self.members.worker_calls(worker, incarnation, now)
        addresses = self.servers.addresses()
        member.state = ProcessState.ALIVE
        self.start_waits.came(worker)
        return WorkerWelcome(addresses, self.phases.data_known)

    def taken_for_dead(self, worker: WorkerId, incarnation: int, cause: str, now: float) -> None:
        """A worker has been silent for too long."""
        self._workers.taken_for_dead(worker, incarnation, cause, now)

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
        self._workers.fenced(worker, incarnation, pushes, now)

    def assignment_wanted(
        self, worker: WorkerId, incarnation: int, held: int, now: float
    ) -> Assignment | Wait | Finished:
        """A worker asks for work. held: the training task that it is at; 0 for none.

        By the methods of this object that are events: `task_wanted` or `task_ahead_wanted`.
        """
        answer = (
            self.task_ahead_wanted(worker, incarnation, held, now)
            if held
            else self.task_wanted(worker, incarnation, now)
        )
        if not isinstance(answer, Task):
            return answer
        reductions = self.work.follow_ups.rate_reductions
        return Assignment(answer, self.clocks.of(worker), reductions)

    def task_wanted(self, worker: WorkerId, incarnation: int, now: float) -> Task | Wait | Finished:
        """A worker asks for work."""
        member = self.members.worker_calls(worker, incarnation, now)
        if self._assignments.enough_workers:
            self.training_allowed(now)
        answer = self._assignments.wanted(member, now)
        if isinstance(answer, Wait) and self._assignments.too_many:
            self.worker_given_back(worker, now)
            return Finished()
        return answer

    def worker_given_back(self, worker: WorkerId, now: float) -> None:
        """There is nothing left for a worker to do, and others are enough for what is.

        An event of its own, as `training_allowed`.
        """
        self._workers.give_back(self.members.workers[worker], now)

    def workers_called_back(self, now: float) -> None:
        """Those that were given back are needed again."""
        self._workers.call_back(now)

    def training_allowed(self, now: float) -> None:
        """As many workers as --min-workers asks for are there.

        An event of its own: whoever asks as they are may get no task, which is no event.
        """
        del now
        self._assignments.allow_training()

    def task_ahead_wanted(
        self, worker: WorkerId, incarnation: int, held: int, now: float
    ) -> Task | Finished:
        """A worker at training task `held` asks for the one after it; Finished: none yet.

        None either if `held` is not at work, but itself leased ahead or over.
        """
        member = self.members.worker_calls(worker, incarnation, now)
        return self._assignments.wanted_ahead(member, held, now)

    def heartbeat(
        self, worker: WorkerId, incarnation: int, beat: outcomes.Heartbeat, now: float
    ) -> HeartbeatAnswer:
        """A worker lives, and tells how far it is."""
        member = self.members.worker_calls(worker, incarnation, now)
        member.stage_seconds = beat.stage_seconds
        member.steps_done = beat.steps_done
        self.members.worker_busy(member, beat.busy_seconds, beat.busy_with, beat.longest_seconds)
        if beat.loss_batches:
            self.record.loss.add(now, beat.loss, beat.loss_batches)
        self.record.learning_rate = beat.learning_rate or self.record.learning_rate
        abandon = self._assignments.progressed(member, beat.task, beat.records_done)
        self.work.copies.acknowledged(worker, incarnation, beat.acknowledged)
        self.version_seen(beat.version, now)
        # By the methods of this object: what they do is written down, a heartbeat is not.
        member.pipeline = depth, why = beat.pipeline
        if why and depth > self.members.deepest_pipeline:
            self.pipeline_deepened(worker, depth, why, now)
        if beat.waits_for != member.waits_for:
            self.worker_waits(worker, incarnation, beat.waits_for, now)
        if beat.left_out > member.left_out[0]:
            left_out = (beat.left_out, beat.left_out_records, beat.left_out_why)
            self.gradients_left_out(worker, incarnation, *left_out, now)
        return HeartbeatAnswer(self.ended, abandon, self.members.step_limit)

    def version_seen(self, version: int, now: float) -> None:
        """A worker has seen this model version."""
        del now  # a round of evaluation begins at a version
        self.phases.version_seen(version)

    def clock_reported(
        self, worker: WorkerId, incarnation: int, clock: int, now: float
    ) -> ClockAnswer:
        """A worker has had so many steps applied."""
        self.members.worker_calls(worker, incarnation, now)
        slowest = self.clocks.advance(worker, clock)
        return ClockAnswer(slowest, self.clocks.next_told(worker, self.config.staleness_bound))

    def update_wanted(self, worker: WorkerId, incarnation: int, now: float) -> int | None:
        """With --sync, a worker asks for which update to compute a gradient; None: wait."""
        self.members.worker_calls(worker, incarnation, now)
        return self.updates.join(worker)

    def gradient_offered(
        self, gradient: Gradient, update: int, task_id: int, records_done: int, now: float
    ) -> bool:
        """With --sync, all servers hold a gradient for `update`; whether it will be applied."""
        self.members.worker_calls(gradient.worker, gradient.incarnation, now)
        return self._assignments.gradient_offered(gradient, update, task_id, records_done)

    def update_applied(self, number: int, version: int, now: float) -> None:
        """All servers have applied an update, and are at this version."""
        self.updates.applied(number)
        self.phases.version_seen(version)
        self.phases.advance(now)

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
        member = self.members.worker_calls(worker, incarnation, now)
        first = not self.left_out.minibatches
        if self.left_out.count(member, minibatches, records, why) and first:
            self.record.note(now, f"warning: {worker} has left out a minibatch: {why}")

    def pipeline_deepened(self, worker: WorkerId, depth: int, why: str, now: float) -> None:
        """A worker is the first in which so many steps overlap."""
        self.members.deepest_pipeline = depth
        text = f"{worker} has up to {depth + 1} steps under way (--pipeline-depth): {why}"
        self.record.note(now, text)

    def worker_waits(self, worker: WorkerId, incarnation: int, what: str, now: float) -> None:
        """A worker waits for what is out of its hands, such as storage; "" for nothing more."""
        member = self.members.worker_calls(worker, incarnation, now)
        if text := self.storage_waits.says(member, what, self.members.workers.values()):
            self.record.note(now, shortened(text))

    def report_made(
        self,
        worker: WorkerId,
        incarnation: int,
        task_id: int,
        outcome: outcomes.Outcome,
        version: int,
        now: float,
        trained: outcomes.Trained = outcomes.NOTHING_TRAINED,
        acknowledged: int = 0,
        held: int = 0,
    ) -> Assignment | Wait | Finished:
        """A worker reports a task (`task_reported`), and asks for another in the same call.

        held: the training task that it goes on with: as `assignment_wanted` takes it. 0: it asks
        for none, and is given none. Raises as `task_reported`; then nothing is leased.
        """
        self.task_reported(
            worker, incarnation, task_id, outcome, version, now, trained, acknowledged
        )
        return self.assignment_wanted(worker, incarnation, held, now) if held else Finished()

    def task_reported(
        self,
        worker: WorkerId,
        incarnation: int,
        task_id: int,
        outcome: outcomes.Outcome,
        version: int,
        now: float,
        trained: outcomes.Trained = outcomes.NOTHING_TRAINED,
        acknowledged: int = 0,
    ) -> None:
        """A worker is through with its task, well or badly.

        trained: of a TRAIN task that failed, how far it came. acknowledged: the worker's last
        push that all servers have, by sequence.

        Raises WireError also with UNKNOWN_TASK if it does not hold the task, and
        with BAD_REQUEST if the outcome is not one of such a task.
        """
        member = self.members.worker_calls(worker, incarnation, now)
        said = outcome, version, trained, acknowledged
        if self._assignments.reported(member, task_id, *said, now):
            self.checkpoints.tick(now)
