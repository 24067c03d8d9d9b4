"""Who belongs to the job: its workers and servers, and which process may speak for each.

Owns states, incarnations, addresses and when a worker was last heard of. What follows
from a death is for worker_lifecycle.py, server_lifecycle.py and supervisor.py to decide.
No I/O.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shoal.config.job import JobConfig
from shoal.master.job.launcher import Exited
from shoal.master.job.restarts import Restarts
from shoal.master.work.failures import Failure
from shoal.master.work.ids import FIRST_INCARNATION, ServerId, Start, WorkerId
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

START_TIMEOUT_SECONDS = 300.0
"""How long a process may take from its start to registering, or a server from one sign of
progress to the next: importing TensorFlow from a cold, shared disk takes a minute or two."""


LIMIT_FACTOR = 3.0
"""By which a thing may take longer than any such thing has taken before."""

SLOW_SECONDS = 4.0
"""For which a thing may last before it is told that it has not ended."""


class ProcessState(enum.Enum):
    """Where a member stands."""

    PLANNED = "planned"  # wanted, not started yet
    STARTING = "starting"  # started, not registered yet
    ALIVE = "alive"  # registered
    DEAD = "dead"  # ended, or taken for dead; its calls are refused


@dataclass
class WorkerMember:
    """One worker through all its incarnations.

    last_seen: time of the last call, or of the start.
    exited: how the current incarnation's process ended; None while it has not.
    fenced: whether the servers take no more pushes of the current incarnation.
    failure: what the current incarnation reported.
    left_out: minibatches that the current incarnation left out, and their records.
    died_of: of what it died, if that was not from outside.
    last_finished_task: a repeated report of it is an answer that was lost.
    stage_seconds: of the current incarnation.
    excused: the end of the current incarnation does not count against the limit of restarts.
    running: whether the current incarnation's process has begun to run: a pod may wait
        long for room.
    draining: the current incarnation was asked to end, as it is not wanted.
    given_back: as there is nothing left for it to do.
    waits_for: what the current incarnation waits for, out of its hands, in words.
    slow_at: what one of its threads has been at for far longer than usual, in words; "" for
        nothing.
    """

    id: WorkerId
    state: ProcessState = ProcessState.PLANNED
    incarnation: int = FIRST_INCARNATION - 1
    last_seen: float = 0.0
    starts: int = 0
    deaths: int = 0
    restarts: Restarts = field(default_factory=Restarts)
    excused: bool = False
    running: bool = False
    draining: bool = False
    given_back: bool = False
    exited: Exited | None = None
    fenced: bool = False
    failure: Failure | None = None
    died_of: Failure | None = None
    left_out: tuple[int, int] = (0, 0)
    last_finished_task: int = 0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    waits_for: str = ""
    slow_at: str = ""

    def start(self, now: float) -> int:
        """A new incarnation begins; returns its number."""
        self.state = ProcessState.STARTING
        self.incarnation += 1
        self.starts += 1
        self.last_seen = now
        self.running = False
        self.draining = self.given_back = False
        self.excused = False
        self.exited = None
        self.fenced = False
        self.last_finished_task = 0
        self.failure = self.died_of = None
        self.left_out = (0, 0)
        self.stage_seconds = {}
        self.waits_for = self.slow_at = ""
        return self.incarnation


@dataclass
class ServerMember:
    """One server. version; staleness and age of pushes: from its last status.

    running: as of a worker. answered: when it last did.
    progress: what it does before it can serve, as it says, and how much of that is done; without
    words if nothing. progressed: when that last changed.
    With --durability=log: replayed: pushes that its incarnations did again. unprotected: why no
    log protects its updates now, "" if one does, and absent_since: since when. absences,
    absent_seconds: how often and how long none did, of all incarnations, without the time that
    runs. bereft: an incarnation died without protection, and the next one is not there yet.
    wants_checkpoint: as it said last. missed_by: workers that ended as they could not reach the
    incarnation, since a training task was done. registered: an incarnation has, since the job
    began or was resumed. Before it registers, a server does away with the log that an earlier
    course left.
    """

    id: ServerId
    state: ProcessState = ProcessState.PLANNED
    incarnation: int = FIRST_INCARNATION - 1
    started: float = 0.0
    running: bool = False
    address: str = ""
    starts: int = 0
    deaths: int = 0
    restarts: Restarts = field(default_factory=Restarts)
    version: int = 0
    replayed: int = 0
    unprotected: str = ""
    absences: int = 0
    absences_before: int = 0
    absent_seconds: float = 0.0
    absent_seconds_before: float = 0.0
    absent_since: float = 0.0
    bereft: bool = False
    wants_checkpoint: bool = False
    missed_by: list[WorkerId] = field(default_factory=list)
    registered: bool = False
    answered: float = 0.0
    progress: pb.ServerProgress = field(default_factory=pb.ServerProgress)
    progressed: float = 0.0
    staleness: pb.Distribution = field(default_factory=pb.Distribution)
    age: pb.Distribution = field(default_factory=pb.Distribution)

    def start(self, now: float) -> int:
        """A new incarnation begins; returns its number."""
        self.state = ProcessState.STARTING
        self.incarnation += 1
        self.started = now
        self.starts += 1
        self.absences_before = self.absences
        self.absent_seconds_before = max(self.absent_seconds_before, self.absent_seconds)
        self.bereft = bool(self.unprotected)
        self.wants_checkpoint = False
        self.missed_by = []
        self.running = False
        self.progress = pb.ServerProgress()
        return self.incarnation

    def told_progress(self, progress: pb.ServerProgress, now: float) -> None:
        """How far the incarnation says it is."""
        if progress != self.progress:
            self.progress, self.progressed = progress, now

    def came_back(self, now: float) -> None:
        """The incarnation has registered.

        A time without protection that its predecessor did not see the end of, is over: it is
        protected from its recovery on, or counts from there itself.
        """
        self.registered = True
        if self.bereft:
            self.bereft = False
            self.absent_seconds_before += now - self.absent_since
            self.absent_since = now

    def seconds_unprotected(self, now: float) -> float:
        """How long no log protected its updates, with the time that runs."""
        if not self.unprotected:
            return self.absent_seconds
        over = max(self.absent_seconds_before, self.absent_seconds)
        return over + now - self.absent_since


class Membership:
    """The members of the job that `config` describes.

    workers_wanted: those of a lower index are started again when they end.
    """

    def __init__(self, config: JobConfig) -> None:
        self._timeout = config.worker_timeout_seconds
        self._server_timeout = config.server_timeout_seconds
        self._step_timeout = config.step_timeout_seconds
        self._longest_step = 0.0
        self._before = FIRST_INCARNATION - 1  # of a member that was never started
        self._plan(config)

    def _plan(self, config: JobConfig) -> None:
        self.workers_wanted = config.num_workers
        workers = [WorkerId(index) for index in range(config.num_workers)]
        servers = [ServerId(index) for index in range(config.num_ps)]
        self.workers = {each: WorkerMember(each, incarnation=self._before) for each in workers}
        self.servers = {each: ServerMember(each, incarnation=self._before) for each in servers}

    def resume(self, config: JobConfig) -> None:
        """Make members for the job resumed, all planned; incarnations go on above any there was."""
        members: list[WorkerMember | ServerMember] = [
            *self.workers.values(),
            *self.servers.values(),
        ]
        self._before = max(member.incarnation for member in members)
        self._plan(config)

    def wanted(self, member: WorkerMember) -> bool:
        """Whether the worker is to work, or to end and not to come back."""
        return member.id.index < self.workers_wanted and not member.given_back

    @property
    def given_back(self) -> bool:
        """Whether a worker was given back."""
        return any(member.given_back for member in self.workers.values())

    @property
    def workers_expected(self) -> int:
        """How many workers are wanted and were not given back."""
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

    def process_started(self, start: Start, now: float) -> None:
        """A process has begun to run."""
        process = start.process
        if isinstance(process, ServerId):
            server = self.servers[process]
            if server.incarnation == start.incarnation:
                server.running, server.started = True, now
        elif self.workers[process].incarnation == start.incarnation:
            self.workers[process].running, self.workers[process].last_seen = True, now

    @property
    def servers_ready(self) -> bool:
        """Whether every server has registered."""
        return all(member.state == ProcessState.ALIVE for member in self.servers.values())

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
        member.state = ProcessState.ALIVE
        return member

    def register_server(
        self, server: ServerId, incarnation: int, address: str, now: float
    ) -> tuple[ServerMember, bool]:
        """Note where a server listens; also returns whether it has registered before.

        Raises WireError as `server_calls` does.
        """
        member = self.server_calls(server, incarnation)
        again = member.state == ProcessState.ALIVE
        member.state = ProcessState.ALIVE
        member.address, member.answered = address, now
        return member, again

    def server_calls(self, server: ServerId, incarnation: int) -> ServerMember:
        """A server speaks.

        Raises WireError: FENCED if the incarnation is over, BAD_REQUEST if it never was.
        """
        member = self.servers.get(server)
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
    def step_limit(self) -> float:
        """Seconds that one thing may take in a worker, by what has taken longest in any."""
        return max(self._step_timeout, LIMIT_FACTOR * self._longest_step)

    def worker_busy(self, member: WorkerMember, seconds: float, what: str, longest: float) -> None:
        """One of a worker's threads has been at `what` for so many seconds."""
        self._longest_step = max(self._longest_step, longest)
        slow = seconds > max(SLOW_SECONDS, LIMIT_FACTOR * self._longest_step)
        member.slow_at = what if slow else ""

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
                and quiet > START_TIMEOUT_SECONDS
            ):
                silent.append((member, f"not ready {quiet:.0f} s after its start"))
        return silent

    def holder_of(self, server: ServerId) -> str:
        """Where the server is that keeps another one's log of updates; "" if it is not there."""
        holder = self.servers[ServerId((server.index + 1) % len(self.servers))]
        return holder.address if holder.state == ProcessState.ALIVE else ""

    def late_servers(self, now: float) -> list[ServerMember]:
        """Servers that run, have not registered, and have not got on for too long.

        Restoring takes as long as it takes, so it is judged by its progress.
        """
        return [
            member
            for member in self.servers.values()
            if member.running
            and member.state == ProcessState.STARTING
            and now - max(member.started, member.progressed) > START_TIMEOUT_SECONDS
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
        return sum(member.state == ProcessState.ALIVE for member in self.workers.values())

    @property
    def workers_staying(self) -> int:
        """Those of `workers_alive` that were not asked to end."""
        members = self.workers.values()
        return sum(member.state == ProcessState.ALIVE and not member.draining for member in members)

    @property
    def servers_alive(self) -> int:
        """Registered servers."""
        return sum(member.state == ProcessState.ALIVE for member in self.servers.values())
