"""The journal's files: segments of records, each of which proves that it is in its place.

A segment is a header and then records, in one file that only grows.

    header: magic, format, length, checksum; then JSON, and the state of the job
    record:  kind, length, number, checksum, check of these; then the payload

The header says which event came last before the segment, and its checksum. An event's checksum
is that of its number and payload, seeded with the checksum of the event before. So an event
that was changed, moved or taken out is seen, in whatever segment; the check of its head tells
a length that was changed from a record that was cut. The last record of a segment that has a
successor says so.

Owns the format and what of a damaged file may be believed: a record that ends with its file,
or in nothing but zeros, was being written when the machine stopped. Nobody was answered
because of it, and it is left out. Anything else is damage. What an event means is events.py's,
when a segment is begun journal.py's.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from shoal.base.wholefile import reading, replacing, sync
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.master.journal.events import Event
from shoal.proto import shoal_pb2 as pb
from shoal.proto.positions import position_json, position_of

MAGIC = b"SHOALJNL"
FORMAT = 4

SUFFIX = ".journal"
PACKED = ".gz"

_HEADER = struct.Struct("<8sIQQ")  # magic, format, length of what follows, its checksum
_SIZES = struct.Struct("<II")  # of the JSON and of the state
_RECORD = struct.Struct("<BIQQ")  # kind, length, number, checksum
_CHECK = struct.Struct("<I")  # of a record's head
_HEAD = _RECORD.size + _CHECK.size

_UNREADABLE = (struct.error, ValueError, LookupError, TypeError, AttributeError, AssertionError)
"""What comes of content that is of another form."""

_EVENT = 1
_FOLLOWED = 2
_PACK_LEVEL = 1


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
    state: the job after that event; empty in the first segment.
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
        return _HEADER.pack(MAGIC, FORMAT, len(body), xxhash.xxh3_64_intdigest(body)) + body


def beginning(config: JobConfig, journal: int) -> Position:
    """The position of a journal of this job before its first event."""
    checksum = xxhash.xxh3_64_intdigest(config.to_json().encode(), seed=journal)
    return Position(journal, 0, checksum)


def _chained(number: int, payload: bytes, before: int) -> int:
    digest = xxhash.xxh3_64(number.to_bytes(8, "little"), seed=before)
    digest.update(payload)
    return digest.intdigest()


def _record(kind: int, number: int, checksum: int, payload: bytes) -> bytes:
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
    position = Position(before.journal, number, _chained(number, payload, before.checksum))
    return _record(_EVENT, number, position.checksum, payload), position


def followed_record(last: Position) -> bytes:
    """The end of a segment that has a successor."""
    return _record(_FOLLOWED, last.number, last.checksum, b"")


def _entry_of(payload: bytes) -> Entry:
    content = json.loads(payload)
    event = Event(
        content["method"],
        content["time"],
        content.get("arguments", {}),
        content.get("heard", {}),
        content.get("task", 0),
    )
    return Entry(content["wall"], event)


# ---------------------------------------------------------------- files


def segment_path(folder: Path, index: int) -> Path:
    """Where a segment is, or its packed file will be beside."""
    return folder / f"{index:06d}{SUFFIX}"


def segments(folder: Path) -> list[Path]:
    """The segments in a journal's folder, in order.

    Raises UserError, which names what is missing.
    """
    if not folder.is_dir():
        raise UserError(f"there is no journal {folder}")
    found: dict[int, Path] = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"the journal {folder} cannot be read: {error}") from error
    for name in names:
        plain = name.removesuffix(PACKED)
        digits = plain.removesuffix(SUFFIX)
        if plain == digits or not digits.isdecimal():
            continue
        # Of a segment that was being packed, the file that it was packed from.
        if plain == name or int(digits) not in found:
            found[int(digits)] = folder / name
    for index in range(1, max(found, default=0) + 1):
        if index not in found:
            raise UserError(
                f"the journal {folder} is damaged: {segment_path(folder, index).name} is missing"
            )
    return [found[index] for index in sorted(found)]


def pack(path: Path) -> None:
    """Compress a segment that nothing will be added to. Raises OSError."""
    packed = path.with_name(path.name + PACKED)
    with replacing(packed) as temporary, gzip.open(temporary, "wb", _PACK_LEVEL) as file:
        file.write(path.read_bytes())
    sync(path.parent)
    path.unlink()


# ---------------------------------------------------------------- reading


class Segment:
    """One segment that was read, and is whole but for what was being written.

    header: as it was written. end: bytes of the file up to its last whole record. last: the
    position of its last event. followed: whether it has a successor.
    """

    def __init__(self, path: Path) -> None:
        """Read the file and check all of it. Raises UserError, which names it."""
        self.path = path
        try:
            with reading(path) as file:
                content = file.read()
            self._bytes = gzip.decompress(content) if path.suffix == PACKED else content
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path} is damaged or cannot be read: {error}") from error
        self.header, self._begin = self._read_header()
        self.end = self._begin
        self.last = self.header.before
        self.followed = False
        self.torn = False
        for record, payload in self._records():
            kind, _, number, checksum = record
            if kind == _FOLLOWED:
                self.followed = True
            elif self.followed:
                raise self._damaged(self.end, number, "it comes after the segment's end")
            else:
                self.last = self._position(number, checksum)
            self.end += _HEAD + len(payload)
        if self.torn and (self.followed or path.suffix == PACKED):
            raise self._damaged(self.end, self.last.number + 1, "it is not whole")

    def _position(self, number: int, checksum: int) -> Position:
        return Position(self.header.before.journal, number, checksum)

    def _damaged(self, offset: int, number: int, why: str) -> UserError:
        return UserError(
            f"{self.path} is damaged at byte {offset:,}, in event {number:,}: {why}. The job "
            "cannot go on from this journal; put back an undamaged copy of the file, or begin "
            "anew with --overwrite"
        )

    def _read_header(self) -> tuple[Header, int]:
        data = self._bytes
        if not data.startswith(MAGIC):
            raise UserError(f"{self.path} is damaged, or not a segment of a journal of shoal")
        try:
            _, version, length, checksum = _HEADER.unpack_from(data)
            if version != FORMAT:
                raise UserError(
                    f"{self.path} is of journal format {version}; this version of shoal reads "
                    f"format {FORMAT}"
                )
            begin = _HEADER.size + length
            body = memoryview(data)[_HEADER.size : begin]
            if len(body) != length or xxhash.xxh3_64_intdigest(body) != checksum:
                raise UserError(f"{self.path} is damaged: its header is not as it was written")
        except struct.error as error:
            raise UserError(f"{self.path} is damaged: its header cannot be read") from error
        # What follows is as it was written: what cannot be read of it is another version's.
        writer = ""
        try:
            text_size, state_size = _SIZES.unpack_from(body)
            at = _SIZES.size + text_size
            content = json.loads(bytes(body[_SIZES.size : at]))
            writer = str(content.get("version", ""))
            message = position_of(content["before"])
            assert message is not None
            before = Position.of(message)
            header = Header(
                JobConfig.from_json(content["configuration"]),
                content["segment"],
                before,
                content["wall"],
                content["time"],
                content["method"],
                content["version"],
                bytes(body[at : at + state_size]),
            )
        except (UserError, *_UNREADABLE) as error:
            raise self._foreign(writer, error) from error
        return header, begin

    def _foreign(self, writer: str, error: Exception) -> UserError:
        """It is whole, and not as this version of shoal writes it."""
        which = f"shoal {writer}" if writer else "another version of shoal"
        why = str(error) if isinstance(error, UserError) else repr(error)
        return UserError(
            f"{self.path} was written by {which}, and this version cannot read it ({why}). Go "
            "on with the version that wrote it, or begin anew with --overwrite"
        )

    def _records(self) -> Iterator[tuple[tuple[int, int, int, int], memoryview]]:
        """Each record's head and payload, checked, to the end or to what was being written."""
        data, at = memoryview(self._bytes), self._begin
        before = self.header.before
        while at < len(data):
            number = before.number + 1
            if len(data) - at < _HEAD or not any(data[at:]):
                self.torn = True
                return
            head = _RECORD.unpack_from(data, at)
            (check,) = _CHECK.unpack_from(data, at + _RECORD.size)
            if zlib.crc32(data[at : at + _RECORD.size]) != check:
                if self._ends_in_zeros(at, _HEAD):
                    self.torn = True
                    return
                raise self._damaged(at, number, "its head is not as it was written")
            kind, length, is_number, checksum = head
            payload = data[at + _HEAD : at + _HEAD + length]
            if len(payload) < length:
                self.torn = True
                return
            if kind == _FOLLOWED:
                if length or self._position(is_number, checksum) != before:
                    raise self._damaged(at, number, "the segment's end is another one's")
            elif kind != _EVENT or is_number != number:
                raise self._damaged(at, number, f"event {is_number:,} stands in its place")
            elif _chained(number, bytes(payload), before.checksum) != checksum:
                if self._ends_in_zeros(at, _HEAD + length):
                    self.torn = True
                    return
                raise self._damaged(at, number, "it is not as it was written")
            else:
                before = self._position(number, checksum)
            yield head, payload
            at += _HEAD + length

    def _ends_in_zeros(self, at: int, length: int) -> bool:
        """Whether the end of a record, and all that follows, was never written."""
        return not any(self._bytes[at + length - 1 :])

    def entries(self, method: str = "") -> Iterator[tuple[Position, Entry]]:
        """The segment's events, in order, of methods whose names begin so.

        Raises UserError if one cannot be read.
        """
        begin = f'{{"method":"{method}'.encode()
        for (kind, _, number, checksum), payload in self._records():
            if kind == _EVENT and payload[: len(begin)] == begin:
                try:
                    entry = _entry_of(bytes(payload))
                except _UNREADABLE as error:
                    raise self._foreign(self.header.version, error) from error
                yield self._position(number, checksum), entry


def follows(segment: Segment, before: Segment) -> None:
    """Raise UserError unless a segment goes on where the one before it ends."""
    header = segment.header
    if header.before != before.last or header.index != before.header.index + 1:
        raise UserError(
            f"the journal {segment.path.parent} is damaged: {segment.path.name} goes on after "
            f"event {header.before.number:,}, and {before.path.name} ends with another one, "
            f"event {before.last.number:,}"
        )
    if header.config != before.header.config:
        raise UserError(f"{segment.path} is of a job with another configuration")
