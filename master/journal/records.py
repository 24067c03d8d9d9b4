"""The bytes of a journal's segments, each record of which proves that it is in its place.

A segment is a header and then records, in one file that only grows.

    header:  magic, format, length, checksum; then JSON, and the state of the job
    record:  kind, length, number, checksum, check of these; then the payload

The header names the event before the segment, with its checksum. An event's checksum is that of
its number and payload, seeded with the checksum of the event before. So a changed, moved or missing
event is seen, in whatever segment. The check of its head tells a changed length from a record that
was cut. The last record of a segment that has a successor says so.

Owns this form. segments.py has the files, and decides what to believe of a damaged one; events.py
says what an event means. No I/O.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash

from shoal.config.job import JobConfig
from shoal.master.journal.events import Event
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.positions import position_json, position_of

MAGIC = b"SHOALJNL"
FORMAT = 4

EVENT = 1
FOLLOWED = 2
"""Kinds of records."""

HEADER = struct.Struct("<8sIQQ")
"""The beginning of a segment: magic, format, length of the header's body, checksum of that."""

_SIZES = struct.Struct("<II")  # of the JSON and of the state
_RECORD = struct.Struct("<BIQQ")  # kind, length, number, checksum
_CHECK = struct.Struct("<I")  # of a record's head

HEAD_BYTES = _RECORD.size + _CHECK.size
"""Of a record, before its payload."""

UNREADABLE = (struct.error, ValueError, LookupError, TypeError, AttributeError, AssertionError)
"""What comes of content that is of another form."""


@dataclass(frozen=True)
class Position:
    """A place in a journal: the number of an event, from 1, and its checksum, 64 bits.

    journal: which one; drawn when it was begun. Number 0 is the beginning, and its checksum that
    of the job's configuration.
    """

    journal: int
    number: int
    checksum: int

    def message(self) -> pb.JournalPosition:
        """The same for the wire."""
        return pb.JournalPosition(journal=self.journal, number=self.number, checksum=self.checksum)

    @classmethod
    def of(cls, message: pb.JournalPosition) -> Position:
        """The same from the wire."""
        return cls(message.journal, message.number, message.checksum)


@dataclass(frozen=True)
class Entry:
    """An event and when it was written, in seconds of the wall clock."""

    wall: float
    event: Event


@dataclass(frozen=True)
class Header:
    """The beginning of a segment.

    index: of the segment, from 1. before: the event before its first one. wall, time: of that
    event, as in Entry and Event. method: of that event. version: of shoal, which wrote it.
    state: the job after that event; empty in the first segment, and in old ones.
    """

    config: JobConfig
    index: int
    before: Position
    wall: float
    time: float
    method: str
    version: str
    state: bytes = b""

    def to_bytes(self) -> bytes:
        """The header as it stands in the file."""
        content = {
            "configuration": self.config.to_json(),
            "segment": self.index,
            "before": position_json(self.before.message()),
            "wall": self.wall,
            "time": self.time,
            "method": self.method,
            "version": self.version,
        }
        text = json.dumps(content).encode()
        body = _SIZES.pack(len(text), len(self.state)) + text + self.state
        return HEADER.pack(MAGIC, FORMAT, len(body), xxhash.xxh3_64_intdigest(body)) + body

    @classmethod
    def of(cls, content: dict[str, Any], state: bytes) -> Header:
        """The header of a body, as `body_parts` took it apart.

        Raises UserError or one of `UNREADABLE`.
        """
        message = position_of(content["before"])
        assert message is not None
        return cls(
            JobConfig.from_json(content["configuration"]),
            content["segment"],
            Position.of(message),
            content["wall"],
            content["time"],
            content["method"],
            content["version"],
            state,
        )


def body_parts(body: memoryview) -> tuple[dict[str, Any], bytes]:
    """The JSON of a header's body, and the job's state. Raises one of `UNREADABLE`."""
    text_size, state_size = _SIZES.unpack_from(body)
    at = _SIZES.size + text_size
    content: dict[str, Any] = json.loads(bytes(body[_SIZES.size : at]))
    return content, bytes(body[at : at + state_size])


def beginning(config: JobConfig, journal: int) -> Position:
    """The position of a journal of this job before its first event."""
    checksum = xxhash.xxh3_64_intdigest(config.to_json().encode(), seed=journal)
    return Position(journal, 0, checksum)


def chained(number: int, payload: bytes, before: int) -> int:
    """The checksum of an event, by that of the event before."""
    digest = xxhash.xxh3_64(number.to_bytes(8, "little"), seed=before)
    digest.update(payload)
    return digest.intdigest()


def record_bytes(kind: int, number: int, checksum: int, payload: bytes) -> bytes:
    """A record as it stands in the file."""
    head = _RECORD.pack(kind, len(payload), number, checksum)
    return head + _CHECK.pack(zlib.crc32(head)) + payload


def record_of(entry: Entry, before: Position) -> tuple[bytes, Position]:
    """An event as it stands in the file, and its position."""
    event = entry.event
    content = {"method": event.method, "time": float(event.time), "wall": float(entry.wall)}
    for name in ("arguments", "heard", "task"):
        if value := getattr(event, name):
            content[name] = value
    payload = json.dumps(content, separators=(",", ":")).encode()
    number = before.number + 1
    position = Position(before.journal, number, chained(number, payload, before.checksum))
    return record_bytes(EVENT, number, position.checksum, payload), position


def followed_record(last: Position) -> bytes:
    """The end of a segment that has a successor."""
    return record_bytes(FOLLOWED, last.number, last.checksum, b"")


def entry_of(payload: bytes) -> Entry:
    """The event of a record. Raises one of `UNREADABLE`."""
    content = json.loads(payload)
    event = Event(
        content["method"],
        content["time"],
        content.get("arguments", {}),
        content.get("heard", {}),
        content.get("task", 0),
    )
    return Entry(content["wall"], event)


class Record(NamedTuple):
    """The head of a record. number, checksum: of its event, or of the last one before it."""

    kind: int
    length: int
    number: int
    checksum: int


def record_at(data: memoryview, at: int) -> Record | None:
    """The head of the record at `at`, all of which is there; None if it is not as written."""
    (check,) = _CHECK.unpack_from(data, at + _RECORD.size)
    if zlib.crc32(data[at : at + _RECORD.size]) != check:
        return None
    return Record(*_RECORD.unpack_from(data, at))
