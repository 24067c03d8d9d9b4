"""Progress of the worker's present task, and of all that its process has done.

Owns the counts of which the master hears between tasks being leased and reported; heartbeat.py's
thread tells them.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shoal.proto import shoal_pb2 as pb
from shoal.worker.reports.watch import Watch

TRAINING = "training"
"""The stage that is all of a worker's training; the others are parts of it."""


@dataclass(frozen=True)
class Done:
    """The work that a worker's process has done.

    steps, records: of training, that all servers have acknowledged. version: the highest of a
    server that it has seen. stage_seconds: by stage.
    """

    steps: int
    records: int
    version: int
    stage_seconds: dict[str, float]


class Progress:
    """The progress of a worker; shared by the loop and the heartbeat thread.

    acknowledged: its last push that all servers have, by sequence. learning_rate: of its last
    push; None before the first. pipeline: how many steps overlap, and why. stage_took: is told of
    each time that a stage took, in seconds.
    """

    def __init__(self, *, keep_steps: bool = False) -> None:
        """keep_steps: the master wants to hear of each step."""
        self._lock = threading.Lock()
        self._task = 0
        self._records_done = self._steps_done = 0
        self._version = 0
        self._records_in_all = self._steps_in_all = 0
        self.learning_rate: float | None = None
        self.pipeline = 0, ""
        self.stage_took: Callable[[str, float], object] = lambda _name, _seconds: None
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
            self._records_in_all += max(0, records_done - self._records_done)
            self._steps_in_all += 1
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
        """Count the records of the present task, of `records` in all, that are done, and touched.

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
            self.stage_took(name, seconds)

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

    def waits_for(self, what: str, tries: int = 0) -> None:
        """The worker waits for something out of its hands, in words; "" for nothing more.

        tries: are not told, so that the master hears of one wait once.
        """
        del tries
        self._waits_for = what

    def pause(self, seconds: float) -> bool:
        """Wait. Returns False at once if the worker must leave the present task."""
        end = time.monotonic() + seconds
        while not self.interrupted and (left := end - time.monotonic()) > 0:
            self.stopped.wait(min(left, 0.2))
        return not self.interrupted

    @property
    def waiting(self) -> bool:
        """True if the worker waits for something out of its hands."""
        return bool(self._waits_for)

    @property
    def interrupted(self) -> bool:
        """True if the worker must leave the present task: the job ends or the lease is gone."""
        return self.stopped.is_set() or self._abandoned

    def _stage_seconds(self) -> dict[str, float]:
        """The seconds of each stage, up to now. Call under the lock."""
        stages = dict(self._stages)
        if self._training_since is not None:
            so_far = time.perf_counter() - self._training_since
            stages[TRAINING] = stages.get(TRAINING, 0.0) + so_far
        return stages

    def done(self) -> Done:
        """The work that the process has done since it began."""
        with self._lock:
            return Done(
                self._steps_in_all, self._records_in_all, self._version, self._stage_seconds()
            )

    def take(self, worker: int, incarnation: int) -> pb.HeartbeatRequest:
        """The next heartbeat; the losses in it are not told again, the steps until `heard`."""
        with self._lock:
            request = pb.HeartbeatRequest(
                worker=worker,
                incarnation=incarnation,
                task=self._task,
                records_done=self._records_done,
                version=self._version,
                loss=self._loss_sum / self._loss_batches if self._loss_batches else 0.0,
                loss_batches=self._loss_batches,
                stage_seconds=self._stage_seconds(),
                steps=self._steps,
                left_out=self._left_out[0],
                left_out_records=self._left_out[1],
                left_out_why=self._left_out_why,
                acknowledged=self.acknowledged,
                waits_for=self._waits_for,
                longest_seconds=self.watch.longest,
                steps_done=self._steps_in_all,
                learning_rate=self.learning_rate or 0.0,
                pipeline_depth=self.pipeline[0],
                pipeline_why=self.pipeline[1],
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
