"""Writing --output while its storage fails now and then: tried again, and given up late.

Owns what an error of --output becomes. The pauses are storage_patience.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shoal.checkpoints.outputs import needs_another, not_written
from shoal.worker.storage_patience import StorageAwayError, StoragePatience

Result = TypeVar("Result")


def written(
    patience: StoragePatience | None,
    output: str,
    work: Callable[[], Result],
    left: Callable[[], str] = lambda: "",
) -> Result:
    """Return the result of `work`, which writes to --output, and call it again while that fails.

    patience: None for none. left: tells in words which files are there after a failure.

    Raises UserError if another --output would help; StorageError when the patience has ended.
    """
    failures: list[OSError] = []

    def attempt() -> Result:
        try:
            return work()
        except OSError as error:
            failures.append(error)
            if patience is None or needs_another(error):
                raise not_written(output, error, left()) from error
            raise

    if patience is None:
        return attempt()
    try:
        return patience.call(attempt)
    except StorageAwayError as error:
        raise not_written(output, failures[-1], left()) from error
