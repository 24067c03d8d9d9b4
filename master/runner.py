"""Runs a job: executes its instructions, feeds it events and time, ends its processes.

The shell around job.py. Holds the one lock; no process is started and no call is
made under it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, assert_never

from shoal.errors import UserError
from shoal.master.fences import Fences, Said
from shoal.master.job.delayed import DelayedStarts
from shoal.master.job.instructions import (
    AdoptProcess,
    ApplyUpdate,
    ConfirmServers,
    FenceWorker,
    Instruction,
    KillProcess,
    RemoveCheckpoints,
    StartProcess,
    TakeCheckpoint,
    TerminateProcess,
)
from shoal.master.job.job import Job
from shoal.master.job.launcher import Exited, Launcher, LauncherEvent, Started, Waiting
from shoal.master.job.membership import ProcessState, ServerSlot
from shoal.master.job.status import position
from shoal.master.job.updates import Update
from shoal.master.journal.journal import JournalError, StalledError
from shoal.master.journal.witnesses import Witnesses
from shoal.master.servers import Place, ServerConnections
from shoal.master.take_checkpoint import CheckpointTaker, TakingError
from shoal.master.update_thread import UpdateThread
from shoal.master.work.applied import LastPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.identity import Identity
from shoal.proto.pools import started_pool
from shoal.proto.positions import position_json

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

TICK_SECONDS = 0.5
"""Between looks at the clock: far below any timeout."""

PAUSED_SECONDS = 5.0
"""Between two looks at the clock: the master itself stood still."""

POLL_SECONDS = 1.0
"""Between questions to the servers for their version and staleness."""

PATIENCE_SECONDS = 3.0
"""For a change to be written, before whoever made it is told to ask again."""

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


def note_status(server: ServerId, status: pb.ServerStatus, job: Job, now: float) -> None:
    """A server has said this of itself.

    While it is being started it is not what it will be, and on Kubernetes it answers at the
    address of the one before.
    """
    if job.members.servers[server].state != ProcessState.ALIVE:
        return
    job.servers.answered(server, status)
    slot = job.members.servers[server]
    slot.answered = now
    absences = slot.absences_before + status.absences
    if absences != slot.absences or status.unprotected != slot.unprotected:
        seconds = slot.absent_seconds_before + status.absent_seconds
        job.protection_changed(server, absences, seconds, status.unprotected, now)


def _place(slot: ServerSlot) -> Place:
    here = slot.state == ProcessState.ALIVE
    return Place(slot.address, slot.incarnation if here else None)


def _start_of(server: ServerId, job: Job, now: float) -> Start:
    del now
    return Start(server, job.members.servers[server].incarnation)


def _fixed(job: Job, now: float) -> dict[str, Any]:
    job.checkpoint_fixed(now)
    return position(job, now)


_NO_POSITION = pb.JournalPosition()


class Runner:
    """Runs `job`, whose state is reached through `apply` only.

    clock: seconds, monotonic.
    commit: returns once what has changed the job is written down, and waits so many seconds
        for it; None: without end. Called before anybody is answered, or anything is done,
        because of it; without the lock, so that many wait for the disk at once.
    witnesses: of the journal that `commit` writes.
    resume_again: has a job whose checkpoint was refused go on from another one. Raises UserError.
    identity: of the master.
    """

    def __init__(
        self,
        job: Job,
        *,
        clock: Callable[[], float] = time.monotonic,
        commit: Callable[[float | None], None] = lambda _: None,
        witnesses: Witnesses | None = None,
        resume_again: Callable[[Job, float], object] | None = None,
        identity: Identity | None = None,
    ) -> None:
        self._job = job
        self._resume_again = resume_again
        self._clock = clock
        self._commit = commit
        self._witnesses = witnesses
        self._lock = threading.Lock()
        self._delayed = DelayedStarts()
        self._roomless: set[Start] = set()
        self._inbox: queue.SimpleQueue[LauncherEvent | StopRequested | Woken] = queue.SimpleQueue()
        self._servers = ServerConnections(job.config.token, identity)
        self._taker = CheckpointTaker(job.config, self._servers)
        self._ending = threading.Event()
        self._updates = UpdateThread(self._ending)
        self._fences = Fences(self._servers, self._places, self._fenced, self._fencing_failed)

    def post(self, event: LauncherEvent) -> None:
        """Take a launcher's event, from any thread."""
        self._inbox.put(event)

    def request_stop(self, reason: str) -> None:
        """Stop the job soon; safe in a signal handler, since it takes no lock."""
        self._inbox.put(StopRequested(reason))

    def look(self, question: Callable[[Job, float], Result]) -> Result:
        """Call `question(job, now)`, which changes nothing, alone with the job.

        What it sees may not be written down yet: it is to be shown, and nothing more.
        """
        with self._lock:
            return question(self._job, self._clock())

    def answer(self, change: Callable[[Job, float], Result]) -> Result:
        """As `apply`, for a caller that asks again if nothing can be written for a while.

        Raises WireError (NOT_READY) then: the threads that answer are needed for others.
        """
        try:
            return self.apply(change, PATIENCE_SECONDS)
        except (StalledError, JournalError) as error:
            raise WireError(pb.NOT_READY, str(error)) from error

    def apply(
        self, change: Callable[[Job, float], Result], patience: float | None = None
    ) -> Result:
        """Call `change(job, now)` alone with the job, and write down what it has changed.

        patience: as of `commit`. Raises what both raise.
        """
        with self._lock:
            result = change(self._job, self._clock())
            wake = self._job.has_instructions or self._job.halted
        # Also where this call changed nothing: its answer may follow from a change that
        # another call has made and not yet written.
        self._commit(patience)
        if wake:
            self._inbox.put(Woken())
        return result

    def position(self) -> pb.JournalPosition:
        """How far the journal is, to be told."""
        return self._witnesses.position() if self._witnesses is not None else _NO_POSITION

    def hear(self, start: Start, seen: pb.JournalPosition) -> None:
        """A process says how far it has seen the journal.

        If the journal has gone back the job fails, and WireError is raised.
        """
        if self._witnesses is None:
            return
        try:
            self._witnesses.hear(start, seen)
        except UserError as error:
            failure = Failure.of_user(str(error))
            self.answer(lambda job, now: job.fail(failure, now))
            raise WireError(pb.NOT_READY, str(error)) from error

    @property
    def all_heard(self) -> bool:
        """Whether all have spoken who may have seen more of the journal than there is."""
        witnesses = self._witnesses
        return witnesses is None or self.look(lambda job, _: witnesses.all_heard(job))

    def run(self, launcher: Launcher, *, again: bool = False) -> None:
        """Run the job to its end, and end every process of it.

        again: an earlier master has begun it.
        """
        threads = started_pool(5, "calls")
        poller = threading.Thread(target=self._guarded, args=(self._poll,), name="poll-servers")
        try:
            if again and self.apply(lambda job, _: job.has_instructions):
                pass  # just resumed
            elif again:
                # First of all: those of them that know more of the journal end the job.
                self._poll_once()
                self.apply(lambda job, now: job.master_restarted(now))
            else:
                self.apply(lambda job, now: job.begin(now))
            self._find_checkpoints()
            poller.start()
            self._guarded(lambda: self._course(launcher, threads))
            self._ending.set()
            self._guarded(lambda: self._farewell(launcher))
        finally:
            self._ending.set()
            self._servers.give_up_waiting()
            launcher.end(launcher.running(), GRACE_SECONDS)
            threads.shutdown(cancel_futures=True)
            self._updates.close()
            self._fences.close()
            if poller.ident is not None:
                poller.join()
            self._servers.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Call `work`, whose failure or untimely return is the job's failure."""
        if self._apart(work):
            self._fail(Failure.internal("a part of the master ended before the job"))

    def _apart(self, work: Callable[[], None]) -> bool:
        """Call `work`, whose failure is the job's; returns whether it had none.

        For all that a thread of its own does: nobody else would see what it raises.
        """
        try:
            work()
        except JournalError as error:
            # In memory only; whoever was not answered asks the next master.
            logger.error("%s", error)
            failure = Failure.internal(str(error))
            self.look(lambda job, now: job.fail(failure, now))
        except Exception as error:
            logger.exception("the master failed")
            self._fail(Failure.internal(f"the master failed: {error}", traceback.format_exc()))
        else:
            return True
        return False

    def _fail(self, failure: Failure) -> None:
        # Changes nothing once the job has ended, which is when work may return.
        with contextlib.suppress(JournalError):
            self.apply(lambda job, now: job.fail(failure, now))

    def _course(self, launcher: Launcher, threads: ThreadPoolExecutor) -> None:
        """Run the job to its end; from another checkpoint where the one it has is refused."""
        self._loop(launcher, threads)
        while self.look(lambda job, _: not job.ended):
            launcher.end(launcher.running(), GRACE_SECONDS)
            self._forget_processes()
            self.apply(self._resumed_again)
            self._loop(launcher, threads)

    def _forget_processes(self) -> None:
        """Nothing of the processes there were is of interest any more."""
        self._delayed, self._roomless = DelayedStarts(), set()
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
            job.fail(Failure.of_user(str(error)), now)

    def _loop(self, launcher: Launcher, threads: ThreadPoolExecutor) -> None:
        looked = self._clock()
        while True:
            with self._lock:
                now = self._clock()
                if now - looked > PAUSED_SECONDS:
                    # Stopped itself, or held up by a full disk: who was silent meanwhile
                    # may have spoken all the time.
                    self._job.members.unheard(now - looked, now)
                    self._job.start_waits.unheard(now - looked, now)
                looked = now
                self._job.tick(now)
                ended = self._job.halted
                instructions = self._job.take_instructions()
            self._commit(None)
            for instruction in instructions:
                # A job that has ended starts nothing, but ends what another master started.
                if not ended or isinstance(instruction, AdoptProcess):
                    self._execute(instruction, launcher, threads)
            if ended:
                return
            for start in self._delayed.due(now):
                self._start(start, launcher)
            try:
                event = self._inbox.get(timeout=TICK_SECONDS)
            except queue.Empty:
                continue
            self._handle(event)

    def _handle(self, event: LauncherEvent | StopRequested | Woken) -> None:
        match event:
            case StopRequested(reason):
                self.apply(lambda job, now: job.stop(reason, now))
            case Exited():
                self.apply(lambda job, now: job.process_exited(event, now))
            case Started(start, pid):
                logger.info("%s runs%s", start, f" as process {pid}" if pid else "")
                self.apply(lambda job, now: job.process_started(start, now))
            case Waiting(start, why, error):
                self.apply(lambda job, now: job.process_waits(start, why, now, error))
            case Woken():
                pass
            case _:
                assert_never(event)

    def _execute(
        self, instruction: Instruction, launcher: Launcher, threads: ThreadPoolExecutor
    ) -> None:
        match instruction:
            case StartProcess(start, pause) if pause > 0:
                self._delayed.add(start, self._clock() + pause)
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
            case FenceWorker():
                self._fences.submit(instruction)
            case ApplyUpdate(update):
                self._updates.submit(partial(self._apply_update, update))
            case TakeCheckpoint(final):
                threads.submit(self._apart, partial(self._take_checkpoint, final))
            case ConfirmServers():
                threads.submit(self._apart, self._confirm)
            case RemoveCheckpoints(numbers):
                threads.submit(self._taker.remove, numbers)
            case _:
                assert_never(instruction)

    def _start(self, start: Start, launcher: Launcher) -> None:
        if faults.has_room(str(start.process)):
            self._roomless.discard(start)
            launcher.start(start)
            return
        if start not in self._roomless:
            self._roomless.add(start)
            self.post(Waiting(start, "there is no room for it"))
        self._delayed.add(start, self._clock() + NO_ROOM_SECONDS)

    def _take_checkpoint(self, final: bool) -> None:
        try:
            self.apply(lambda job, now: job.checkpoint_begun(now))
            taken = self._taker.take(self._places(), self._fixed, self._undisturbed)
        except Exception as error:
            if not isinstance(error, TakingError):
                logger.exception("taking a checkpoint failed")
            reason = str(error) or type(error).__name__
            self.apply(lambda job, now: job.checkpoint_failed(reason, final, now))
        else:
            logger.info("took %s", taken)
            self.apply(lambda job, now: job.checkpoint_taken(taken, final, now))
            if self._job.config.durability == "log":
                # Not before whoever restores is told of it.
                for server, place in self._places().items():
                    self._servers.complete_checkpoint(server, place, taken.number, taken.nonce)

    def _fixed(self) -> dict[str, Any]:
        return self.apply(_fixed) | {"journal": position_json(self.position())}

    def _undisturbed(self, fix: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call `fix` while no update of --sync is under way: all servers have the same ones."""
        if not self._job.config.sync:
            return fix()
        fixed = self._updates.between(lambda: self.apply(lambda job, _: job.updates.applying), fix)
        if fixed is None:
            raise TakingError("the job has ended")
        return fixed

    def _find_checkpoints(self) -> None:
        if self._job.config.command == "train":
            found = self._taker.found()
            self.apply(lambda job, _: job.checkpoints.found(found))

    def _places(self) -> dict[ServerId, Place]:
        """Where all servers are, or were last."""
        return self.apply(
            lambda job, _: {each.id: _place(each) for each in job.members.servers.values()}
        )

    def _apply_update(self, update: Update) -> None:
        try:
            version = self._servers.apply_update(self._places(), update)
            self.apply(lambda job, now: job.update_applied(update.number, version, now))
        except Exception as error:
            logger.exception("update %d failed", update.number)
            message = f"update {update.number} failed: {error}"
            failure = Failure.internal(message, traceback.format_exc())
            self.apply(lambda job, now: job.fail(failure, now))

    def _confirm(self) -> None:
        places = self._places()
        has: dict[ServerId, tuple[LastPush, ...]] = {}
        for server, status in self._servers.statuses(places, self.position(), pushes=True):
            has[server] = tuple(map(LastPush.from_message, status.has))
        if len(has) < len(places):
            self._ending.wait(TICK_SECONDS)
        told = [has.get(server) for server in places]
        self.apply(lambda job, now: job.servers_confirmed(told, now))

    def _fenced(self, fence: FenceWorker, said: Mapping[ServerId, Said]) -> bool:
        def change(job: Job, now: float) -> bool:
            # One may have registered since it was looked at last, and told already what it has:
            # what the incarnation before it had is no answer any more.
            servers = job.members.servers
            if any(_place(servers[each]).incarnation != said[each].incarnation for each in said):
                return False
            pushes = [each.push for each in said.values()]
            job.fenced(fence.worker, fence.incarnation, pushes, now)
            return True

        return self.apply(change)

    def _fencing_failed(self, error: Exception) -> None:
        if self._ending.is_set():
            return
        logger.error("fencing a worker failed", exc_info=error)
        self._fail(Failure.internal(f"fencing a worker failed: {error}", traceback.format_exc()))

    def _poll(self) -> None:
        while not self._ending.wait(POLL_SECONDS):
            self._poll_once()

    def _poll_once(self) -> None:
        there = {server: place for server, place in self._places().items() if place.address}
        for server, status in self._servers.statuses(there, self.position()):
            start = self.look(partial(_start_of, server))
            with contextlib.suppress(WireError):  # then the job has failed
                self.hear(start, status.journal)
                self.apply(partial(note_status, server, status))

    def _farewell(self, launcher: Launcher) -> None:
        """End the processes: workers before the servers that they may be calling."""
        phase = self.apply(lambda job, _: job.flow.phase)
        workers = [s for s in launcher.running() if isinstance(s.process, WorkerId)]
        if phase.complete:
            launcher.wait_gone(workers, WORKER_FAREWELL_SECONDS)
        launcher.end(workers, GRACE_SECONDS)
        self._poll_once()
        servers = [s for s in launcher.running() if isinstance(s.process, ServerId)]
        places = self._places()
        for start in servers:
            assert isinstance(start.process, ServerId)
            if (place := places[start.process]).address:
                self._servers.shut_down(start.process, place, f"the job has {phase.state}")
        if phase.complete:
            launcher.wait_gone(servers, GRACE_SECONDS)
        launcher.end(servers, GRACE_SECONDS)
