"""Progress of the worker's present task, and the thread that tells the master.

Owns what the master hears between tasks being leased and reported.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from shoal.errors import EXIT_JOB_FAILED
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.rpc import Connection
from shoal.worker.watch import Doing, Watch, stacks

logger = logging.getLogger(__name__)


STILL_SECONDS = 5.0
"""Between two beats, beyond all that they wait for: the process itself stood still."""

LEAVE_SECONDS = 30.0
"""For a worker to leave the job by itself; then a thread of it is stuck."""

TRAINING = "training"
"""The stage that is all of a worker's training; the others are parts of it."""


class Progress:
    """What the worker has done; shared by the loop and the heartbeat thread.

    acknowledged: its last push that all servers have, by sequence.
    """

    def __init__(self, *, keep_steps: bool = False) -> None:
        """keep_steps: the master wants to hear of each step."""
        self._lock = threading.Lock()
        self._task = 0
        self._records_done = self._steps_done = 0
        self._version = 0
        self.acknowledged = 0
        self._loss_sum = 0.0
        self._loss_batches = 0
        self._stages: defaultdict[str, float] = defaultdict(float)
        self._training_since: float | None = None
        self._keep_steps = keep_steps
        self._steps: list[pb.StepLoss] = []
        self._steps_kept = 0
        self._left_out = [0, 0]  # minibatches, and their records
        self._left_out_why = ""
        self._waits_for = ""
        self.untold = False
        self.stopped = threading.Event()
        self.watch = Watch()
        self._abandoned = False

    @property
    def task(self) -> int:
        """Number of the task that was leased last; 0: none is."""
        return self._task

    def begin(self, task: int) -> None:
        """A task was leased (0: none is)."""
        with self._lock:
            self._task = task
            self._records_done = self._steps_done = 0
            self._abandoned = False

    def add(
        self, records_done: int, version: int, loss: float | None, acknowledged: int = 0
    ) -> None:
        """A batch was acknowledged by all servers."""
        with self._lock:
            self._records_done = records_done
            self.acknowledged = max(self.acknowledged, acknowledged)
            self._steps_done += 1
            self._version = max(self._version, version)
            if loss is not None:
                self._loss_sum += loss
                self._loss_batches += 1
            if loss is not None and self._keep_steps:
                self._steps_kept += 1
                self._steps.append(
                    pb.StepLoss(
                        step=self._steps_kept,
                        task=self._task,
                        records_done=records_done,
                        version=version,
                        loss=loss,
                    )
                )

    def add_step(
        self,
        records_done: int,
        version: int,
        loss: float,
        left_out: Sequence[tuple[int, str]],
        acknowledged: int = 0,
    ) -> None:
        """A step is done.

        left_out: (records, why) of its minibatches that were left out. acknowledged: the last
        push that all servers have, by sequence.
        """
        with self._lock:
            for records, why in left_out:
                self._left_out[0] += 1
                self._left_out[1] += records
                self._left_out_why = why
                self.untold = True
        self.add(records_done, version, loss if math.isfinite(loss) else None, acknowledged)

    def trained(self, records: int) -> tuple[int, int]:
        """Of the present task, which has so many records: those done, and those touched.

        Touched are all where it is not known which ones the steps were made of.
        """
        with self._lock:
            if self._records_done or not self._steps_done:
                return self._records_done, self._records_done
            return 0, records

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the seconds of the body for stage `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent(name, time.perf_counter() - began)

    def spent(self, name: str, seconds: float) -> None:
        """Count seconds for stage `name`."""
        with self._lock:
            self._stages[name] += seconds

    @contextmanager
    def training(self) -> Iterator[None]:
        """Count the seconds of the body as those of training, of which stages are parts."""
        began = self._training_since = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._stages[TRAINING] += time.perf_counter() - began
                self._training_since = None

    def waits_for(self, what: str) -> None:
        """The worker waits for something out of its hands, in words; "" for nothing more."""
        self._waits_for = what

    @property
    def waiting(self) -> bool:
        """Whether it waits for something out of its hands."""
        return bool(self._waits_for)

    @property
    def interrupted(self) -> bool:
        """Whether the present task is to be left: the job ends or the lease is gone."""
        return self.stopped.is_set() or self._abandoned

    def take(self, worker: int, incarnation: int) -> pb.HeartbeatRequest:
        """The next heartbeat; the losses in it are not told again, the steps until `heard`."""
        with self._lock:
            stages = dict(self._stages)
            if self._training_since is not None:
                so_far = time.perf_counter() - self._training_since
                stages[TRAINING] = stages.get(TRAINING, 0.0) + so_far
            request = pb.HeartbeatRequest(
                worker=worker,
                incarnation=incarnation,
                task=self._task,
                records_done=self._records_done,
                version=self._version,
                loss=self._loss_sum / self._loss_batches if self._loss_batches else 0.0,
                loss_batches=self._loss_batches,
                stage_seconds=stages,
                steps=self._steps,
                left_out=self._left_out[0],
                left_out_records=self._left_out[1],
                left_out_why=self._left_out_why,
                acknowledged=self.acknowledged,
                waits_for=self._waits_for,
                longest_seconds=self.watch.longest,
            )
            oldest = self.watch.oldest()
            if oldest is not None:
                request.busy_seconds, request.busy_with = oldest[0], str(oldest[1])
            self.untold = False
            self._loss_sum, self._loss_batches = 0.0, 0
            return request

    def heard(self, request: pb.HeartbeatRequest) -> None:
        """The master has heard of the steps in a heartbeat.

        By their numbers: another heartbeat with some of them may have been heard meanwhile.
        """
        if not request.steps:
            return
        last = request.steps[-1].step
        with self._lock:
            self._steps = [each for each in self._steps if each.step > last]

    def abandon(self, task: int) -> None:
        """The master took the lease of `task` away."""
        with self._lock:
            if self._task == task:
                self._abandoned = True


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
        if reply.abandon_task:
            self._progress.abandon(request.task)
        if reply.stop:
            self._progress.stopped.set()
        elif reply.step_limit_seconds:
            self._report_stuck(reply.step_limit_seconds)

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
