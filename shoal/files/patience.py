"""Patience with storage that fails: work is tried again after growing pauses, and given up late.

Owns the pauses, the word that somebody waits, and the end of the patience.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from shoal.errors import (
    NOT_THERE,
    StorageAwayError,
    UnreadableError,
    UserCodeError,
    without_secrets,
)
from shoal.proto.wire.backoff import storage_seconds

Result = TypeVar("Result")

TOLD_SECONDS = 2.0
"""Of waiting, which are told: a hiccup is no news."""

logger = logging.getLogger(__name__)


class Progress(Protocol):
    """The progress of a process that waits for storage."""

    def waits_for(self, what: str, tries: int = 0) -> None:
        """Note what the process waits for, and how often it has tried; "" once it goes on."""

    def pause(self, seconds: float) -> bool:
        """Wait. Returns False, or raises an error, if the work is not wanted any more."""


class Patience:
    """Calls again what storage fails at. For one thread at a time.

    seconds: from the first failure on. final: tells of an error that no other try would mend.
    """

    def __init__(
        self, seconds: float, progress: Progress, final: Callable[[UnreadableError], bool]
    ) -> None:
        self._seconds, self._progress, self._final = seconds, progress, final
        self._since: float | None = None
        self._tries = 0

    def call(
        self, work: Callable[[], Result], again: Callable[[], object] = lambda: None
    ) -> Result:
        """Return the result of `work`, which is called again while the storage fails.

        again: called before each repetition. Raises other errors of `work`, and those of `failed`.
        """
        while True:
            try:
                result = work()
            except (OSError, UnreadableError, UserCodeError) as error:
                self.failed(error)
            else:
                self.worked()
                return result
            again()

    def failed(self, error: OSError | UnreadableError | UserCodeError) -> None:
        """Wait before the next try, as the storage has failed.

        Raises the error itself if it is final or not the storage's, and StorageAwayError when the
        patience has ended or the work is not wanted any more.
        """
        trouble = _trouble(error)
        if trouble is None or self._final(trouble):
            raise error
        now = time.monotonic()
        if self._since is None:
            self._since = now
            logger.warning("waiting for storage: %s", trouble)
        waited = now - self._since
        # After a try, and not before one: the process may have stood still itself.
        if waited > self._seconds:
            self._since = None  # the pauses stay long until something is read
            self._progress.waits_for("")
            raise StorageAwayError(
                f"{trouble} (tried for {waited:.0f} s, --storage-patience-seconds "
                f"{self._seconds:g})"
            ) from error
        self._tries += 1
        pause = storage_seconds(self._tries)
        if waited + pause >= TOLD_SECONDS:
            self._progress.waits_for(f"storage: {trouble}", self._tries)
        if not self._progress.pause(pause):
            self._progress.waits_for("")
            raise StorageAwayError(str(trouble)) from error

    def worked(self) -> None:
        """The storage has given or taken something."""
        if self._tries:
            if self._since is not None:
                away = time.monotonic() - self._since
                logger.info("the storage is back after %.1f s", away)
            self._since, self._tries = None, 0
            self._progress.waits_for("")


def _trouble(error: OSError | UnreadableError | UserCodeError) -> UnreadableError | None:
    """The storage's trouble that an exception tells of; None if it tells of none."""
    if isinstance(error, UnreadableError):
        return error
    if isinstance(error, OSError):
        text = without_secrets(f"{type(error).__name__}: {error}")
        made = UnreadableError(text, may_be_mistake=isinstance(error, NOT_THERE))
    elif error.reads and isinstance(error.__cause__, OSError):
        made = UnreadableError(error.message, may_be_mistake=True)
    else:
        return None
    made.__cause__ = error
    return made
