"""The time of each delta, and the state of the one under way: pure decisions.

While a job trains a delta is due every --publish-seconds. After training, in the phase
`publishing`, one has all that was trained, and the job waits for it. What is in one is
master/calls/publish.py's. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config.conditions import unmet
from shoal.config.job import JobConfig
from shoal.master.job import events
from shoal.master.job.events import Event
from shoal.master.job.heard import hears, uses_heard
from shoal.master.job.instructions import PublishDelta
from shoal.master.job.state import JobState
from shoal.master.work.failures import Failure
from shoal.master.work.phases import Phase
from shoal.proto.wire.backoff import doubled_seconds

SHARE_OF_TIME = 10
"""A delta follows the one before no sooner than so many times the processor's time that a share
took: publishing takes a server a tenth of a core at most."""

RETRY_SECONDS = (1.0, 30.0)
"""Before a delta that failed is tried again: first, which doubles, and at most."""

TOLD_SECONDS = 5.0
"""Of failures one after the other, until the user is told."""


@hears("_ordered", "_next")
class Publishing:
    """The deltas of one job.

    count, bytes: of those that it has published. newest: the number of the newest; 0 for none.
    newest_at: when that was, in the job's seconds. failures: how many could not be published, in a
    row. last_failure: why, of the last of them. held: nothing is published until it is released.
    """

    def __init__(self, config: JobConfig, state: JobState) -> None:
        self._phases = state.phases
        self._record = state.record
        self._members = state.members
        self._moves = state.moves
        self._work = state.work
        self._instructions = state.instructions
        self._configure(config)
        self._ordered = False  # one is under way
        self._next = self._after = 0.0  # when one is due, and when it may be, by the last one
        self._failing_since: float | None = None
        self._told = False
        self.held = False
        self.count = self.bytes = self.newest = self.failures = 0
        self.newest_at: float | None = None
        self.last_failure = ""

    def _configure(self, config: JobConfig) -> None:
        self._folder = config.publish
        self._seconds = config.publish_seconds
        self._patience = config.storage_patience_seconds
        self._conditions = config.publish_if

    def age(self, now: float) -> float | None:
        """Seconds since the newest delta, or since training began; None where none is due."""
        since = self.newest_at if self.newest_at is not None else self._record.training_started
        return None if since is None or not self._folder else now - since

    def master_restarted(self) -> None:
        """End the one that was under way."""
        self._ordered = False

    def resumed(self, config: JobConfig) -> None:
        """Other processes go on: the delta under way ended with those that wrote it."""
        self._configure(config)
        kept = [each for each in self._instructions if not isinstance(each, PublishDelta)]
        self._instructions[:] = kept
        self._ordered = False
        self._failing_since, self.failures = None, 0

    def due(self, now: float) -> Iterator[Event[None]]:
        """Order a delta if one is due. Gives the events to which the time leads."""
        phase = self._phases.phase
        idle = self._folder and not self._ordered
        if not idle or phase not in (Phase.TRAINING, Phase.PUBLISHING):
            return
        last = phase is Phase.PUBLISHING
        if not (last or self._phases.version):
            return  # no worker has begun
        if why := self._held_back():
            if last:
                yield events.DeltaLeftOut(why)
            return
        if now < max(self._after, self._next) and (self.failures or not last):
            return
        if self._members.servers_ready and not self._moves.under_way:
            self._order(now, last=last)

    def _held_back(self) -> str:
        """The reason why nothing is to be published now; empty if there is none."""
        if self.held:
            return "it is held (shoal publish hold)"
        results, first = self._work.evaluation_results, self._work.first.results
        last = results[-1].metrics if results else None
        return "; ".join(unmet(self._conditions, last, first[-1].metrics if first else None))

    @uses_heard
    def _order(self, now: float, *, last: bool) -> None:
        self._ordered = True
        self._next = now + self._seconds
        course = self._phases.returns if last else None
        self._instructions.append(PublishDelta(course))

    def hold(self, event: events.PublishingHeld, now: float) -> None:
        """Publish nothing any more, or again."""
        if event.held != self.held:
            self.held = event.held
            what = "nothing is published until it is released" if event.held else "it is published"
            self._record.note(now, f"{what}: deltas in {self._folder}")

    def published(self, event: events.DeltaPublished, now: float) -> None:
        """A delta is whole."""
        told = event.delta
        self._ordered = False
        self._after = now + SHARE_OF_TIME * told.seconds
        if self._told:
            self._record.note(now, f"deltas are published again, from delta {told.number} on")
        elif not self.count:
            self._record.note(now, f"delta {told.number} is in {self._folder}")
        self.count += 1
        self.bytes += told.bytes
        self.newest, self.newest_at = told.number, now
        self._failing_since, self._told, self.failures = None, False, 0
        self._ends(event.course, now)

    def left_out(self, event: events.DeltaLeftOut, now: float) -> None:
        """The last delta is not to be published."""
        self._record.note(now, f"warning: the end of training is not published: {event.why}")
        self._ends(self._phases.returns, now)

    def _ends(self, course: int | None, now: float) -> None:
        if self._phases.phase is Phase.PUBLISHING and course == self._phases.returns:
            self._phases.published(now)

    def failed(self, event: events.DeltaFailed, now: float) -> None:
        """A delta could not be published; the next one has what it had."""
        self._ordered = False
        self.failures += 1
        self.last_failure = event.why
        self._next, self._after = 0.0, now + doubled_seconds(self.failures, *RETRY_SECONDS)
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        if event.for_good:
            self._phases.fail(Failure.of_user(event.why), now)
        elif self._phases.phase is Phase.PUBLISHING and now - since >= self._patience:
            why = f"the end of training could not be published: {event.why}"
            self._phases.give_up(Failure.of_user(why), now)
        elif now - since >= TOLD_SECONDS and not self._told:
            self._told = True
            self._record.note(now, f"warning: no delta can be published: {event.why}")
