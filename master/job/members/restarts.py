"""The restarts that a process may have, and the pauses before them.

Times come with the calls, and are those of the job's events: doing the events again gives
the same decisions. No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.config.groups.running import RELAUNCH_WINDOW_SECONDS
from shoal.config.job import JobConfig
from shoal.proto.wire.backoff import doubled_seconds

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
"""Far below four times --timeout-seconds: workers that wait for a server do not give up."""

REST_SECONDS = 60.0
"""A failure this long after the one before it makes no pause: the process worked meanwhile."""


LEFT_OUT_SECONDS = (60.0, 1800.0)
"""The pauses of a worker beyond the limit, which the others go on without: first, and at most."""


@dataclass(frozen=True)
class RelaunchLimit:
    """times: how often a process is started again within `window` seconds."""

    times: int
    window: float = RELAUNCH_WINDOW_SECONDS

    @classmethod
    def of(cls, config: JobConfig) -> RelaunchLimit:
        """That of a job."""
        return cls(config.relaunch_limit)

    def exceeded(self, failures: int) -> str:
        """The consequence of so many failures, in words."""
        times = "once" if failures == 1 else f"{failures} times"
        return (
            f"failed {times} within {self.window:g} s, and "
            f"--relaunch-limit {self.times} allows no further start"
        )


@dataclass
class Restarts:
    """The failures of one process, through all its incarnations.

    failures: times of those that count, oldest first, in seconds of the job; none that lies
    before both the window and REST_SECONDS. refusals: times at which its place did not take it,
    which do not count, each within REST_SECONDS of the next.
    """

    failures: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)

    def failed(self, now: float, window: float) -> int:
        """The process failed; returns how many failures there were within `window` seconds."""
        kept = max(window, REST_SECONDS)
        self.failures = [at for at in self.failures if now - at < kept]
        self.failures.append(now)
        return sum(now - at < window for at in self.failures)

    def beyond(self, now: float, limit: RelaunchLimit) -> int:
        """The number of failures above the limit."""
        return max(0, sum(now - at < limit.window for at in self.failures) - limit.times)

    def long_pause(self, now: float, limit: RelaunchLimit) -> float:
        """Seconds to wait before a process beyond the limit is tried again, which grow."""
        return doubled_seconds(self.beyond(now, limit), *LEFT_OUT_SECONDS)

    def pause(self, now: float) -> float:
        """Seconds to wait before the next start: none after the first failure, then growing."""
        return _pause(len(_in_a_row(self.failures, now)) - 1)

    def refused(self, now: float) -> float:
        """The process's place did not take it; returns the seconds to wait, which grow."""
        self.refusals = [*_in_a_row(self.refusals, now), now]
        return _pause(len(self.refusals))


def _in_a_row(times: list[float], now: float) -> list[float]:
    """The last of these times: each within REST_SECONDS of the next, and the last one of `now`."""
    first = len(times)
    while first and now - times[first - 1] < REST_SECONDS:
        first -= 1
        now = times[first]
    return times[first:]


def _pause(count: int) -> float:
    """The pause number `count`, from 1; 0 seconds for none."""
    if count < 1:
        return 0.0
    return doubled_seconds(count, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
