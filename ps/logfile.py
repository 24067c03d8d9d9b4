"""A log that is kept in files (--log-place).

Owns the files' form and the thread that writes them. A log is a few segments; a new one
begins at each cut of a checkpoint, so that the ones before go when the checkpoint is
complete. A segment is a sequence of records:

    magic, 4 bytes: b"SHLB" before a LogBase, b"SHLE" before a LogEntry and a push
    length of the message, uint32; length of the push, uint64; little-endian
    checksum of both, xxh3 of 64 bits
    the message, then the push

What is written survives the process, since the system's page cache has it; with fsync it
survives the machine. The end of a record that was being written when the process died is
recognised, by length and checksum, and nobody was told that it is there.
"""

from __future__ import annotations

import logging
import os
import queue
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import xxhash
from google.protobuf.message import Message

from shoal.proto import shoal_pb2 as pb
from shoal.ps.logs import LogLostError, TakenLog

logger = logging.getLogger(__name__)

_HEAD = struct.Struct("<4sIQQ")
_BASE, _ENTRY = b"SHLB", b"SHLE"


@dataclass
class _Write:
    """What the writing thread is to do: records to write, or a new segment to begin."""

    records: list[bytes]
    done: Future[None]
    segment: Path | None = None


def _record(magic: bytes, message: Message, frame: bytes = b"") -> list[bytes]:
    label = message.SerializeToString()
    digest = xxhash.xxh3_64(label)
    digest.update(frame)
    return [_HEAD.pack(magic, len(label), len(frame), digest.intdigest()), label, frame]


def read_records(path: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(magic, message, push) of each record of a segment, up to one that is not whole."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while True:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                break
            magic, label_length, frame_length, checksum = _HEAD.unpack(head)
            if magic not in (_BASE, _ENTRY) or label_length + frame_length > size - file.tell():
                break
            label, frame = file.read(label_length), file.read(frame_length)
            digest = xxhash.xxh3_64(label)
            digest.update(frame)
            if digest.intdigest() != checksum:
                break
            yield magic, label, frame
            if file.tell() == size:
                return
        if size:
            logger.warning("%s ends with a record that is not whole; it is left out", path)


class FileSink:
    """The log of server `server` in `folder`. sync: have each push on disk, not only written."""

    def __init__(self, folder: Path, server: int, incarnation: int, *, sync: bool) -> None:
        self.retry_seconds = 0.0
        self._folder = folder
        self._server = server
        self._incarnation = incarnation
        self._sync = sync
        self._log = ""
        self._segment: Path | None = None
        self._file: int | None = None
        self._failed: OSError | None = None
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
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
        self._begin_segment(base)
        self._remove(before)

    def append(self, entry: pb.LogEntry, frame: bytes) -> Callable[[], None]:
        """See Sink."""
        return self._queued(_Write(_record(_ENTRY, entry, frame), Future()))

    def mark(self, applied: Iterable[pb.PushIdentity]) -> Path:
        """See Sink."""
        return self._begin_segment(self._base(applied))

    def drop(self, log: str, step: int, applied: Iterable[pb.PushIdentity], mark: Path) -> None:
        """See Sink."""
        del log, step, applied  # the segment begins with them; those of a later log come after it
        self._remove([each for each in self._segments() if each < mark])

    def check(self) -> None:
        """See Sink."""
        if self._segment is not None and not self._segment.exists():
            raise LogLostError(f"{self._segment} is gone")

    def take(self) -> TakenLog | None:
        """See Sink."""
        try:
            segments = [each for each in self._segments() if self._base_of(each) is not None]
            if not segments:
                return None
            newest = self._base_of(segments[-1])
            assert newest is not None
            of_log = [(s, base) for s in segments if (base := self._base_of(s)) is not None]
            chain = [(s, base) for s, base in of_log if base.log == newest.log]
        except OSError as error:
            raise LogLostError(str(error)) from error
        base = chain[0][1]
        base.incarnation = self._incarnation
        return TakenLog(base, _entries([segment for segment, _ in chain]))

    def adopt(self, base: pb.LogBase) -> None:
        """See Sink."""
        self._log = base.log
        self._begin_segment(self._base(base.applied))

    def close(self) -> None:
        """See Sink."""
        self._queue.put(None)
        self._thread.join()

    # ------------------------------------------------------------ segments

    def _base(self, applied: Iterable[pb.PushIdentity]) -> pb.LogBase:
        return pb.LogBase(
            log=self._log, server=self._server, incarnation=self._incarnation, applied=applied
        )

    def _segments(self) -> list[Path]:
        """In the order in which they began."""
        return sorted(self._folder.glob(f"ps-{self._server:04d}.*.log"))

    @staticmethod
    def _base_of(segment: Path) -> pb.LogBase | None:
        for magic, label, _ in read_records(segment):
            return pb.LogBase.FromString(label) if magic == _BASE else None
        return None

    def _begin_segment(self, base: pb.LogBase) -> Path:
        last = self._segments()[-1:]
        number = int(last[0].name.split(".")[1]) + 1 if last else 1
        segment = self._folder / f"ps-{self._server:04d}.{number:08d}.log"
        self._queued(_Write(_record(_BASE, base), Future(), segment))()
        self._segment = segment
        return segment

    @staticmethod
    def _remove(segments: Iterable[Path]) -> None:
        for segment in segments:
            try:
                segment.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("an old log stays: %s", error)

    # ------------------------------------------------------------ writing

    def _queued(self, write: _Write) -> Callable[[], None]:
        self._queue.put(write)

        def wait() -> None:
            try:
                write.done.result()
            except OSError as error:
                raise LogLostError(str(error)) from error

        return wait

    def _write(self) -> None:
        """Write what comes; what waits by then shares one sync of the disk."""
        ended = False
        while not ended:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            ended = None in batch
            writes = [each for each in batch if each is not None]
            written = [each for each in writes if self._written(each)]
            try:
                if self._sync and written and self._file is not None:
                    os.fdatasync(self._file)
            except OSError as error:
                self._failed = error
                for each in written:
                    each.done.set_exception(error)
            else:
                for each in written:
                    each.done.set_result(None)
        if self._file is not None:
            os.close(self._file)

    def _written(self, write: _Write) -> bool:
        try:
            if write.segment is not None:
                self._open(write.segment)
            if self._failed is not None or self._file is None:
                # After a record that is not whole nothing could be read.
                raise self._failed or OSError("no log was begun")
            _write_all(self._file, write.records)
        except OSError as error:
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
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _write_all(file: int, records: list[bytes]) -> None:
    left = [memoryview(each) for each in records if each]
    while left:
        written = os.writev(file, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _entries(segments: list[Path]) -> Iterator[tuple[pb.LogEntry | pb.LogBase, bytes]]:
    """The bases and entries of segments, each segment's in the order of their steps."""
    for segment in segments:
        # In memory as steps are not written in their order: at most a log's bytes.
        entries = []
        try:
            for magic, label, frame in read_records(segment):
                if magic == _BASE:
                    yield pb.LogBase.FromString(label), b""
                else:
                    entries.append((pb.LogEntry.FromString(label), frame))
        except OSError as error:
            raise LogLostError(str(error)) from error
        yield from sorted(entries, key=lambda each: each[0].step)
