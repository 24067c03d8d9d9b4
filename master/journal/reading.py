"""Reading a journal from its beginning, for the audit and a resumption, while it may be in use.

Changes nothing. segments.py reads one file, and journal.py writes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.master.journal import segments
from shoal.master.journal.events import Entry
from shoal.master.journal.records import beginning
from shoal.master.journal.segments import Segment


def read_segments(path: Path, first: int = 1) -> Iterator[Segment]:
    """The segments of a journal from one on, each read when it is due. It may be in use.

    Raises UserError, which names the file, if one is damaged, missing, or another version's.
    """
    segments.segments(path)  # none is missing between others
    before: Segment | None = None
    goes_on = True
    while goes_on:
        index = before.header.index + 1 if before is not None else first
        segment = _segment(path, index)
        goes_on = segment.followed or any(each.exists() for each in _names(path, index + 1))
        if goes_on and not segment.followed:
            # Begun since, with events before it that were not there yet.
            segment = _segment(path, index)
        if before is not None:
            segments.follows(segment, before)
        elif index == 1 and segment.header.before != beginning(
            segment.header.config, segment.header.before.journal
        ):
            raise UserError(f"{segment.path} is damaged: it does not begin the journal")
        yield segment
        before = segment


def _names(path: Path, index: int) -> tuple[Path, Path]:
    """The files that a segment may be in: as it is written, and compressed."""
    plain = segments.segment_path(path, index)
    return plain, segments.packed_path(plain)


def _segment(path: Path, index: int) -> Segment:
    """A segment, which a running master may compress just now. Raises UserError."""
    plain, packed = _names(path, index)
    try:
        return Segment(plain if plain.exists() else packed)
    except UserError:
        if not packed.exists():
            raise
        return Segment(packed)


def read(path: Path) -> tuple[JobConfig, Iterator[Entry]]:
    """The job's configuration and all events of a journal, which may be in use.

    The events are read as they are asked for. Both raise UserError, which names the file, if
    it is damaged, another program's or another version's.
    """
    found = read_segments(path)
    first = next(found)

    def entries() -> Iterator[Entry]:
        for segment in itertools.chain([first], found):
            yield from (entry for _, entry in segment.entries())

    return first.header.config, entries()
