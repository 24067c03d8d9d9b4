"""The activity of each thread of a worker, its beginning, and the usual time of such work.

Owns finding that a thread is stuck, and its stack in words. heartbeat.py and the master act on
it.
"""

from __future__ import annotations

import linecache
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from shoal.base.modules.stacks import thread_frames
from shoal.base.modules.tracebacks import is_library
from shoal.proto import shoal_pb2 as pb

FIRST_FACTOR = 3.0
"""By which the limit is longer for the first of its kind: TensorFlow compiles for minutes."""

STORAGE_SHARE = 0.5
"""Of the limit that a read has lasted: then what waits for it is not at fault."""

SHOWN_THREADS = 4
SHOWN_CODE = 60


@dataclass
class Doing:
    """The activity of one thread.

    what: in words. records: those that it works on, if known. storage: it waits for storage, not
    for the user's code. since: seconds of the monotonic clock.
    """

    what: str
    records: pb.Range | None
    storage: bool
    since: float

    def __str__(self) -> str:
        if self.records is None or not self.records.source:
            return self.what
        first, last = self.records.start, self.records.end - 1
        return f"{self.what} of records {first} to {last} of {self.records.source}"


class Watch:
    """Shared by the threads of a worker. longest: seconds that one thing has taken so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[object, Doing] = {}
        self._finished: set[str] = set()
        self.longest = 0.0

    @contextmanager
    def doing(
        self, what: str, records: pb.Range | None = None, *, storage: bool = False
    ) -> Iterator[None]:
        """The calling thread is at `what`, until the body ends."""
        key = object()
        entry = Doing(what, records, storage, time.monotonic())
        with self._lock:
            self._entries[key] = entry
        try:
            yield
        finally:
            with self._lock:
                del self._entries[key]
                self.longest = max(self.longest, time.monotonic() - entry.since)
                self._finished.add(what)

    def excuse(self) -> None:
        """Restart the clock of all activities: the time before was not theirs."""
        now = time.monotonic()
        with self._lock:
            for entry in self._entries.values():
                entry.since = now

    def oldest(self) -> tuple[float, Doing] | None:
        """The activity that has lasted longest, and for how many seconds; None if there is none."""
        now = time.monotonic()
        with self._lock:
            entry = min(self._entries.values(), key=lambda each: each.since, default=None)
            return None if entry is None else (now - entry.since, entry)

    def stuck(self, limit: float) -> tuple[float, Doing] | None:
        """The oldest activity if one exceeds `limit` seconds, and its age; reads come first."""
        now = time.monotonic()
        with self._lock:
            ages = [
                (each, (now - each.since) / (1.0 if each.what in self._finished else FIRST_FACTOR))
                for each in self._entries.values()
            ]
            late = [each for each, age in ages if age > limit]
            if not late:
                return None
            reads = [each for each, age in ages if each.storage and age > STORAGE_SHARE * limit]
            entry = min(reads or late, key=lambda each: each.since)
            return now - entry.since, entry


def stacks() -> tuple[str, str]:
    """The stacks of all threads but the caller's: the whole text, and the user's calls in short.

    Threads in the user's code first.
    """
    found = []
    for name, frame in thread_frames():
        own = _own_call(frame)
        text = "".join(traceback.format_stack(frame))
        found.append((own, f"thread {name}:\n{text}"))
    found.sort(key=lambda each: not each[0])
    short = dict.fromkeys(own for own, _ in found if own)
    return "\n".join(text for _, text in found), "; ".join(list(short)[:SHOWN_THREADS])


def _own_call(frame: FrameType | None) -> str:
    """The innermost call in a stack that is the user's, in words; "" if none is."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file) and Path(file).is_file():
            code = linecache.getline(file, frame.f_lineno).strip()[:SHOWN_CODE]
            return f"{Path(file).name}, line {frame.f_lineno}, in {frame.f_code.co_name}: {code}"
        frame = frame.f_back
    return ""
