"""The patience of a server with the storage of what it restores.

A read that fails once must not cost what a checkpoint holds. Owns the pauses, that the master
hears the reason, and the end of the patience.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from shoal.checkpoints.patient import PatientStorage, stays
from shoal.checkpoints.storage import Storage, open_storage
from shoal.errors import StorageError, without_secrets
from shoal.proto.wire.backoff import storage_seconds
from shoal.ps.saved.progress import Progress

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class RestorePatience:
    """Calls again what the storage fails at. By any number of threads.

    progress: is told the reason, and ends the wait if the server is to end. seconds: for one
    call, from its first failure.
    """

    def __init__(self, progress: Progress, seconds: float) -> None:
        self._progress = progress
        self._seconds = seconds

    def storage(self, location: str) -> Storage:
        """The folder at a path or URL, read with this patience. Raises as `open_storage`."""
        return PatientStorage(open_storage(location), self)

    def call(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns; call it again while it raises an OSError that passes.

        Raises StorageError at the end of the patience, StoppedError if the server is to end.
        """
        began, tries = 0.0, 0
        while True:
            try:
                result = work()
            except OSError as error:
                if stays(error):
                    raise
                # After a try, and not before one: the process may have stood still itself.
                now = time.monotonic()
                began = began if tries else now
                tries += 1
                self._failed(error, tries, now - began)
            else:
                if tries:
                    logger.info("the storage is back after %.1f s", time.monotonic() - began)
                    self._progress.held_up("")
                return result

    def _failed(self, error: OSError, tries: int, waited: float) -> None:
        """Wait before the next try."""
        reason = without_secrets(f"{type(error).__name__}: {error}")
        if waited > self._seconds:
            raise StorageError(
                f"the storage has failed for {waited:.0f} s (--storage-patience-seconds "
                f"{self._seconds:g}) at what the server is to restore: {reason}"
            ) from error
        if tries == 1:
            logger.warning("waiting for storage: %s", reason)
        # With the number, so that the master sees that the server gets on.
        again = f", tried {tries} times" if tries > 1 else ""
        self._progress.held_up(f"wait for storage: {reason}{again}")
        self._progress.pause(storage_seconds(tries))
