"""The patience of a worker while storage fails: it tries again, says so, and gives up late.

Owns the pauses and the end of the patience, for data that is read and for output that is written.
The master then decides about the task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from shoal.errors import NOT_THERE, UnreadableError, UserCodeError, UserError, without_secrets
from shoal.proto.wire.backoff import storage_seconds
from shoal.worker.reports.progress import Progress

Result = TypeVar("Result")

TOLD_SECONDS = 2.0
"""Of waiting, before the master is told: a hiccup is no news."""

logger = logging.getLogger(__name__)


class StorageAwayError(UserError):
    """The storage did not answer for as long as the worker tries; another try may help."""


class StoragePatience:
    """The patience of one worker with all storage. Used by the thread that reads or writes.

    progress: as given. known: whether the job has read all of its data before. If not, what may be
    the user's mistake is raised at once.
    """

    def __init__(self, seconds: float, progress: Progress, *, known: bool) -> None:
        """seconds: from the first failure on. progress: is told of the wait, and may end it."""
        self._seconds = seconds
        self.progress = self._progress = progress
        self.known = known
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
                trouble = _trouble(error)
                if trouble is None or (trouble.may_be_mistake and not self.known):
                    raise
                self.failed(trouble)
            else:
                self.worked()
                return result
            again()

    def failed(self, error: OSError | UnreadableError) -> None:
        """The storage has failed: wait before the next try.

        Raises the error itself if it may be a mistake and nothing was read before, and
        StorageAwayError when the patience has ended or the worker is to leave its task.
        """
        trouble = _trouble(error)
        assert trouble is not None
        if trouble.may_be_mistake and not self.known:
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
        if waited >= TOLD_SECONDS:
            self._progress.waits_for(f"storage: {trouble}")
        pause = storage_seconds(self._tries)
        self._pause(pause, trouble, now)

    def _pause(self, seconds: float, trouble: UnreadableError, began: float) -> None:
        assert self._since is not None
        while (left := began + seconds - time.monotonic()) > 0:
            if self._progress.interrupted:
                self._progress.waits_for("")
                raise StorageAwayError(str(trouble))
            if time.monotonic() - self._since >= TOLD_SECONDS:
                self._progress.waits_for(f"storage: {trouble}")
            self._progress.stopped.wait(min(left, 0.2))

    def worked(self) -> None:
        """The storage has given or taken something."""
        if self._tries:
            if self._since is not None:
                away = time.monotonic() - self._since
                logger.info("the storage is back after %.1f s", away)
            self._since, self._tries = None, 0
            self._progress.waits_for("")


def _trouble(error: BaseException) -> UnreadableError | None:
    """The storage's trouble that an exception tells of; None if it tells of none."""
    if isinstance(error, UnreadableError):
        return error
    cause = error.__cause__
    if isinstance(error, UserCodeError) and error.reads and isinstance(cause, OSError):
        made = UnreadableError(error.message, may_be_mistake=True)
    elif isinstance(error, OSError):
        text = without_secrets(f"{type(error).__name__}: {error}")
        made = UnreadableError(text, may_be_mistake=isinstance(error, NOT_THERE))
    else:
        return None
    made.__cause__ = error
    return made
