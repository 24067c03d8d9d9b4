"""The way along a folder's deltas for whoever goes on for ever: what to do where one is missing.

Owns the way on when a delta is damaged, of another chain or lost: the same one again, and then the
next base. What applying a delta means is its caller's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.deltas.delta import Delta
from shoal.deltas.errors import DeltaError, NoDeltasError, NotKeptError
from shoal.deltas.reading import Reader
from shoal.files.storage import Storage

POLL_SECONDS, REMOTE_POLL_SECONDS = 0.2, 1.0
"""Between two questions for the next delta: on this machine, and at a URL."""

GAP_SECONDS = 10.0
"""Without a next delta, after which the folder is asked if it is lost."""

TRIES = 3
"""Of a delta that cannot be read, before the next base is looked for."""


@dataclass
class Counts:
    """The numbers of events since the start. seconds: of applying deltas."""

    deltas: int = 0
    bases: int = 0
    gaps: int = 0
    refused: int = 0
    seconds: float = 0.0


class Walk:
    """A place in a folder's chain of deltas, which moves on with each that was applied.

    reader: the place. counts: of what happened. pause: seconds between two steps if there is no
    delta.
    """

    def __init__(
        self,
        root: Storage,
        apply: Callable[[Delta], object],
        until: int | None = None,
        number: int = 0,
        checksum: str = "",
    ) -> None:
        """apply: is given each delta; if it raises, it is given that again, or a later base.

        until: the number of the delta at which to stop. number, checksum: of the last one that was
        applied; 0: of none.
        """
        self.reader = Reader(root, number, checksum)
        self.counts = Counts()
        self.pause = POLL_SECONDS if root.local_path("") is not None else REMOTE_POLL_SECONDS
        self._apply, self._until = apply, until
        self._failures, self._asked = 0, time.monotonic()

    @property
    def ended(self) -> bool:
        """True once the last delta that is wanted was applied."""
        return self._until is not None and self.reader.number >= self._until

    def step(self) -> bool:
        """Apply the next delta, and return True; False if there is none now.

        Raises DeltaError and StorageError if there is one, or should be, and it cannot be read; and
        what `apply` raises.
        """
        if not self.reader.number:
            self._begin_first()
            return True
        if self.ended:
            return False
        try:
            delta = self.reader.following()
            if delta is not None:
                self._applied(delta)
                return True
            if time.monotonic() - self._asked < GAP_SECONDS:
                return False
            self._asked = time.monotonic()
            if (problem := self.reader.gap()) is None:
                return False
        except DeltaError as error:
            self._failures += 1
            self.counts.refused += self._failures == 1
            if self._failures < TRIES:
                raise
            problem = error
        else:
            self.counts.gaps += 1
        if not self._rebase():
            raise problem
        return True

    def _begin_first(self) -> None:
        """Begin at the newest base, or if that cannot be read, at the one before."""
        number = self.reader.newest_base(self._until)
        if self._failures >= TRIES:
            with contextlib.suppress(NotKeptError):
                number = self.reader.newest_base(number - 1)
        try:
            self._begin(number)
        except DeltaError:
            self._failures += 1
            raise

    def _rebase(self) -> bool:
        """Go on at a later base, or at any if the folder was begun anew; False without one."""
        try:
            base = self.reader.newest_base(self._until)
        except (NoDeltasError, NotKeptError):
            return False
        if base <= self.reader.number and not self.reader.begun_anew():
            return False
        self._begin(base)
        return True

    def _begin(self, number: int) -> None:
        self._applied(self.reader.base(number))
        self.counts.bases += 1

    def _applied(self, delta: Delta) -> None:
        began = time.monotonic()
        self._apply(delta)
        self.reader.accept(delta)
        self.counts.deltas += 1
        self.counts.seconds += time.monotonic() - began
        self._failures, self._asked = 0, time.monotonic()
