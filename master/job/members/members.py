"""One worker or server of a job through all its incarnations: the fields of a member.

Each start of a process is a new incarnation of its member. Who is a member is membership.py's;
who changes a field says so in job.py and its parts. No I/O.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from shoal.master.job.heard import hears, uses_heard
from shoal.master.job.members.launcher import Exited
from shoal.master.job.members.restarts import Restarts
from shoal.master.work.failures import Failure
from shoal.master.work.ids import FIRST_INCARNATION, ServerId, WorkerId
from shoal.master.work.units import Task
from shoal.proto import shoal_pb2 as pb


class ProcessState(enum.Enum):
    """The state of a member."""

    PLANNED = "planned"  # wanted, not started yet
    STARTING = "starting"  # started, not registered yet
    ALIVE = "alive"  # registered
    DEAD = "dead"  # ended, or taken for dead; its calls are refused


@hears(
    *("last_seen", "running", "slow_at", "stage_seconds", "steps_done"),
    *("stages_before", "steps_before", "pipeline"),
)
@dataclass
class WorkerMember:
    """One worker. Fields after `restarts` are of the current incarnation."""

    id: WorkerId
    state: ProcessState = ProcessState.PLANNED

    incarnation: int = FIRST_INCARNATION - 1
    """Of the process that speaks for it now; below the first one, before it was ever started."""

    last_seen: float = 0.0
    """When it last called, or was started."""

    starts: int = 0
    """Incarnations that were started since the job began or was resumed."""

    deaths: int = 0
    """Incarnations that ended without having been asked to."""

    restarts: Restarts = field(default_factory=Restarts)
    """Failures that count against --relaunch-limit."""

    excused: bool = False
    """Its end will not count against that limit."""

    running: bool = False
    """Its process has begun to run: a pod may wait long for room."""

    draining: bool = False
    """It was asked to end, as it is not wanted, or another one is to come in its place."""

    given_back: bool = False
    """It was asked to end, as there is nothing left for it to do."""

    exited: Exited | None = None
    """How its process ended; None while it has not."""

    fenced: bool = False
    """The servers take no more pushes of it."""

    failure: Failure | None = None
    """What it reported."""

    died_of: Failure | None = None
    """What it died of, if its task may be at fault."""

    left_out: tuple[int, int] = (0, 0)
    """Minibatches that it left out, and their records."""

    held: Task | None = None
    """The task that it is at."""

    ahead: Task | None = None
    """The training task that it holds beside that. Nothing of it is pushed before the one at work
    is reported: of a dead worker's two tasks at most the first is begun."""

    last_finished_task: int = 0
    """A second report of this task means that the answer to the first was lost."""

    stage_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage of its pipeline, as it told last."""

    steps_done: int = 0
    """Steps of training that it has done, as it told last."""

    stages_before: Counter[str] = field(default_factory=Counter)
    """Seconds of the stages, of the incarnations that have ended."""

    steps_before: int = 0
    """Steps of those incarnations."""

    pipeline: tuple[int, str] = (0, "")
    """How many of its steps overlap, and why; "" where the user gave the number."""

    waits_for: str = ""
    """What out of its hands it waits for, in words; "" for nothing."""

    slow_at: str = ""
    """What one of its threads has been at for far longer than usual, in words; "" for nothing."""

    def holds(self, task_id: int) -> Task | None:
        """The task that it is at, if that has this id."""
        return self.held if self.held is not None and self.held.id == task_id else None

    def end_task(self) -> None:
        """It is through with the task that it was at, and goes on to the one beside."""
        self.held, self.ahead = self.ahead, None

    @uses_heard
    def rest(self) -> None:
        """The incarnation has ended, or is taken for dead; what it did is kept."""
        self.state = ProcessState.DEAD
        self.waits_for = self.slow_at = ""
        self.stages_before.update(self.stage_seconds)
        self.steps_before += self.steps_done
        self.stage_seconds, self.steps_done = {}, 0

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
        self.pipeline = (0, "")
        self.waits_for = self.slow_at = ""
        return self.incarnation


@hears(
    *("started", "running", "progress", "progressed", "answered", "told"),
    *("version", "staleness", "age", "wants_checkpoint"),
    *("trained_seconds", "trained_cpu_seconds"),
)
@dataclass
class ServerMember:
    """One server. `absences` to `bereft` tell how --durability=log protected its updates."""

    id: ServerId
    state: ProcessState = ProcessState.PLANNED

    incarnation: int = FIRST_INCARNATION - 1
    """Of the process that speaks for it now; below the first one, before it was ever started."""

    started: float = 0.0
    """When the incarnation was started, or its process began to run."""

    running: bool = False
    """The incarnation's process has begun to run: a pod may wait long for room."""

    address: str = ""
    """Where it listens."""

    starts: int = 0
    """Incarnations that were started since the job began or was resumed."""

    deaths: int = 0
    """Incarnations that ended."""

    restarts: Restarts = field(default_factory=Restarts)
    """Failures that count against --relaunch-limit."""

    version: int = 0
    """Of its shard, by its last status."""

    replayed: int = 0
    """Pushes of the log that its incarnations did again."""

    unprotected: str = ""
    """Why no log protects its updates now; "" if one does."""

    absences: int = 0
    """How often no log protected them, of all incarnations."""

    absences_before: int = 0
    """The same, of the incarnations before this one."""

    absent_seconds: float = 0.0
    """How long no log protected them, of all incarnations, without the time that runs."""

    absent_seconds_before: float = 0.0
    """The same, of the incarnations before this one."""

    absent_since: float = 0.0
    """When the time without protection that runs began."""

    bereft: bool = False
    """An incarnation died without protection, and the next one is not there yet."""

    wants_checkpoint: bool = False
    """It asks for one, as it said last."""

    missed_by: list[WorkerId] = field(default_factory=list)
    """Workers that ended as they could not reach it, since a training task was done."""

    registered: bool = False
    """An incarnation has registered since the job began or was resumed.

    Before it registers, a server does away with the log that an earlier course left.
    """

    answered: float = 0.0
    """When it last did."""

    progress: pb.ServerProgress = field(default_factory=pb.ServerProgress)
    """What it does before it can serve, and how much of it is done; without words if nothing."""

    progressed: float = 0.0
    """When `progress` last changed."""

    staleness: pb.Distribution = field(default_factory=pb.Distribution)
    """Of its pushes, by its last status."""

    age: pb.Distribution = field(default_factory=pb.Distribution)
    """Seconds from pull to push, by its last status."""

    trained_seconds: float = 0.0
    """Between its statuses while the job trained, of all incarnations."""

    trained_cpu_seconds: float = 0.0
    """Processor time that it used in them."""

    told: pb.ServerStatus = field(default_factory=pb.ServerStatus)
    """Its last status, at which moves and changes of the number of servers look."""

    @property
    def table_bytes(self) -> int:
        """Memory of its tables, by its last status."""
        return sum(table.memory_bytes for table in self.told.tables)

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
        self.told = pb.ServerStatus()
        return self.incarnation

    def told_progress(self, progress: pb.ServerProgress, now: float) -> None:
        """Note the progress that the incarnation reports."""
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
        """Seconds for which no log protected its updates, with the time that runs."""
        if not self.unprotected:
            return self.absent_seconds
        over = max(self.absent_seconds_before, self.absent_seconds)
        return over + now - self.absent_since
