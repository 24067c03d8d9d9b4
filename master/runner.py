"""Runs a job: executes its instructions, and feeds it the launcher's events and the time.

This is the shell around the decisions. It starts and ends processes; server_work.py makes the calls
to servers, and shared_job.py has the lock.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from shoal.errors import UserError
from shoal.master.calls.server_work import ServerWork
from shoal.master.job.delayed import DelayedStarts
from shoal.master.job.events import JobBegun, JobFailed, JobStopped, MasterRestarted, Noted
from shoal.master.job.instructions import (
    AdoptProcess,
    Instruction,
    KillProcess,
    StartProcess,
    TerminateProcess,
)
from shoal.master.job.job import Job
from shoal.master.job.members.launcher import Exited, Launcher, LauncherEvent, Started, Waiting
from shoal.master.job.told_waits import ToldWaits
from shoal.master.shared_job import SharedJob
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.master.work.record import ProcessorTime
from shoal.proto import faults
from shoal.proto.identity import Identity

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""Between looks at the clock: far below any timeout."""

TICK_PAUSE = 0.05
"""And at least so long: with --sync there are instructions hundreds of times a second."""

PAUSED_SECONDS = 5.0
"""Between two looks at the clock: the master itself stood still."""

WORKER_FAREWELL_SECONDS = 20.0
"""After success, for workers to hear that they are done and to leave by themselves:
a heartbeat and the interpreter's end, on a busy machine."""

NO_ROOM_SECONDS = 0.5
"""Between two tries to start a process for which `shoal chaos` leaves no room."""

GRACE_SECONDS = 5.0
"""Between the request to end and the kill."""


@dataclass(frozen=True)
class StopRequested:
    """The job is to be stopped."""

    reason: str


@dataclass(frozen=True)
class Woken:
    """The job may have instructions."""


class Runner:
    """Runs `job`.

    resume_again: resumes a job whose checkpoint was refused from another one. Raises UserError.
    identity: of the master, for its calls to servers. cores: as ServerWork takes it.
    """

    def __init__(
        self,
        job: SharedJob,
        resume_again: Callable[[Job, float], object] | None = None,
        identity: Identity | None = None,
        cores: Callable[[], ProcessorTime | None] = lambda: None,
    ) -> None:
        self.job = job
        self._identity = identity
        self._cores = cores
        self._resume_again = resume_again
        self._delayed = DelayedStarts()
        self._waits = ToldWaits()
        self._roomless: set[Start] = set()
        self._inbox: queue.SimpleQueue[LauncherEvent | StopRequested | Woken] = queue.SimpleQueue()
        self._ending = threading.Event()
        job.listen(lambda: self._inbox.put(Woken()))

    def post(self, event: LauncherEvent) -> None:
        """Take a launcher's event, from any thread."""
        self._inbox.put(event)

    def request_stop(self, reason: str) -> None:
        """Stop the job soon; safe in a signal handler, since it takes no lock."""
        self._inbox.put(StopRequested(reason))

    def run(self, launcher: Launcher, *, again: bool = False, resumed: bool = False) -> None:
        """Run the job to its end, and end every process of it.

        again: an earlier master has begun it. resumed: it was resumed just now, so no process of
        an earlier master is left.
        """
        servers = ServerWork(self.job, self._ending, self._identity, self._cores)
        poller = threading.Thread(target=self.guarded, args=(servers.poll,), name="poll-servers")
        try:
            if resumed and self.job.apply(lambda job, _: job.has_instructions):
                pass  # which start its processes
            elif again:
                # First of all: those of them that know more of the journal end the job.
                servers.poll_once()
                self.job.apply(MasterRestarted())
            else:
                self.job.apply(JobBegun())
            servers.find_checkpoints()
            servers.look_at_published()
            poller.start()
            self.guarded(lambda: self._course(launcher, servers))
            self._ending.set()
            self.guarded(lambda: self._farewell(launcher, servers))
        finally:
            self._ending.set()
            servers.give_up_waiting()
            launcher.end(launcher.running(), GRACE_SECONDS)
            servers.close()
            if poller.ident is not None:
                poller.join()
            servers.close_connections()

    def guarded(self, work: Callable[[], None]) -> None:
        """Call `work`, whose failure or untimely return is the job's failure."""
        if self.job.attempt(work):
            # Changes nothing once the job has ended, which is when work may return.
            self.job.fail(Failure.internal("a part of the master ended before the job"))

    def _course(self, launcher: Launcher, servers: ServerWork) -> None:
        """Run the job to its end; from another checkpoint where the one it has is refused."""
        self._loop(launcher, servers)
        while self.job.look(lambda job, _: not job.ended):
            launcher.end(launcher.running(), GRACE_SECONDS)
            self._forget_processes()
            self.job.apply(self._resumed_again)
            self._loop(launcher, servers)

    def _forget_processes(self) -> None:
        """Drop the events and starts of processes that have ended; keep requests to stop."""
        self._delayed, self._roomless = DelayedStarts(), set()
        self._waits = ToldWaits()
        left = []
        with contextlib.suppress(queue.Empty):
            while True:
                left.append(self._inbox.get_nowait())
        for event in left:
            if isinstance(event, StopRequested):
                self._inbox.put(event)

    def _resumed_again(self, job: Job, now: float) -> None:
        assert self._resume_again is not None
        try:
            self._resume_again(job, now)
        except UserError as error:
            job.on(JobFailed(Failure.of_user(str(error))), now)

    def _loop(self, launcher: Launcher, servers: ServerWork) -> None:
        looked = self.job.now()
        ticked, seconds = float("-inf"), TICK_SECONDS

        def turn(job: Job, now: float) -> tuple[float, bool, list[Instruction]]:
            nonlocal ticked, seconds
            if now - looked > PAUSED_SECONDS:
                # The master itself was stopped, or held up by a full disk: processes that seem
                # silent may have spoken meanwhile.
                job.members.unheard(now - looked, now)
                job.start_waits.unheard(now - looked, now)
            seconds = TICK_PAUSE  # until the tick that is left out now
            if time.monotonic() >= ticked + TICK_PAUSE:
                job.tick(now)
                ticked, seconds = time.monotonic(), TICK_SECONDS
            return now, job.halted, job.take_instructions()

        while True:
            looked, ended, instructions = self.job.apply(turn)
            for instruction in instructions:
                # A job that has ended starts nothing, but ends what another master started.
                if not ended or isinstance(instruction, AdoptProcess):
                    self._execute(instruction, launcher, servers)
            if ended:
                return
            for start in self._delayed.due(looked):
                self._start(start, launcher)
            for text in self._waits.due(looked):
                self.job.apply(Noted(text))
            try:
                event = self._inbox.get(timeout=seconds)
            except queue.Empty:
                continue
            self._handle(event)

    def _handle(self, event: LauncherEvent | StopRequested | Woken) -> None:
        match event:
            case StopRequested(reason):
                self.job.apply(JobStopped(reason))
            case Exited():
                self._waits.drop(event.start)
                self.job.apply(event)
            case Started(start, pid):
                self._waits.drop(start)
                logger.info("%s runs%s", start, f" as process {pid}" if pid else "")
                self.job.apply(lambda job, now: job.process_started(start, now))
            case Waiting():
                self._waits.add(event, self.job.now())
                self.job.apply(event)
            case Woken():
                pass
            case _:
                assert_never(event)

    def _execute(self, instruction: Instruction, launcher: Launcher, servers: ServerWork) -> None:
        match instruction:
            case StartProcess(start, pause) if pause > 0:
                self._delayed.add(start, self.job.now() + pause)
            case StartProcess(start):
                self._start(start, launcher)
            case AdoptProcess(start):
                launcher.adopt(start)
            case TerminateProcess(start) | KillProcess(start) if self._delayed.drop(start):
                self.post(Exited(start, None, None, "", why="was never started", counted=False))
            case TerminateProcess(start):
                launcher.terminate(start)
            case KillProcess(start):
                launcher.kill(start)
            case _:
                servers.submit(instruction)

    def _start(self, start: Start, launcher: Launcher) -> None:
        if faults.has_room(str(start.process)):
            self._roomless.discard(start)
            launcher.start(start)
            return
        if start not in self._roomless:
            self._roomless.add(start)
            self.post(Waiting(start, "there is no room for it"))
        self._delayed.add(start, self.job.now() + NO_ROOM_SECONDS)

    def _farewell(self, launcher: Launcher, servers: ServerWork) -> None:
        """End the processes: workers before the servers that they may be calling."""
        phase = self.job.apply(lambda job, _: job.phases.phase)
        workers = [s for s in launcher.running() if isinstance(s.process, WorkerId)]
        if phase.complete:
            launcher.wait_gone(workers, WORKER_FAREWELL_SECONDS)
        launcher.end(workers, GRACE_SECONDS)
        servers.poll_once()
        left = [s for s in launcher.running() if isinstance(s.process, ServerId)]
        ids = [s.process for s in left if isinstance(s.process, ServerId)]
        servers.shut_down(ids, f"the job has {phase.state}")
        if phase.complete:
            launcher.wait_gone(left, GRACE_SECONDS)
        launcher.end(left, GRACE_SECONDS)
