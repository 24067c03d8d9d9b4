"""Bounded staleness as a worker keeps it: wait while it is too far ahead.

Owns this worker's clock and its waiting. Whose clock is slowest, and when a clock is to be told
again, is the master's to say (master/job/clocks.py).
"""

from __future__ import annotations

import threading

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.wire.backoff import doubled_seconds
from shoal.worker.reports.progress import Progress

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.05
"""Seconds between questions while waiting: at first about a step's time, then longer, as
a waiting worker's questions must not slow the master down."""


class StalenessBound:
    """The clock of one worker: steps pulled and steps that all servers have applied.

    A step may be pulled if every worker that trains, this one too, has had at least all
    but `bound` of the steps before it applied. One thread may pull while another pushes.

    What is known of the slowest worker, the master as well as here, is what it had done at least:
    so a clock that is told late makes others wait sooner, and none go too far.
    """

    def __init__(
        self, master: Connection, worker: int, incarnation: int, bound: int, progress: Progress
    ) -> None:
        self._master = master
        self._identity = (worker, incarnation)
        self._bound = bound
        self._progress = progress
        self._lock = threading.Lock()
        self._pulled = 0
        self._applied = 0
        self._slowest = 0
        # The clock that the master was told last, and the one at which it wants to be told again.
        self._told = 0
        self._next = 0

    def begin(self, clock: int) -> None:
        """A training task begins, at the clock that the master gave with it."""
        with self._lock:
            # The master may not have been told of the last steps.
            self._pulled = self._applied = max(clock, self._applied)

    def wait(self) -> bool:
        """Wait until the next step may be pulled; False if the task is to be left instead."""
        if self._pulled - self._slowest > self._bound:
            # What the others did since this worker asked last is not known here.
            self._tell()
        asked = 0
        while self._pulled - self._slowest > self._bound:
            if self._progress.interrupted:
                return False
            with self._progress.stage("wait for workers"):
                asked += 1
                self._progress.stopped.wait(doubled_seconds(asked, FIRST_PAUSE, LONGEST_PAUSE))
                self._tell()
        with self._lock:
            self._pulled += 1
        return True

    def applied(self) -> None:
        """All servers have applied another step."""
        with self._lock:
            self._applied += 1
            due = self._applied >= self._next
        if due:
            self._tell()

    def end(self) -> None:
        """No step follows for now: nobody is to wait for what this worker has done."""
        if self._applied > self._told:
            self._tell()

    def _tell(self) -> None:
        worker, incarnation = self._identity
        with self._lock:
            clock = self._applied
        request = pb.ClockRequest(worker=worker, incarnation=incarnation, clock=clock)
        reply = self._master.call(methods.REPORT_CLOCK, request)
        with self._lock:
            self._slowest = max(self._slowest, reply.slowest)
            self._told = max(self._told, clock)
            self._next = reply.next
