"""The thread that tells the master of the worker's progress, and acts on what it answers.

Owns the worker's side of heartbeats: when one is sent, when a thread of the process counts as
stuck, and what a worker does without a master. What they tell is progress.py's.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal.errors import EXIT_JOB_FAILED
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.worker.reports.progress import Progress
from shoal.worker.reports.told_stacks import ToldStacks
from shoal.worker.reports.watch import Doing, stacks

logger = logging.getLogger(__name__)


STILL_SECONDS = 5.0
"""Between two beats, beyond all that they wait for: the process itself stood still."""

LEAVE_SECONDS = 30.0
"""For a worker to leave the job by itself; then a thread of it is stuck."""


class Heartbeat:
    """The thread; `progress.stopped` ends it, and it sets that if the master says so."""

    def __init__(
        self,
        master: Connection,
        progress: Progress,
        worker: int,
        incarnation: int,
        seconds: float,
        master_timeout_seconds: float = math.inf,
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        """seconds: between beats. master_timeout_seconds: without an answer, to the end.

        leave_seconds: without an answer after that, until the process is ended from here: its
        main thread is stuck, and nobody is left to kill it.

        A worker one of whose threads is stuck, by the master's limit, is reported by it.
        """
        self.excused: Callable[[], bool] = lambda: False
        self._looked = time.monotonic()
        self._logged: Doing | None = None
        self._reported = False
        self._stacks = ToldStacks(worker, incarnation)
        self._master = master
        self._progress = progress
        self._identity = (worker, incarnation)
        self._seconds = seconds
        self._master_timeout = master_timeout_seconds
        self._patience = 3 * seconds
        self._leave = leave_seconds
        self._unanswered = self._leaving = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if it was started, and wait for it."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._seconds):
                self.beat()
        except Exception:
            # A worker that the master cannot hear would be replaced anyway; better
            # to end with the reason in the log.
            logger.exception("the heartbeat thread failed; leaving the job")
            self._progress.stopped.set()

    def beat(self) -> None:
        """Send one heartbeat and act on the answer."""
        self._look()
        request = self._progress.take(*self._identity)
        self._stacks.fill(request)
        try:
            # Not for longer than a few beats: what it says would be old by then.
            reply = self._master.call(methods.HEARTBEAT, request, patience=self._patience)
        except WireError as error:
            self._progress.watch.excuse()
            if error.kind == pb.NOT_READY:
                # It is there, and cannot write anything down at the moment.
                logger.warning("the master cannot answer yet: %s", error.message)
                return
            logger.warning("the master no longer counts on this worker: %s", error.message)
            self._progress.stopped.set()
            return
        except PeerUnavailableError as error:
            logger.warning("no heartbeat reached the master: %s", error)
            self._progress.watch.excuse()
            self._unheard()
            return
        self._unanswered = self._leaving = 0.0
        self._progress.heard(request)
        self._stacks.heard(request)
        if reply.abandon_task:
            self._progress.abandon(request.task)
        if reply.stop:
            self._progress.stopped.set()
        elif reply.step_limit_seconds:
            self._report_stuck(reply.step_limit_seconds)
        # Another thread that beats is to be seen where it stands: its turn is not now.
        own = not self._thread.is_alive() or threading.current_thread() is self._thread
        if own and self._stacks.asked(reply):
            self.beat()

    def _look(self) -> None:
        """Excuse what waits for somebody else, and the time in which this process stood still."""
        now = time.monotonic()
        stood_still = now - self._looked > 2 * (self._seconds + self._patience) + STILL_SECONDS
        self._looked = now
        if stood_still or self._progress.waiting or self.excused():
            self._progress.watch.excuse()

    def _report_stuck(self, limit: float) -> None:
        """Tell the master if a thread is at one thing for longer than `limit` seconds.

        Until it has heard it: a master that ends just then leaves the worker to the next one.
        """
        late = self._progress.watch.stuck(limit)
        if late is None or self._reported:
            return
        seconds, entry = late
        whole, short = stacks()
        if entry is not self._logged:
            self._logged = entry
            logger.error("stuck for %.0f s: %s. All threads:\n%s", seconds, entry, whole)
        message = f"it is stuck for {seconds:.0f} s (--step-timeout-seconds): {entry}"
        if short:
            message += f"; {short}"
        failure = pb.Failure(
            kind=pb.STORAGE if entry.storage else pb.INTERNAL,
            message=message,
            error=message,
            traceback=whole,
        )
        if entry.records is not None and not entry.storage:
            failure.range.CopyFrom(entry.records)
        worker, incarnation = self._identity
        request = pb.ReportFailureRequest(
            role="worker", index=worker, incarnation=incarnation, failure=failure
        )
        # It is killed then: a thread cannot be ended from outside.
        with suppress(WireError, PeerUnavailableError):
            self._master.call(methods.REPORT_FAILURE, request, patience=self._patience)
            self._reported = True

    def _unheard(self) -> None:
        """End the worker if the master has been away for too long."""
        # Counted by beats, not read from a clock: a worker that was itself stopped for
        # a while must first get the chance to hear.
        self._unanswered += self._seconds + self._patience
        if self._unanswered <= self._master_timeout:
            return
        if not self._progress.stopped.is_set():
            logger.error(
                "leaving the job: the master has not answered for %.0f s", self._unanswered
            )
            self._progress.stopped.set()
            return
        # Calls are cancelled from here on: what passes is the pause between beats.
        self._leaving += self._seconds
        if self._leaving >= self._leave:
            logger.error(
                "ending the process: it could not leave the job within %.0f s, and no master "
                "is there to end it. All threads:\n%s",
                self._leaving,
                stacks()[0],
            )
            logging.shutdown()
            os._exit(EXIT_JOB_FAILED)
