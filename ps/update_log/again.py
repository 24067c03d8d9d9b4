"""An entry of a log that is done again: its name, and its end in the middle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.errors import Error
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)


class HalfAppliedError(Error):
    """A push of the log was applied in part: the model is of no use. at: its place in the log."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(at, why)
        self.at = at
        self.why = why


@contextmanager
def whole(at: int, entry: pb.LogEntry, frame: bytes | memoryview) -> Iterator[None]:
    """Apply an entry. Raises HalfAppliedError for whatever is raised."""
    try:
        yield
    except Exception as error:
        logger.exception("an entry of the log was applied in part")
        why = f"{name_of(entry, frame)} cannot be done again: {error!r}"
        raise HalfAppliedError(at, why) from error


def name_of(entry: pb.LogEntry, frame: bytes | memoryview) -> str:
    """An entry in words."""
    what = "move" if entry.move else "sweep" if entry.sweep else "update"
    return f"the {what} of step {entry.step} ({len(frame):,} bytes)"
