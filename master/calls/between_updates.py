"""A moment without gradients, for a move of slots under --sync.

Nobody begins to compute a gradient until the move's end, and what is being computed is applied
first: then no server holds a gradient whose rows would have to move with it. Owns that wait;
job/updates.py decides which worker computes for which update.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from shoal.master.calls.move_slots import MovingError
from shoal.master.job.updates import Gradient
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import WorkerId
from shoal.proto import shoal_pb2 as pb

QUIET_SECONDS = 120.0
"""For the gradients under way to be applied: a worker's first step may take long."""

LOOK_SECONDS = 0.005
"""Between looks whether they are."""


class BetweenUpdates:
    """The moments between updates of one job with --sync. ending: set when the job has ended."""

    def __init__(self, job: SharedJob, ending: threading.Event) -> None:
        self._job = job
        self._ending = ending
        self._within: list[None] = []  # one for each that has entered

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Enter when no gradient waits and none is computed; none is until the end.

        Raises MovingError if there is no such moment for long. May be entered again within.
        """
        self._within.append(None)
        try:
            self._job.apply(lambda job, _: job.updates.hold_back(True))
            give_up = time.monotonic() + QUIET_SECONDS
            while not self._job.apply(lambda job, _: job.updates.quiet):
                if self._ending.wait(LOOK_SECONDS):
                    raise MovingError("the job has ended")
                if time.monotonic() > give_up:
                    raise MovingError(f"gradients were under way for {QUIET_SECONDS:g} s")
            yield
        finally:
            self._within.pop()
            held = bool(self._within)
            self._job.apply(lambda job, _: job.updates.hold_back(held))

    def wait_saved(self) -> None:
        """Return once a checkpoint has what has moved, or the job has ended."""
        while self._job.look(lambda job, _: job.moves.unsaved):
            if self._ending.wait(LOOK_SECONDS):
                return

    def check(self, held: Iterable[pb.GradientId]) -> None:
        """Raise MovingError if servers hold a gradient that may still be applied."""
        found = {Gradient(WorkerId(g.worker), g.incarnation, g.number) for g in held}
        # One that came too late is let go of with the next update.
        waiting = found - self._job.apply(lambda job, _: job.updates.dropped)
        if waiting:
            names = ", ".join(sorted(f"{each.worker}'s {each.number}" for each in waiting))
            raise MovingError(f"gradients wait that no update has yet: {names}")
