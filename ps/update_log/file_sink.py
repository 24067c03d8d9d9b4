"""A log that is kept in files (--durability).

Owns the files' form and the thread that writes them. A log is a few segments; a new one
begins at each cut of a checkpoint, so that the ones before go when the checkpoint is
complete. The form of a segment is logrecords.py's.

What is written survives the process, since the system's page cache has it; with fsync it
survives the machine.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from shoal.base.disk.wholefile import sync
from shoal.proto import shoal_pb2 as pb
from shoal.ps.update_log.records import (
    BASE,
    ENTRY,
    Damage,
    Record,
    read_records,
    record,
    records_at,
)
from shoal.ps.update_log.sinks import (
    Entries,
    Gap,
    LogDamagedError,
    LogLostError,
    LogTakenError,
    Standing,
    TakenLog,
)

logger = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=Message)


RECORD_BYTES = 100
"""Of an entry's record beside its push, about."""


@dataclass
class _Write:
    """A task of the writing thread: a record to write, in a new segment if one is named.

    number: of the last entry before it, where a segment begins; None: as the thread knows it.
    """

    magic: bytes
    message: Message
    frame: bytes | memoryview
    done: Future[None]
    segment: Path | None = None
    number: int | None = None


class FileSink:
    """The log of server `server` in `folder`. sync: have each push on disk, not only written."""

    def __init__(self, folder: Path, server: int, incarnation: int, *, sync: bool) -> None:
        self.retry_seconds = 0.0
        self.entry_bytes = RECORD_BYTES
        self.keeps_moves = True
        self._folder = folder
        self._server = server
        self._incarnation = incarnation
        self._sync = sync
        self._log = ""
        self._segment: Path | None = None
        self._file: int | None = None
        self._failed: Exception | None = None
        # Of the last entry: written by the thread, and read from a log that was taken.
        self._number = 0
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def clear(self) -> None:
        """See Sink."""
        self._remove(self._segments())

    def reach(self) -> None:
        """See Sink."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogLostError(str(error)) from error

    def begin(self, base: pb.LogBase) -> None:
        """See Sink."""
        self.reach()
        before = self._segments()
        self._log = base.log
        self._begin_segment(base, number=0)
        self._remove(before)

    def append(self, entry: pb.LogEntry, frame: bytes | memoryview) -> Callable[[], None]:
        """See Sink."""
        return self._queued(_Write(ENTRY, entry, frame, Future()))

    def mark(self, standing: Standing) -> Path:
        """See Sink."""
        return self._begin_segment(self._base(standing))

    def drop(self, log: str, step: int, standing: Standing, mark: Path) -> None:
        """See Sink."""
        del log, step, standing  # the segment begins with them; those of a later log come after it
        self._remove([each for each in self._segments() if each < mark])

    def check(self) -> None:
        """See Sink."""
        if self._segment is not None and not self._segment.exists():
            raise LogLostError(f"{self._segment} is gone")

    def take(self) -> TakenLog | None:
        """See Sink."""
        try:
            segments = self._segments()
            firsts = [next(read_records(each), None) for each in segments]
        except OSError as error:
            raise LogLostError(str(error)) from error
        bases = [_base_in(first, at) for first, at in zip(firsts, segments, strict=True)]
        names = [base.log for base in bases if base is not None]
        # What is left of an earlier log is before it. Of a segment that cannot be read it is
        # not known whose it is: after the beginning, of this one.
        start = next((i for i, each in enumerate(bases) if each and each.log == names[-1]), None)
        damaged = [str(first) for first in firsts[:start] if isinstance(first, Damage)]
        if start is None:
            if damaged:
                raise LogDamagedError(f"{damaged[0]}; no update of it can be done again")
            return None
        base = bases[start]
        assert base is not None
        base.incarnation = self._incarnation
        return TakenLog(base, self._entries(segments[start:]), "; ".join(damaged))

    def adopt(self, base: pb.LogBase, step: int, standing: Standing) -> None:
        """See Sink."""
        del step, standing  # each segment says what it stands on
        self._log = base.log
        now = Standing(base.applied, base.update, base.epoch)
        self._begin_segment(self._base(now), number=self._number)

    def close(self) -> None:
        """See Sink."""
        with self._closing:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    # ------------------------------------------------------------ segments

    def _base(self, standing: Standing) -> pb.LogBase:
        return pb.LogBase(
            log=self._log,
            server=self._server,
            incarnation=self._incarnation,
            applied=standing.applied,
            update=standing.update,
            epoch=standing.epoch,
        )

    def _segments(self) -> list[Path]:
        """In the order in which they began."""
        return sorted(self._folder.glob(f"ps-{self._server:04d}.*.log"))

    def _begin_segment(self, base: pb.LogBase, number: int | None = None) -> Path:
        last = self._segments()[-1:]
        place = int(last[0].name.split(".")[1]) + 1 if last else 1
        segment = self._folder / f"ps-{self._server:04d}.{place:08d}.log"
        self._queued(_Write(BASE, base, b"", Future(), segment, number))()
        self._segment = segment
        return segment

    @staticmethod
    def _remove(segments: Iterable[Path]) -> None:
        for segment in segments:
            try:
                segment.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("an old log stays: %s", error)

    # ------------------------------------------------------------ reading

    def _entries(self, segments: list[Path]) -> Entries:
        """Bases, entries and gaps of segments, a segment's entries in the order of their steps."""
        last: int | None = None
        damage: Damage | None = None
        for segment in segments:
            # Steps are not written in their order: their places are put into it, and read again.
            entries: list[tuple[int, int]] = []
            try:
                for each in read_records(segment):
                    if isinstance(each, Damage):
                        damage = damage or each
                        continue
                    is_entry = each.magic == ENTRY
                    missing = 0 if last is None else each.number - last - is_entry
                    if last is not None and missing < 0:
                        # A file in the place of another, whose entries may have been later.
                        yield from _in_order(segment, entries)
                        early = f"{segment} is another one's: it begins before number {last}"
                        yield Gap(early, 0), b""
                        self._number = last
                        return
                    last = each.number
                    if missing:
                        yield from _in_order(segment, entries)
                        where = damage or f"{segment} lacks entries before number {last}"
                        yield Gap(str(where), missing), b""
                    elif damage is not None:
                        logger.warning("%s, which costs no update", damage)
                    damage = None
                    if is_entry:
                        entries.append((_message(each, pb.LogEntry, segment).step, each.offset))
                    else:
                        yield from _in_order(segment, entries)
                        yield _message(each, pb.LogBase, segment), b""
                yield from _in_order(segment, entries)
            except OSError as error:
                raise LogLostError(str(error)) from error
        if damage is not None:
            yield Gap(str(damage), 0), b""
        self._number = last or 0

    # ------------------------------------------------------------ writing

    def _queued(self, write: _Write) -> Callable[[], None]:
        with self._closing:
            if self._closed:
                # Nobody would write it, and who waited for it would do so for ever.
                raise LogTakenError("this server ends")
            self._queue.put(write)

        def wait() -> None:
            try:
                write.done.result()
            except Exception as error:
                raise LogLostError(str(error) or repr(error)) from error

        return wait

    def _write(self) -> None:
        """Write what comes; what waits by then shares one sync of the disk."""
        ended = False
        while not ended:
            batch = [self._queue.get()]
            try:
                while not self._queue.empty():
                    batch.append(self._queue.get())
                written = [each for each in batch if each is not None and self._written(each)]
                if self._sync and written and self._file is not None:
                    os.fdatasync(self._file)
                for each in written:
                    each.done.set_result(None)
            except Exception as error:  # also no memory: those who wait must hear of any
                self._failed = error
                for left in filter(None, batch):
                    if not left.done.done():
                        left.done.set_exception(error)
            ended = None in batch
        if self._file is not None:
            os.close(self._file)

    def _written(self, write: _Write) -> bool:
        try:
            if write.segment is not None:
                self._open(write.segment)
            if self._failed is not None or self._file is None:
                # After a record that is not whole nothing could be read.
                raise self._failed or OSError("no log was begun")
            if write.number is not None:
                self._number = write.number
            elif write.magic == ENTRY:
                self._number += 1
            _write_all(self._file, record(write.magic, self._number, write.message, write.frame))
        except Exception as error:  # those who wait must hear of any
            self._failed = error
            write.done.set_exception(error)
            return False
        return True

    def _open(self, segment: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        file = os.open(segment, flags, 0o644)
        if self._file is not None:
            if self._sync:
                os.fdatasync(self._file)
            os.close(self._file)
        self._file, self._failed = file, None
        if self._sync:
            sync(self._folder)


def _write_all(file: int, records: list[bytes | memoryview]) -> None:
    left = [memoryview(each) for each in records if len(each)]
    while left:
        written = os.writev(file, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _base_in(first: Record | Damage | None, segment: Path) -> pb.LogBase | None:
    """The base that a segment begins with."""
    if not isinstance(first, Record) or first.magic != BASE:
        return None
    return _message(first, pb.LogBase, segment)


def _message(record: Record, kind: type[Kind], segment: Path) -> Kind:
    """The message of a record. Raises LogDamagedError if it is none, though as it was written."""
    try:
        return kind.FromString(record.label)
    except DecodeError as error:
        raise LogDamagedError(f"{segment}: record {record.number}: {error}") from error


def _in_order(segment: Path, entries: list[tuple[int, int]]) -> Iterator[tuple[pb.LogEntry, bytes]]:
    """The entries by their steps; the list, of step and place of each, is empty then."""
    for each in records_at(segment, (offset for _, offset in sorted(entries))):
        yield _message(each, pb.LogEntry, segment), each.frame
    entries.clear()
