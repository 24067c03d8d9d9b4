"""The choice of a job's master: the decisions about its Lease, without I/O.

lease_keeper.py makes the requests. A Lease is taken by a write that names the version that was
read, so of two masters one is refused. The holder counts from the moment at which it asked for
its last write; a waiting master, from the moment at which it had the answer that showed that
write. So the holder gives up first, whatever the clocks of the two machines say.
"""

from __future__ import annotations

from dataclasses import dataclass

DURATION_SECONDS = 30
"""After which a Lease that is not renewed may be taken. Long enough to restart an API server."""

MARGIN_SECONDS = 5.0
"""So much sooner its holder ends: for its end to take time, and for clocks of unequal speed."""

RENEW_SECONDS = 5.0
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Seen:
    """A Lease as the API server has it.

    version: its resourceVersion. holder: empty if it is free. duration: seconds that its
    holder may go without a renewal.
    """

    version: str
    holder: str
    duration: float = DURATION_SECONDS


@dataclass(frozen=True)
class Read:
    """Read the Lease."""


@dataclass(frozen=True)
class Write:
    """Write the Lease with oneself as holder, over this version; None: create it."""

    version: str | None


Request = Read | Write


class Claim:
    """One master's claim to the Lease. Times are seconds of its own monotonic clock.

    request: what to ask the API server for next. pause: seconds to wait before that.
    until: when the claim ends unless the Lease is renewed; None: it was never held.
    lost: why it ended; empty if it has not.
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.request: Request = Read()
        self.pause = 0.0
        self.until: float | None = None
        self.lost = ""
        self._seen: Seen | None = None
        self._since = 0.0

    def holds(self, now: float) -> bool:
        """True if this master holds the Lease."""
        return not self.lost and self.until is not None and now < self.until

    @property
    def other(self) -> str:
        """The other master that held the Lease when it was last read; empty if none did."""
        holder = self._seen.holder if self._seen is not None else ""
        return holder if holder != self.identity else ""

    def tick(self, now: float) -> None:
        """Note that time has passed: a claim that has ended does not come back."""
        if self.until is not None and now >= self.until and not self.lost:
            self.lost = "it could not be renewed in time"

    def read(self, seen: Seen | None, now: float) -> None:
        """Take the answer to Read, which came at `now`; None: there is no Lease."""
        self.tick(now)
        if self._seen is None or seen is None or seen.version != self._seen.version:
            self._since = now
        self._seen = seen
        mine = seen is not None and seen.holder == self.identity
        if self.until is not None and not mine:
            self.lost = self.lost or (f"{self.other} has it" if self.other else "it was deleted")
            return
        # One's own may be of a process that has ended before in the same pod.
        if seen is None or mine or not seen.holder:
            free = True
        else:
            free = now - self._since >= max(seen.duration, DURATION_SECONDS)
        if free:
            self._next(Write(seen.version if seen is not None else None), 0.0)
        else:
            self._next(Read(), POLL_SECONDS)

    def wrote(self, version: str, asked: float, now: float) -> None:
        """Take the answer to a Write that was asked for at `asked`: the Lease has this version."""
        self.tick(now)
        self._seen = Seen(version, self.identity)
        until = asked + DURATION_SECONDS - MARGIN_SECONDS
        if now < until:
            self.until = until
            self._next(Write(version), RENEW_SECONDS)
        else:  # somebody else may have it when this is read
            self._next(Read(), 0.0)

    def failed(self, now: float) -> None:
        """Note that a request was refused, or had no answer: a write may have been done or not."""
        self.tick(now)
        self._next(Read(), POLL_SECONDS)

    def _next(self, request: Request, pause: float) -> None:
        self.request, self.pause = request, pause
