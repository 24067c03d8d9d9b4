"""Errors of who reads what a job publishes: one for each way out that a reader has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.errors import Error, StorageError

AGAIN = "begin again at the newest base, without `after`, and drop what it does not have"


class DeltaError(Error):
    """A delta that cannot be read; the text names its folder or file, and says what to do."""


class NoDeltasError(DeltaError):
    """A folder without deltas: another folder, or nothing has been published there yet."""


class NotKeptError(DeltaError):
    """A delta that is not kept any more, or was lost: a reader begins anew at a base."""


class ForeignDeltaError(DeltaError):
    """A delta that does not follow on the one before: another job or master has written there."""


class DamagedDeltaError(DeltaError):
    """A delta with a file that is missing, or not as it was written."""


@contextmanager
def told() -> Iterator[None]:
    """Raise what goes wrong in the body as an error of this module, or as StorageError.

    A file that is not there was lost; if it cannot be read for another reason, the storage fails.
    """
    try:
        yield
    except CheckpointError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            raise StorageError(str(error)) from error
        raise DamagedDeltaError(f"{error}; {AGAIN}") from error
    except OSError as error:
        raise StorageError(f"{type(error).__name__}: {error}") from error
