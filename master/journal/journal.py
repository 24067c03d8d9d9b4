"""The job's journal: events are on disk before anybody gets an answer because of them.

The journal is a folder of segments (segments.py). The newest ones begin with the state of the job,
so a new master reads only the last. Older segments are compressed and kept for the audit and for
resumptions, which read their events. This module owns the moments at which events are written and
synced and segments begin, and restores the job. It needs nothing of a file system but names,
appending and fsync.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shoal.base.disk.wholefile import remove_partial, replacing, sync
from shoal.config.job import RESUMABLE, RESUMABLE_IMAGES, JobConfig
from shoal.errors import FULL, Error, UserError
from shoal.master.job.events import CheckpointBegun, Resumed
from shoal.master.journal import records, segments, state
from shoal.master.journal.events import Entry, RecordedJob
from shoal.master.journal.records import Header, Position
from shoal.master.journal.segments import Segment
from shoal.proto import faults

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Between attempts to write while the disk is full."""

SEGMENT_EVENTS = 10_000
"""A new segment begins after so many: a new master does them again in about a second."""

SEGMENT_BYTES = 16_000_000
"""Or after so many bytes."""

STATES = 5
"""So many of the newest segments keep the state of the job. A new master begins with that of the
last one; another version of shoal, brought back after an upgrade, with the last that it wrote."""

_BEGINS = (CheckpointBegun, Resumed)
"""Events after which a segment begins: a new master does again only what came after them. Not where
a master starts: if it then finds that the newest segment has lost its end, that alone is to be
replaced."""


class JournalError(Error, OSError):
    """The journal cannot be written any more; the text names it and says why."""


class StalledError(Error):
    """The journal cannot be written now; the text says why."""


@dataclass(frozen=True)
class _Cut:
    """A segment is to begin, with this state of the job, which follows on `entry`."""

    entry: Entry
    state: bytes


@dataclass(frozen=True)
class _Records:
    """Events as they will stand in the file, and the position after them."""

    content: bytes
    events: int
    last: Position


class Journal:
    """The events of one job, in order; shared by threads.

    `add` takes an event, and `commit` returns once all events taken so far are on disk. A thread
    that commits also writes the events that others have added meanwhile, so one sync serves many
    answers.

    begun: whether it had any event when it was opened. last: the wall clock and the job's
    seconds at its last event then.
    """

    def __init__(self, path: Path, config: JobConfig, *, begun: bool = False) -> None:
        """Open the folder, or create it for the job that `config` describes.

        begun: there is one, as the job has begun before.

        Raises UserError, which names the file, if it is damaged, missing, another program's,
        another version's, or another job's.
        """
        self.path = path
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._pending: list[bytes | _Cut] = []
        self._units: deque[_Records | _Cut] = deque()
        self._added = self._written = 0
        self._since = 0
        self._broken: JournalError | None = None
        self._waits: tuple[float, str] | None = None
        self._writes: float | None = None  # since then
        self._job: RecordedJob | None = None
        self._packing = ThreadPoolExecutor(1, thread_name_prefix="pack-journal")
        try:
            newest = self._find(config, begun)
            self.config = newest.header.config
            self._index = self._cuts = newest.header.index
            self._file = os.open(newest.path, os.O_WRONLY)
            if newest.torn:
                logger.warning("%s: an event that was being written is left out", newest.path)
                os.ftruncate(self._file, newest.end)
                os.fsync(self._file)
        except OSError as error:
            raise UserError(f"{path} cannot be used as the job's journal: {error}") from error
        # What a resumed job may change stands in the event that says so.
        changes = {name: getattr(config, name) for name in (*RESUMABLE, *RESUMABLE_IMAGES)}
        if dataclasses.replace(self.config, **changes) != config:
            raise UserError(f"{path} is the journal of a job with another configuration")
        self._end = newest.end
        self.position = self._encoded = newest.last
        self.begun = newest.last.number > 0
        self.last = (newest.header.wall, newest.header.time)

    def _find(self, config: JobConfig, begun: bool) -> Segment:
        """The newest segment; the first one, if there is none yet."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            sync(self.path.parent)
        remove_partial(self.path)
        found = segments.segments(self.path)
        if not found and begun:
            name = segments.segment_path(self.path, 1).name
            raise UserError(f"the journal {self.path} is damaged: {name} is missing")
        if not found:
            before = records.beginning(config, secrets.randbits(64))
            first = Header(config, 1, before, 0.0, 0.0, state.version())
            return Segment(self._create(first))
        newest = Segment(found[-1])
        if newest.followed:
            name = segments.segment_path(self.path, newest.header.index + 1).name
            raise UserError(f"the journal {self.path} is damaged: {name} is missing")
        return newest

    def _create(self, header: Header) -> Path:
        path = segments.segment_path(self.path, header.index)
        with replacing(path) as temporary:
            temporary.write_bytes(header.to_bytes())
        sync(self.path)
        return path

    def restore(self) -> RecordedJob:
        """The job as the journal has it, whose events it takes from now on.

        Raises UserError if an event leads elsewhere than the first time.
        """
        paths = segments.segments(self.path)
        start = len(paths) - 1
        while start and not state.usable(header := Segment(paths[start]).header):
            logger.info("%s has no state of this version: %s", paths[start], header.version)
            start -= 1
        job = None
        for path in paths[start:]:
            segment = Segment(path)
            if job is None:
                job = state.job_of(segment.header)
            for _, entry in segment.entries():
                self.last = entry.wall, entry.time
                job.replay([entry])
        assert job is not None
        for path in paths[:-1]:  # only now: packing removes the file that it packs
            if path.suffix != segments.PACKED:
                self._pack(path)
        job.listen(self.add)
        self._job = job
        return job

    def close(self) -> None:
        """Write what is left, and close. Raises JournalError."""
        try:
            self.commit()
        finally:
            self._packing.shutdown()
            os.close(self._file)

    @property
    def trouble(self) -> tuple[float, str]:
        """For how many seconds nothing could be written, and why; (0.0, "") if writing works.

        A write that is under way counts, too; callers ignore short times.
        """
        waits, writes = self._waits, self._writes
        if waits is not None:
            return time.monotonic() - waits[0], waits[1]
        if writes is not None:
            slow = f"a write to the journal {self.path} has not ended: its disk does not answer"
            return time.monotonic() - writes, slow
        return 0.0, ""

    def add(self, entry: Entry) -> None:
        """Take an event, to be written after those before it. One at a time."""
        entry = dataclasses.replace(entry, wall=time.time())
        payload = records.payload_of(entry)  # now: the job goes on with the values in it
        self._since += 1
        cut = None
        # The file grows no more once its successor is to begin, which may wait for the disk.
        large = self._cuts == self._index and self._end >= SEGMENT_BYTES
        full = large or self._since >= SEGMENT_EVENTS
        if self._job is not None and (isinstance(entry.event, _BEGINS) or full):
            cut = _Cut(entry, state.dump(self._job))
            self._since = 0
            self._cuts += 1
        with self._adding:
            self._pending.append(payload)
            if cut is not None:
                self._pending.append(cut)
            self._added += 1

    def commit(self, patience: float | None = None) -> None:
        """Return once everything added so far is on disk.

        While it cannot be written (a full disk) it waits: nobody is answered until there
        is room, so nothing that was told is lost.

        patience: seconds to wait; None: without end. Raises StalledError when they are over,
        JournalError if it cannot be written any more.
        """
        with self._adding:
            wanted = self._added
        give_up = time.monotonic() + (patience if patience is not None else float("inf"))
        while self._written < wanted:
            left = give_up - time.monotonic()
            if not self._writing.acquire(timeout=max(0.0, left) if patience is not None else -1):
                raise StalledError(self.trouble[1] or "the journal is being written")
            try:
                self._writes = time.monotonic()
                done = self._written >= wanted or self._write_all()
            finally:
                self._writes = None
                self._writing.release()
            if not done:
                if time.monotonic() + RETRY_SECONDS > give_up:
                    raise StalledError(self.trouble[1])
                time.sleep(RETRY_SECONDS)
        if self._broken is not None:
            raise self._broken

    def _write_all(self) -> bool:
        """Write and sync all that was taken; whether there was room."""
        if self._broken is not None:
            raise self._broken
        with self._adding:
            batch, self._pending = self._pending, []
        self._units.extend(self._encode(batch))
        faults.point("before-journal")
        while self._units:
            try:
                self._write(self._units[0])
            except OSError as error:
                # After any other error nobody knows what is on the disk.
                if error.errno in FULL:
                    self._wait(error)
                    return False
                self._broken = JournalError(
                    f"the journal {self.path} cannot be written any more ({error}): the job ends. "
                    "When that is mended, go on with --resume",
                )
                raise self._broken from error
            self._units.popleft()
        self._waits = None
        faults.point("after-journal")
        return True

    def _encode(self, batch: list[bytes | _Cut]) -> Iterator[_Records | _Cut]:
        content, events = [], 0
        for each in batch:
            if isinstance(each, bytes):
                record, self._encoded = records.record_of(each, self._encoded)
                content.append(record)
                events += 1
                continue
            yield _Records(b"".join(content), events, self._encoded)
            yield each
            content, events = [], 0
        if events:
            yield _Records(b"".join(content), events, self._encoded)

    def _write(self, unit: _Records | _Cut) -> None:
        if isinstance(unit, _Records):
            self._append(unit.content)
            self.position = unit.last
            self._written += unit.events
            return
        header = Header(
            self.config,
            self._index + 1,
            self.position,
            unit.entry.wall,
            unit.entry.time,
            state.version(),
            unit.state,
        )
        path = self._create(header)
        file = os.open(path, os.O_WRONLY)
        # Only now: whoever finds this record knows that there is a successor.
        try:
            self._append(records.followed_record(self.position))
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._pack(segments.segment_path(self.path, self._index))
        if (old := header.index - STATES) > 1:  # the first one never has a state
            self._pack(segments.segment_path(self.path, old), segments.drop_state)
        self._file, self._end, self._index = file, os.stat(file).st_size, header.index

    def _append(self, content: bytes) -> None:
        at, left = self._end, memoryview(content)
        while left:
            written = os.pwrite(self._file, left, at)
            at, left = at + written, left[written:]
        os.fsync(self._file)
        self._end = at

    def _wait(self, error: OSError) -> None:
        if self._waits is None:
            self._waits = time.monotonic(), f"the journal {self.path} cannot be written: {error}"
        logger.error(
            "the journal %s cannot be written (%s): the job waits for it", self.path, error
        )

    def _pack(self, path: Path, by: Callable[[Path], None] = segments.pack) -> None:
        def pack() -> None:
            try:
                by(path)
            except (OSError, UserError) as error:
                logger.warning("%s stays as it is: %s", path, error)

        self._packing.submit(pack)

    def checksum_at(self, number: int) -> int | None:
        """The checksum of an event that is on disk; None if there is none of this number.

        Raises UserError if a segment that has to be read is damaged.
        """
        if number == 0:
            return records.beginning(self.config, self.position.journal).checksum
        for path in reversed(segments.segments(self.path)):
            segment = Segment(path)
            if number > segment.last.number:
                return None
            if number > segment.header.before.number:
                positions = (position for position, _ in segment.entries())
                return next(each.checksum for each in positions if each.number == number)
        return None
