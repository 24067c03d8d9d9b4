"""Segments of partitions, as sources: which offsets each has, and which come next.

A segment is named `TOPIC/PARTITION@FIRST-END`, END being behind its last offset: the name tells all
of it. Listings follow one another by a token, which says where the next one begins. Pure functions:
the offsets that there are come in, with the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from shoal.errors import UserError

_NAME = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d+)@(?P<first>\d+)-(?P<end>\d+)")

Marks = Mapping[int, tuple[int, int]]
"""Partition -> the oldest offset that there is, and the one that the next record will have."""


@dataclass(frozen=True)
class Segment:
    """The records of a partition from offset `first` on, before offset `end`."""

    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.first}-{self.end}"

    def __len__(self) -> int:
        """The number of offsets."""
        return self.end - self.first

    @classmethod
    def parse(cls, name: str) -> Segment:
        """The segment of a name. Raises UserError."""
        found = _NAME.fullmatch(name)
        segment = None if found is None else cls(found[1], *(int(found[i]) for i in (2, 3, 4)))
        if segment is None or segment.first > segment.end:
            raise UserError(f"{name!r} is no segment of a topic, as TOPIC/PARTITION@FIRST-END is")
        return segment


@dataclass(frozen=True)
class Position:
    """The place in a partition that a listing has come to.

    next: the first offset that is in no segment. since: when a listing first saw a record there, in
    seconds since 1970; None where it saw none.
    """

    next: int
    since: float | None = None


Positions = Mapping[int, Position]


def token_of(positions: Positions) -> str:
    """The token from which the next listing goes on."""
    return json.dumps({str(p): [at.next, at.since] for p, at in sorted(positions.items())})


def positions_of(token: str) -> dict[int, Position]:
    """The positions that `token_of` made a token of."""
    return {int(partition): Position(*at) for partition, at in json.loads(token).items()}


def ends_of(names: Iterable[str], topic: str) -> dict[int, int]:
    """The end of the last segment of each partition of a topic, among the names of sources."""
    ends: dict[int, int] = {}
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None and found["topic"] == topic:
            partition, end = int(found["partition"]), int(found["end"])
            ends[partition] = max(end, ends.get(partition, 0))
    return ends


def cut(topic: str, partition: int, first: int, end: int, rows: int) -> list[Segment]:
    """The offsets [first, end) as segments, of `rows` each but the last."""
    return [
        Segment(topic, partition, begin, min(begin + rows, end))
        for begin in range(first, end, rows)
    ]


def arrived(
    topic: str, positions: Positions, marks: Marks, *, rows: int, linger: float, now: float
) -> tuple[list[Segment], dict[int, Position]]:
    """The segments that a listing tells, in order, and the positions behind them.

    positions: of the listing before. A partition without one is new since, and begins at 0: what
    it no longer has was never listed. rows: records of a segment. linger: seconds from when a
    record was first seen, after which it is in a segment of fewer. now: seconds since 1970.

    Records that are deleted already are listed too: whoever reads them tells so. Raises UserError
    if a partition ends before its position.
    """
    found: list[Segment] = []
    after = dict(positions)
    for partition, (_, high) in sorted(marks.items()):
        at = after.get(partition, Position(0))
        if high < at.next:
            raise UserError(
                f"partition {partition} of topic {topic} ends before offset {high}, and was read "
                f"up to offset {at.next}: the topic was deleted and made anew, or lost records "
                "with its broker: begin a new job"
            )
        # A clock that went back would have records wait for it.
        since = now if at.since is None else min(at.since, now)
        whole = at.next + (high - at.next) // rows * rows
        if whole > at.next:
            since = now  # of those behind
        end = high if now - since >= linger else whole
        found += cut(topic, partition, at.next, end, rows)
        after[partition] = Position(end, since if end < high else None)
    return found, after


def with_beginnings(
    segments: list[Segment], begins: Mapping[int, int], topic: str
) -> list[Segment]:
    """The same with an empty segment for each partition that has none.

    So the names of a first listing tell where each partition was begun: a job that continues from
    this one goes on there.
    """
    named = {each.partition for each in segments}
    marks = [Segment(topic, p, at, at) for p, at in begins.items() if p not in named]
    return sorted([*segments, *marks], key=lambda each: (each.partition, each.first))


def remembered(positions: Positions, seen: Positions) -> dict[int, Position]:
    """The positions of a token, with the times that another listing told of the same offsets."""
    return {
        partition: replace(at, since=seen[partition].since)
        if at.since is None and partition in seen and seen[partition].next == at.next
        else at
        for partition, at in positions.items()
    }
