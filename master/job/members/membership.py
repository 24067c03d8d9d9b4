"""The members of the job: its workers and servers, and the process that may speak for each.

Owns who is wanted, heard of, silent or late; one member is members.py's. What follows from a death
is for worker_lifecycle.py, server_lifecycle.py and supervisor.py to decide. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config.job import JobConfig
from shoal.master.job import events
from shoal.master.job.heard import hears
from shoal.master.job.members.members import ProcessState, ServerMember, WorkerMember
from shoal.master.work.failures import Failure
from shoal.master.work.ids import FIRST_INCARNATION, ServerId, Start, WorkerId
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import holder_index

LIMIT_FACTOR = 3.0
"""By which a thing may take longer than any such thing has taken before."""

SLOW_SECONDS = 4.0
"""For which a thing may last before it is told that it has not ended."""


@hears("_longest_step")
class Membership:
    """The members of the job that `config` describes, by id, and who of them counts as what.

    workers, servers: all that were ever wanted since the job began or was resumed, whatever became
    of them; a member stays when it is dead. The sets below are computed from their fields each
    time, so no two can disagree. Of the workers:

    - wanted: of an index below `workers_wanted` and not given back; started again when it ends.
      `workers_expected` counts these.
    - `draining`: asked to end, as it is not wanted; its end is no failure.
    - `given_back`: draining as well, as there is nothing left to do; wanted again if that changes.
    - alive: registered, and not taken for dead (`workers_alive`). `workers_staying` are those
      that were not asked to end.
    - `silent_workers`: alive, or running and not registered, and not heard of for too long.

    joining: servers that are to get slots and have none, also those that gave away what they had.
    former: those that have left, or will have in a moment; none is in two of these.

    Of the `servers`, all are wanted all the time:

    - ready: every one is alive (`servers_ready`), so the job can work.
    - `late_servers`: running and not registered, without progress for too long.
    - `hung_servers`: alive, and have answered nothing for too long.
    """

    workers: dict[WorkerId, WorkerMember]
    """Never shrinks: a worker that is not wanted may still run, and its counts are reported."""

    servers: dict[ServerId, ServerMember]
    """Those that have slots by the routing table, in the order of their indices."""

    joining: dict[ServerId, ServerMember]

    former: dict[ServerId, ServerMember]

    workers_wanted: int
    """Workers of a lower index are started again when they end. --workers or `shoal scale`."""

    deepest_pipeline: int
    """Of all workers there were. What is noted once follows from it, as it is written down."""

    def __init__(self, config: JobConfig) -> None:
        self.deepest_pipeline = 0
        self._timeout = config.worker_timeout_seconds
        self._server_timeout = config.server_timeout_seconds
        self._step_timeout = config.step_timeout_seconds
        self._longest_step = 0.0
        self._before = FIRST_INCARNATION - 1  # of a member that was never started
        self._plan(config)

    def _plan(self, config: JobConfig) -> None:
        self._start_seconds = config.start_seconds
        self.workers_wanted = config.num_workers
        workers = [WorkerId(index) for index in range(config.num_workers)]
        servers = [ServerId(index) for index in range(config.num_servers)]
        self.workers = {each: WorkerMember(each, incarnation=self._before) for each in workers}
        self.servers = {each: ServerMember(each, incarnation=self._before) for each in servers}
        self.joining, self.former = {}, {}

    def resume(self, config: JobConfig) -> None:
        """Make members for the job resumed, all planned; incarnations go on above any there was."""
        members: list[WorkerMember | ServerMember] = [
            *self.workers.values(),
            *self.servers.values(),
            *self.joining.values(),
            *self.former.values(),
        ]
        self._before = max(member.incarnation for member in members)
        self._plan(config)

    def wanted(self, member: WorkerMember) -> bool:
        """True if the worker is to work; False if it is to end and not to come back."""
        return member.id.index < self.workers_wanted and not member.given_back

    @property
    def given_back(self) -> bool:
        """True if a worker was given back."""
        return any(member.given_back for member in self.workers.values())

    @property
    def workers_expected(self) -> int:
        """The number of workers that are wanted and were not given back."""
        return sum(map(self.wanted, self.workers.values()))

    def want_workers(
        self, count: int
    ) -> tuple[list[WorkerMember], list[WorkerMember], list[WorkerMember]]:
        """Set how many workers are wanted.

        Returns the members that are new, those that have ended and are wanted again, and
        those that are to end. Their end is then no failure, also if they are wanted
        again before it.
        """
        self.workers_wanted = count
        known = list(self.workers.values())
        new = [
            WorkerMember(WorkerId(i), incarnation=self._before) for i in range(len(known), count)
        ]
        self.workers |= {member.id: member for member in new}
        again = [member for member in known if self.wanted(member) and member.exited is not None]
        draining = [
            member for member in known if member.id.index >= count and member.exited is None
        ]
        for member in draining:
            member.draining = True
        return new, again, draining

    def server(self, server: ServerId) -> ServerMember | None:
        """A server, whether it has slots, is to get or had some; None if it never was there."""
        found = self.servers.get(server) or self.joining.get(server)
        return found or self.former.get(server)

    @property
    def servers_and_joining(self) -> list[ServerMember]:
        """The servers that have slots, and those that are to get some."""
        return [*self.servers.values(), *self.joining.values()]

    def join_server(self, server: ServerId) -> ServerMember:
        """A server is to come; it may have been there before."""
        member = self.former.pop(server, None) or ServerMember(server, incarnation=self._before)
        member.state, member.registered = ProcessState.PLANNED, False
        self.joining[server] = member
        return member

    def server_joined(self, server: ServerId) -> None:
        """A server that was to come has its slots."""
        member = self.joining.pop(server)
        there = [*self.servers.values(), member]
        self.servers = {each.id: each for each in sorted(there, key=lambda each: each.id.index)}
        # From here on it has a past: a log, and workers that it has served.
        member.registered = True

    def server_left(self, server: ServerId) -> None:
        """A server is to have no slots, or no more."""
        member = self.servers.pop(server, None) or self.joining.pop(server)
        self.former[server] = member

    def process_started(self, start: Start, now: float) -> None:
        """A process has begun to run."""
        process = start.process
        if isinstance(process, ServerId):
            server = self.server(process)
            if server is not None and server.incarnation == start.incarnation:
                server.running, server.started = True, now
        elif self.workers[process].incarnation == start.incarnation:
            self.workers[process].running, self.workers[process].last_seen = True, now

    @property
    def servers_ready(self) -> bool:
        """True if every server has registered."""
        return all(member.state == ProcessState.ALIVE for member in self.servers.values())

    @property
    def alive_servers(self) -> set[Start]:
        """The processes of servers that have registered and have not died."""
        members = self.servers.values()
        alive = (each for each in members if each.state is ProcessState.ALIVE)
        return {Start(each.id, each.incarnation) for each in alive}

    def worker_calls(self, worker: WorkerId, incarnation: int, now: float) -> WorkerMember:
        """The member that a call of this worker speaks for, noting the sign of life.

        Raises WireError: FENCED if the incarnation is over, BAD_REQUEST if it never was.
        """
        member = self.workers.get(worker)
        if member is None or incarnation > member.incarnation:
            raise WireError(pb.BAD_REQUEST, f"{worker}.{incarnation} was never started here")
        if incarnation < member.incarnation or member.state == ProcessState.DEAD:
            raise WireError(pb.FENCED, f"{worker}.{incarnation} was taken for dead")
        member.last_seen = now
        return member

    def register_server(
        self, event: events.ServerRegistered, now: float
    ) -> tuple[ServerMember, bool]:
        """Note where a server listens; also returns whether it has registered before.

        Raises WireError as `server_calls` does.
        """
        member = self.server_calls(event.server, event.incarnation)
        again = member.state == ProcessState.ALIVE
        member.state = ProcessState.ALIVE
        member.address, member.answered = event.address, now
        return member, again

    def server_calls(self, server: ServerId, incarnation: int) -> ServerMember:
        """A server speaks.

        Raises WireError: FENCED if the incarnation is over, BAD_REQUEST if it never was.
        """
        member = self.server(server)
        if member is None or incarnation > member.incarnation:
            raise WireError(pb.BAD_REQUEST, f"{server}.{incarnation} was never started here")
        if incarnation < member.incarnation or member.state == ProcessState.DEAD:
            raise WireError(pb.FENCED, f"{server}.{incarnation} was taken for dead")
        return member

    def fences(self) -> list[tuple[WorkerId, int]]:
        """The highest incarnation of each worker that is over, for those that have one."""
        over = (
            (member.id, member.incarnation - (member.state != ProcessState.DEAD))
            for member in self.workers.values()
        )
        return [(worker, incarnation) for worker, incarnation in over if incarnation >= 0]

    @property
    def fencing(self) -> bool:
        """True if a worker is dead, and it is not known yet which of its pushes each server has."""
        return any(
            member.state == ProcessState.DEAD and not member.fenced
            for member in self.workers.values()
        )

    @property
    def step_limit(self) -> float:
        """Seconds that one thing may take in a worker, by what has taken longest in any."""
        return max(self._step_timeout, LIMIT_FACTOR * self._longest_step)

    def worker_busy(self, member: WorkerMember, seconds: float, what: str, longest: float) -> None:
        """One of a worker's threads has been at `what` for so many seconds."""
        self._longest_step = max(self._longest_step, longest)
        slow = seconds > max(SLOW_SECONDS, LIMIT_FACTOR * self._longest_step)
        member.slow_at = what if slow else ""

    def overdue(self, now: float) -> Iterator[events.Event[None]]:
        """The events of the members that are silent, hung or late."""
        for worker, reason in self.silent_workers(now):
            yield events.TakenForDead(worker.id, worker.incarnation, reason)
        for server in self.hung_servers(now):
            yield events.ServerHung(server.id, server.incarnation)
        for server in self.late_servers(now):
            doing = f"it was to {server.progress.what}; " if server.progress.what else ""
            late = f"{server.id} did not get ready in time; {doing}see its log"
            yield events.JobFailed(Failure.internal(late))

    def silent_workers(self, now: float) -> list[tuple[WorkerMember, str]]:
        """Workers not heard of for too long, each with the reason in words."""
        silent = []
        for member in self.workers.values():
            quiet = now - member.last_seen
            if member.state == ProcessState.ALIVE and quiet > self._timeout:
                silent.append((member, f"no heartbeat for {quiet:.0f} s"))
            elif (
                member.running
                and member.state == ProcessState.STARTING
                and quiet > self._start_seconds
            ):
                silent.append((member, f"not ready {quiet:.0f} s after its start"))
        return silent

    def holder_of(self, server: ServerId, dense: int) -> str:
        """The address of the server that keeps another one's log of updates; "" if it is not there.

        dense: as of the routing table by which it is kept.
        """
        holder = self.servers[ServerId(holder_index(server.index, dense))]
        return holder.address if holder.state == ProcessState.ALIVE else ""

    def late_servers(self, now: float) -> list[ServerMember]:
        """Servers that run, have not registered, and have not got on for too long.

        Restoring takes as long as it takes, so it is judged by its progress.
        """
        return [
            member
            for member in self.servers_and_joining
            if member.running
            and member.state == ProcessState.STARTING
            and now - max(member.started, member.progressed) > self._start_seconds
        ]

    def hung_servers(self, now: float) -> list[ServerMember]:
        """Registered servers that have answered nothing for too long."""
        return [
            member
            for member in self.servers.values()
            if member.state == ProcessState.ALIVE and now - member.answered > self._server_timeout
        ]

    def reached_all(self) -> None:
        """A worker has had its pushes applied by all servers."""
        for server in self.servers.values():
            server.missed_by = []

    def unheard(self, seconds: float, now: float) -> None:
        """Nobody could be heard for so long: it was not their silence."""
        for worker in self.workers.values():
            worker.last_seen = min(now, worker.last_seen + seconds)
        for server in self.servers.values():
            server.answered = min(now, server.answered + seconds)
            server.started = min(now, server.started + seconds)
            server.progressed = min(now, server.progressed + seconds)

    @property
    def workers_alive(self) -> int:
        """Registered workers that are not taken for dead."""
        return len(self.alive)

    @property
    def alive(self) -> list[WorkerId]:
        """Registered workers that are not taken for dead."""
        alive = ProcessState.ALIVE
        return [worker for worker, member in self.workers.items() if member.state == alive]

    @property
    def workers_staying(self) -> int:
        """The number of `workers_alive` that were not asked to end."""
        members = self.workers.values()
        return sum(member.state == ProcessState.ALIVE and not member.draining for member in members)

    @property
    def servers_alive(self) -> int:
        """Registered servers."""
        return sum(member.state == ProcessState.ALIVE for member in self.servers.values())
