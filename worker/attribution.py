"""Which records an exception is about, noted on the exception itself.

Only what happens while records are read, fed or computed is held against them; an error of
the set-up, of tracing or of the job's other processes is not, whatever task was under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.errors import StorageAwayError, UnreadableError
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, ServerAwayError, WireError

_OF_NO_RECORD = (
    WireError,
    PeerUnavailableError,
    ServerAwayError,
    UnreadableError,
    StorageAwayError,
    MemoryError,
)
_NOTE = "_shoal_records"


@contextmanager
def attributing(records: pb.Range | None) -> Iterator[None]:
    """Hold an exception of the body against `records`, None for against none at all.

    Where it is said more than once, the first counts: it knew best.
    """
    try:
        yield
    except Exception as error:
        attribute(error, records)
        raise


def attribute(error: Exception, records: pb.Range | None) -> None:
    """Hold `error` against `records`, or against none."""
    if not any(isinstance(each, _OF_NO_RECORD) or _NOTE in vars(each) for each in _causes(error)):
        setattr(error, _NOTE, records)


def attributed(error: Exception) -> pb.Range | None:
    """The records that an exception is held against; None if none are."""
    notes = (vars(each)[_NOTE] for each in _causes(error) if _NOTE in vars(each))
    records = next(notes, None)
    assert records is None or isinstance(records, pb.Range)
    return records


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those that it wraps."""
    while error is not None:
        yield error
        error = error.__cause__


def part(records: pb.Range, first: int, size: int) -> pb.Range:
    """`size` records of a range from its `first` on."""
    start = records.start + first
    return pb.Range(source=records.source, start=start, end=start + size)
