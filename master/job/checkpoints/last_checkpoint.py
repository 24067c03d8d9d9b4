"""The checkpoint of all that was trained: whether one has it all, and when to give one up.

Owns the patience with failed attempts. No I/O, no clock.
"""

from __future__ import annotations

from shoal.proto.wire.backoff import doubled_seconds

ATTEMPTS = 2
"""The first may have met a server's death."""

PAUSE_SECONDS = (1.0, 30.0)
"""Between attempts: the first pause, which doubles, and the longest."""


class LastCheckpoint:
    """The attempts to take it. patience: seconds with the storage, where nothing else has it all.

    failures: of the attempts since training last ended. after: time of the next one.
    """

    def __init__(self, patience: float) -> None:
        self.failures = 0
        self.after = 0.0
        self._patience = patience
        self._since = 0.0  # the first failure
        self._only = False  # at the last failure: nothing else would have it all
        # How often training had begun again when the attempt under way was begun after it; None:
        # it was begun while something was trained.
        self._returns: int | None = 0

    def resumed(self) -> None:
        """The job goes on with new processes."""
        self.failures, self.after = 0, 0.0

    def begun(self, returns: int | None) -> None:
        """A checkpoint begins. returns: how often training has begun again; None: it goes on."""
        if returns is not None and returns != self._returns:
            self.resumed()
        self._returns = returns

    def has_all(self, returns: int) -> bool:
        """True if nothing was trained since the newest one was begun."""
        return self._returns == returns

    def failed(self, now: float, *, only: bool) -> bool:
        """An attempt has failed; returns whether to give it up. only: nothing else has it all."""
        if only != self._only:
            self.failures = 0  # it matters more than it did
        self._only = only
        self.failures += 1
        if self.failures == 1:
            self._since = now
        self.after = now + doubled_seconds(self.failures, *PAUSE_SECONDS)
        waited = now - self._since >= self._patience
        return self.failures >= ATTEMPTS and (waited or not only)
