"""The records of a log in files: their form, and reading them where some are damaged.

A segment, one file, is a sequence of records:

    magic, 4 bytes: b"SHLB" before a LogBase, b"SHLE" before a LogEntry and a push
    length of the message, uint32; length of the push, uint64; little-endian
    number, uint64: of an entry, from 1, running through the whole log; of a base, that of the
        last entry before it
    checksum of message and push, xxh3 of 64 bits
    checksum of all of the above, xxh32
    the message, then the push

The end of a record that was being written when the process died is short, and nobody was told
that it is there. Anything else that is not as written is damage: its place is told, and the
numbers tell how many entries are missing.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash
from google.protobuf.message import Message

from shoal.base.disk.wholefile import reading

BASE, ENTRY = b"SHLB", b"SHLE"

_CHECKED = struct.Struct("<4sIQQQ")
HEAD_BYTES = _CHECKED.size + 4
_SCANNED_BYTES = 4 << 20
_MAGIC = re.compile(BASE + b"|" + ENTRY)


@dataclass(frozen=True)
class Record:
    """A record that is as it was written, from byte `offset` of its file on."""

    magic: bytes
    number: int
    label: bytes
    frame: bytes
    offset: int


@dataclass(frozen=True)
class Damage:
    """Bytes of a file, from `offset` on, that are not as written."""

    path: Path
    offset: int

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}"


def record(
    magic: bytes, number: int, message: Message, frame: bytes | memoryview = b""
) -> list[bytes | memoryview]:
    """The bytes of a record, in parts; the push's are not copied."""
    label = message.SerializeToString()
    digest = xxhash.xxh3_64(label)
    digest.update(frame)
    head = _CHECKED.pack(magic, len(label), len(frame), number, digest.intdigest())
    return [head + xxhash.xxh32_digest(head)[::-1] + label, frame]


def read_records(path: Path) -> Iterator[Record | Damage]:
    """The records of a segment. After damage it goes on with the next record that is whole."""
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at < size:
            found, end = _record_at(file, at, size)
            if found is None:
                if _is_torn(file, at, size):
                    return
                yield Damage(path, at)
                end = _next_record(file, at + 1, size)
            else:
                yield found
            at = end


def records_at(path: Path, offsets: Iterable[int]) -> Iterator[Record]:
    """The records at these places, which were found there before.

    Raises OSError if one is there no longer.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        for at in offsets:
            found, _ = _record_at(file, at, size)
            if found is None:
                raise OSError(f"{path}: another process changes it at byte {at}")
            yield found


def _head_at(file: BinaryIO, at: int) -> tuple[bytes, int, int, int, int] | None:
    """The fields of a head that is as written."""
    file.seek(at)
    head = file.read(HEAD_BYTES)
    checked, checksum = head[: _CHECKED.size], head[_CHECKED.size :]
    if len(head) < HEAD_BYTES or xxhash.xxh32_digest(checked)[::-1] != checksum:
        return None
    magic, label, frame, number, digest = _CHECKED.unpack(checked)
    return (magic, label, frame, number, digest) if magic in (BASE, ENTRY) else None


def _record_at(file: BinaryIO, at: int, size: int) -> tuple[Record | None, int]:
    """The record at a place, None if it is not whole; and where it ends."""
    head = _head_at(file, at)
    if head is None:
        return None, at
    magic, label_length, frame_length, number, checksum = head
    end = at + HEAD_BYTES + label_length + frame_length
    if end > size:
        return None, at
    label, frame = file.read(label_length), file.read(frame_length)
    digest = xxhash.xxh3_64(label)
    digest.update(frame)
    if digest.intdigest() != checksum:
        return None, at
    return Record(magic, number, label, frame, at), end


def _is_torn(file: BinaryIO, at: int, size: int) -> bool:
    """True if the bytes from `at` on are left of a write that did not come to its end."""
    if size - at < HEAD_BYTES:
        return True
    if (head := _head_at(file, at)) is not None:
        return at + HEAD_BYTES + head[1] + head[2] > size
    # What a machine that stopped had not written any more reads as zeros.
    file.seek(at)
    while piece := file.read(_SCANNED_BYTES):
        if piece.strip(b"\0"):
            return False
    return True


def _next_record(file: BinaryIO, at: int, size: int) -> int:
    """The offset of the next whole record; the end of the file if there is none."""
    while at < size:
        file.seek(at)
        piece = file.read(_SCANNED_BYTES)
        for each in _MAGIC.finditer(piece):
            if _record_at(file, at + each.start(), size)[0] is not None:
                return at + each.start()
        if len(piece) < _SCANNED_BYTES:
            break
        at += len(piece) - len(BASE) + 1  # one may be cut by the end of the piece
    return size
