"""The lives of parameter servers: their start, what they say of themselves, their end.

Owns what each of these leads to. Who is a member is membership.py's, whether a dead
server is started again supervisor.py's; what the servers hold is their own. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.config.job import JobConfig
from shoal.master.job import events
from shoal.master.job.heard import hears
from shoal.master.job.instructions import (
    AdoptProcess,
    ConfirmServers,
    KillProcess,
    StartProcess,
    TerminateProcess,
)
from shoal.master.job.members import supervisor
from shoal.master.job.members.launcher import Exited
from shoal.master.job.members.members import ProcessState, ServerMember
from shoal.master.job.scaling.memory_forecast import MemoryForecasts
from shoal.master.job.state import JobState
from shoal.master.job.task_outcomes import TaskOutcomes
from shoal.master.work.accounts.lease_copies import Piece
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.master.work.phases import Phase
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

MISSED_TO_BE_KILLED = 2
"""Workers that end one after the other as they cannot reach a server that answers the master."""


ABSENT_PAUSE = 60.0
"""Seconds before a server that the job can do without is started again, if it failed too often."""


@hears("_asked")
class ServerLifecycle:
    """The servers of a job."""

    def __init__(self, config: JobConfig, state: JobState, outcomes: TaskOutcomes) -> None:
        self._config = config
        self._outcomes = outcomes
        self._phases = state.phases
        self._work = state.work
        self._record = state.record
        self._members = state.members
        self._instructions = state.instructions
        self._moves = state.moves
        self._asked = False
        self._forget_memory()

    def _forget_memory(self) -> None:
        # Of a job on one machine, all servers share that.
        config = self._config
        self.memory = MemoryForecasts(config.num_servers, shared=not config.image)

    def resumed(self, config: JobConfig) -> None:
        """The job goes on with this configuration."""
        self._config = config
        self._asked = False
        self._forget_memory()

    def start_all(self, now: float) -> None:
        """Start all servers."""
        for member in self._members.servers.values():
            self._instructions.append(StartProcess(Start(member.id, member.start(now))))

    def adopt_all(self, now: float) -> None:
        """Find those again that another master started."""
        self._asked = False
        members = self._members
        for member in members.servers_and_joining:
            if member.state in (ProcessState.STARTING, ProcessState.ALIVE):
                member.started = member.answered = now
                self._instructions.append(AdoptProcess(Start(member.id, member.incarnation)))
        for member in members.former.values():
            if member.state is not ProcessState.DEAD:
                start = Start(member.id, member.incarnation)
                self._instructions += [AdoptProcess(start), TerminateProcess(start)]

    def registered(self, member: ServerMember, event: events.ServerRegistered, now: float) -> None:
        """An incarnation listens that had not registered before."""
        member.replayed += event.replayed
        # What registers first since the job began or was resumed has served no worker before.
        meets = member.registered
        member.progress = pb.ServerProgress()
        member.came_back(now)
        self.memory.begin(member.id.index)
        if event.restored:
            self._record.note(now, f"{member.id} is back: {event.restored}")
        copies, has = self._work.copies, event.has
        found = copies.restored(member.id.index, has, event.checkpoint, meets=meets)
        self._found(member.id, *found, now)
        if self._members.servers_ready:
            self._phases.servers_ready(now)

    def bereft(self, server: ServerId, lacks: str, now: float) -> None:
        """With --sync, a server was started again without what it had before."""
        message = (
            f"parameter server {server} was started again without {lacks}, which it had: the "
            "servers are not at the same update any more. Go on from the newest checkpoint with: "
            f"shoal train --resume {self._config.job_dir}"
        )
        self._phases.fail(Failure.internal(message), now)

    def addresses(self) -> list[str]:
        """The servers' addresses by index; "" of one that is absent.

        Raises WireError (NOT_READY) until all of them have registered.
        """
        if not self._members.servers_ready:
            raise WireError(pb.NOT_READY, "not all parameter servers have started yet")
        addresses = [""] * self._moves.routing.servers
        for server, member in self._members.servers.items():
            addresses[server.index] = member.address
        return addresses

    def answered(self, server: ServerId, status: pb.ServerStatus) -> None:
        """Note a server's report: its version, its use of processors, its pushes."""
        member = self._members.server(server)
        assert member is not None
        member.version, member.staleness, member.age = status.version, status.staleness, status.age
        member.wants_checkpoint = status.wants_checkpoint
        before = member.told
        if self._phases.phase == Phase.TRAINING and 0 < before.seconds < status.seconds:
            member.trained_seconds += status.seconds - before.seconds
            member.trained_cpu_seconds += status.cpu_seconds - before.cpu_seconds
        member.told = status

    def memory_told(self, server: ServerId, status: pb.ServerStatus) -> str:
        """The message about a server's memory, by its report; "" if none."""
        board = self._work.board
        ledger = board.ledger()
        epoch = ledger.total // self._config.epochs if board.all_known else 0
        used, limit = status.memory_bytes, status.memory_limit
        tables = sum(each.memory_bytes for each in status.tables)
        return self.memory.note(server.index, ledger.trained, used, tables, limit, epoch)

    def hung(self, event: events.ServerHung, now: float) -> None:
        """A server has answered nothing for too long; its process is to end."""
        member = self._members.servers[event.server]
        if member.incarnation == event.incarnation and member.state == ProcessState.ALIVE:
            seconds = self._config.server_timeout_seconds
            self._kill(member, f"has not answered for {seconds:g} s", now)

    def missed(self, server: ServerId, worker: WorkerId, now: float) -> None:
        """A worker has ended because it could not reach a server.

        A server whose disk hangs, say, answers the master and no push. Two workers in a row must
        have missed it: one alone may have a network that is cut.
        """
        member = self._members.servers.get(server)
        if member is None or member.state != ProcessState.ALIVE:
            return
        member.missed_by.append(worker)
        alone = len(self._members.workers) == 1
        if len(member.missed_by if alone else set(member.missed_by)) >= MISSED_TO_BE_KILLED:
            workers = f"{MISSED_TO_BE_KILLED} workers in a row"
            self._kill(member, f"answers the master, but {workers} could not reach it", now)

    def _kill(self, member: ServerMember, why: str, now: float) -> None:
        """Kill a server; it is started again when its end is known."""
        self._record.note(now, f"{member.id} {why}, and is killed")
        member.answered = now  # or it would be killed again before it is gone
        member.missed_by = []
        self._instructions.append(KillProcess(Start(member.id, member.incarnation)))

    def tick(self) -> None:
        """Ask the servers what they have, where the job waits for that."""
        if (
            self._phases.phase == Phase.CONFIRMING
            and self._members.servers_ready
            and not self._moves.under_way
            and not self._asked
        ):
            self._asked = True
            self._instructions.append(ConfirmServers())

    def confirmed(self, event: events.ServersConfirmed, now: float) -> None:
        """The servers have said what they have, at the end of training."""
        has = event.has
        self._asked = False
        if self._phases.phase != Phase.CONFIRMING or not self._members.servers_ready:
            return
        if any(each is None for each in has):
            return  # those that did not answer are asked again
        if len(has) != len(self._members.servers):
            return  # they are others by now
        for server, pushes in zip(self._members.servers, has, strict=True):
            found = self._work.copies.compared(server.index, pushes or ())
            self._found(server, *found, now)
        if self._phases.phase == Phase.CONFIRMING:
            self._phases.confirmed(now)

    def met(self, event: events.WorkerMet, now: float) -> None:
        """A worker meets a server that was started again. Raises WireError."""
        self._members.server_calls(event.server, event.incarnation)
        found = self._work.copies.met(event.server.index, event.told)
        self._found(event.server, *found, now)

    def _found(self, server: ServerId, lost: int, pieces: Sequence[Piece], now: float) -> None:
        """A server lacks updates, and records are to be trained again because of it."""
        if lost:
            self._record.note(now, f"{server} has lost {lost} acknowledged updates")
            if self._config.on_loss == "fail":
                self._phases.fail(Failure.internal(self._loss(server, lost)), now)
        self._outcomes.records_lost(pieces, now)

    def _loss(self, server: ServerId, lost: int) -> str:
        return (
            f"parameter server {server} was started again without at least {lost} updates that it "
            "had acknowledged, and --on-loss is fail. Go on from the newest checkpoint with: "
            f"shoal train --resume {self._config.job_dir}"
        )

    def protection_changed(self, event: events.ProtectionChanged, now: float) -> None:
        """A server's updates are not protected by its log, or are again."""
        server, why = event.server, event.why
        member = self._members.servers[server]
        if why and (event.absences > member.absences or not member.unprotected):
            self._record.note(now, f"warning: the updates of {server} are NOT PROTECTED: {why}")
            member.absent_since = now
        elif not why:
            seconds = event.seconds - member.absent_seconds
            self._record.note(
                now, f"the updates of {server} are protected again, after {seconds:.1f} s"
            )
        member.absences, member.absent_seconds = event.absences, event.seconds
        member.unprotected = why

    def failed(self, server: ServerId, failure: Failure, now: float) -> None:
        """A server said that it cannot go on."""
        message = f"parameter server {server}: {failure.message}"
        self._phases.fail(replace(failure, message=message), now)

    def exited(self, server: ServerId, exited: Exited, now: float) -> None:
        """A server's process is gone."""
        member = self._members.server(server)
        if (
            member is None
            or member.incarnation != exited.start.incarnation
            or member.state == ProcessState.DEAD
        ):
            return
        member.state = ProcessState.DEAD
        member.deaths += 1
        if self._phases.phase.ended or server in self._members.former:
            return
        self._record.note(now, f"{member.id} died ({exited.cause})")
        joins = server in self._members.joining
        decision = supervisor.after_server_death(
            member, exited, self._config, self._phases.phase, now, joins=joins
        )
        if isinstance(decision, supervisor.GiveUp) and server.index in self._moves.routing.absent:
            self._record.note(now, f"warning: {decision.failure.message}. The job goes on without")
            decision = supervisor.Relaunch(ABSENT_PAUSE)
        elif isinstance(decision, supervisor.GiveUp) and joins:
            self._moves.joiner_failed(decision.failure.message, now)
            return
        if isinstance(decision, supervisor.GiveUp):
            self._phases.fail(decision.failure, now)
            return
        self._record.restarts[member.id.role, supervisor.restart_reason(exited)] += 1
        self._instructions.append(StartProcess(Start(member.id, member.start(now)), decision.pause))
