"""The files of a journal: reading them, checking them, compressing them.

Owns the reading of a damaged file: a record that ends with its file, or in nothing but zeros,
was being written when the machine stopped. Nobody was answered because of it, and it is left out.
Anything else is damage. records.py has the form of the bytes; journal.py decides when a segment is
begun.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import xxhash

from shoal.base.disk.wholefile import reading, replacing, sync
from shoal.errors import UserError
from shoal.master.journal.events import Entry
from shoal.master.journal.records import (
    EVENT,
    FOLLOWED,
    FORMAT,
    HEAD_BYTES,
    HEADER,
    MAGIC,
    UNREADABLE,
    Header,
    Position,
    Record,
    body_parts,
    chained,
    entry_of,
    record_at,
)

SUFFIX = ".journal"
PACKED = ".gz"
_PACK_LEVEL = 1


# ---------------------------------------------------------------- files


def segment_path(folder: Path, index: int) -> Path:
    """The path of a segment; its packed file will be beside it."""
    return folder / f"{index:06d}{SUFFIX}"


def packed_path(plain: Path) -> Path:
    """The path of a segment once it is compressed. plain: the path from `segment_path`."""
    return plain.with_name(plain.name + PACKED)


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
    _write_packed(packed_path(path), path.read_bytes())
    path.unlink()


def drop_state(path: Path) -> None:
    """Take the job's state out of a segment that was compressed.

    Raises OSError, and UserError if it is damaged.
    """
    packed = packed_path(path)
    _write_packed(packed, Segment(packed).without_state())


def _write_packed(packed: Path, content: bytes) -> None:
    with replacing(packed) as temporary, gzip.open(temporary, "wb", _PACK_LEVEL) as file:
        file.write(content)
    sync(packed.parent)


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
            if record.kind == FOLLOWED:
                self.followed = True
            elif self.followed:
                raise self._damaged(self.end, record.number, "it comes after the segment's end")
            else:
                self.last = self._position(record)
            self.end += HEAD_BYTES + len(payload)
        if self.torn and (self.followed or path.suffix == PACKED):
            raise self._damaged(self.end, self.last.number + 1, "it is not whole")

    def _position(self, record: Record) -> Position:
        return Position(self.header.before.journal, record.number, record.checksum)

    def _damaged(self, offset: int, number: int, why: str) -> UserError:
        return UserError(
            f"{self.path} is damaged at byte {offset:,}, in event {number:,}: {why}. The job "
            "cannot go on from this journal; put back an undamaged copy of the file, or begin "
            "anew with --overwrite"
        )

    def without_state(self) -> bytes:
        """The segment as it would be in its file without the job's state."""
        return dataclasses.replace(self.header, state=b"").to_bytes() + self._bytes[self._begin :]

    def _read_header(self) -> tuple[Header, int]:
        data = self._bytes
        if not data.startswith(MAGIC):
            raise UserError(f"{self.path} is damaged, or not a segment of a journal of shoal")
        try:
            _, version, length, checksum = HEADER.unpack_from(data)
            if version != FORMAT:
                raise UserError(
                    f"{self.path} is of journal format {version}; this version of shoal reads "
                    f"format {FORMAT}"
                )
            begin = HEADER.size + length
            body = memoryview(data)[HEADER.size : begin]
            if len(body) != length or xxhash.xxh3_64_intdigest(body) != checksum:
                raise UserError(f"{self.path} is damaged: its header is not as it was written")
        except struct.error as error:
            raise UserError(f"{self.path} is damaged: its header cannot be read") from error
        # The body is as it was written: if it cannot be read, another version wrote it.
        writer = ""
        try:
            content, state = body_parts(body)
            writer = str(content.get("version", ""))
            header = Header.of(content, state)
        except (UserError, *UNREADABLE) as error:
            raise self._foreign(writer, error) from error
        return header, begin

    def _foreign(self, writer: str, error: Exception) -> UserError:
        """The error for a whole segment that is not as this version of shoal writes it."""
        which = f"shoal {writer}" if writer else "another version of shoal"
        why = str(error) if isinstance(error, UserError) else repr(error)
        return UserError(
            f"{self.path} was written by {which}, and this version cannot read it ({why}). Go "
            "on with the version that wrote it, or begin anew with --overwrite"
        )

    def _records(self) -> Iterator[tuple[Record, memoryview]]:
        """Each record's head and payload, checked, to the end or to what was being written."""
        data, at = memoryview(self._bytes), self._begin
        before = self.header.before
        while at < len(data):
            number = before.number + 1
            if len(data) - at < HEAD_BYTES or not any(data[at:]):
                self.torn = True
                return
            record = record_at(data, at)
            if record is None:
                if self._ends_in_zeros(at, HEAD_BYTES):
                    self.torn = True
                    return
                raise self._damaged(at, number, "its head is not as it was written")
            payload = data[at + HEAD_BYTES : at + HEAD_BYTES + record.length]
            if len(payload) < record.length:
                self.torn = True
                return
            if record.kind == FOLLOWED:
                if record.length or self._position(record) != before:
                    raise self._damaged(at, number, "the segment's end is another one's")
            elif record.kind != EVENT or record.number != number:
                raise self._damaged(at, number, f"event {record.number:,} stands in its place")
            elif chained(number, bytes(payload), before.checksum) != record.checksum:
                if self._ends_in_zeros(at, HEAD_BYTES + record.length):
                    self.torn = True
                    return
                raise self._damaged(at, number, "it is not as it was written")
            else:
                before = self._position(record)
            yield record, payload
            at += HEAD_BYTES + record.length

    def _ends_in_zeros(self, at: int, length: int) -> bool:
        """True if the end of a record and all bytes after it are zeros: they were never written."""
        return not any(self._bytes[at + length - 1 :])

    def entries(self, name: str = "") -> Iterator[tuple[Position, Entry]]:
        """The segment's events, in order, whose names begin so.

        Raises UserError if one cannot be read.
        """
        begin = f'{{"event":{{"$value":"{name}'.encode()
        for record, payload in self._records():
            if record.kind == EVENT and (not name or payload[: len(begin)] == begin):
                try:
                    entry = entry_of(bytes(payload))
                except UNREADABLE as error:
                    raise self._foreign(self.header.version, error) from error
                yield self._position(record), entry


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
