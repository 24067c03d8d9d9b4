"""Entries of a log on their way to its keeper: those that wait together go together.

Owns which entries make a group, where each of them is in the log, and what an answer says of them.
Sending a group is peer_sink.py's, keeping it peer_store.py's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.update_log.sinks import LogLostError

GROUP_BYTES = 2 << 20
"""A group has no more bytes of pushes, unless it is one push: that travels as it came, while
those of a group are copied into one message."""

GROUP_ENTRIES = 32
"""As many pushes as a server handles at once. Their labels are metadata of the call, of which gRPC
takes 8 KiB."""


@dataclass(frozen=True)
class _Waiting:
    entry: pb.LogEntry
    frame: bytes
    since: float
    kept: Future[None]


@dataclass(frozen=True)
class Group:
    """Entries that go in one call. label: of the call."""

    label: pb.LogGroup
    waiting: list[_Waiting]

    @property
    def last(self) -> int:
        """The place of its last entry."""
        return self.label.first + len(self.waiting) - 1

    @property
    def since(self) -> float:
        """When its oldest entry was handed on."""
        return self.waiting[0].since

    def body(self) -> bytes:
        """The call's bytes."""
        if len(self.waiting) == 1:
            return self.waiting[0].frame
        return b"".join(each.frame for each in self.waiting)


class Groups:
    """The entries of one log of one writer, in the order in which they are handed on.

    One group is under way at a time; what comes meanwhile makes the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._under_way: Group | None = None
        self._position = 0
        self._error: Exception | None = None

    def add(
        self, entry: pb.LogEntry, frame: bytes, now: float
    ) -> tuple[Future[None], Group | None]:
        """Hand an entry on. Returns what is done once it is kept, and a group to be sent now.

        now: seconds of a clock that only goes on. Raises what `lose` was given.
        """
        waiting = _Waiting(entry, frame, now, Future())
        with self._lock:
            if self._error is not None:
                raise self._error
            self._waiting.append(waiting)
            return waiting.kept, self._next()

    def answered(self, group: Group, position: int) -> Group | None:
        """The keeper has a group, and the log up to `position`. Returns a group to be sent now.

        Raises LogLostError if that is another place than the group's end.
        """
        if position != group.last:
            raise LogLostError(f"its keeper has {position} of the {group.last} updates handed on")
        with self._lock:
            if self._under_way is not group:
                return None  # the log was lost meanwhile
            self._under_way = None
            self._position = position
            following = self._next()
        for each in group.waiting:
            each.kept.set_result(None)
        return following

    def lose(self, error: Exception) -> None:
        """The log is lost as a whole: nobody waits for it any more."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            left = [*(self._under_way.waiting if self._under_way else ()), *self._waiting]
            self._under_way = None
            self._waiting.clear()
        for each in left:
            each.kept.set_exception(error)

    def _next(self) -> Group | None:
        """Under the lock."""
        if self._under_way is not None or not self._waiting:
            return None
        label = pb.LogGroup(first=self._position + 1)
        group = Group(label, [])
        size = 0
        while self._waiting and len(group.waiting) < GROUP_ENTRIES:
            size += len(self._waiting[0].frame)
            if group.waiting and size > GROUP_BYTES:
                break
            each = self._waiting.popleft()
            group.waiting.append(each)
            label.entries.append(each.entry)
            label.sizes.append(len(each.frame))
        self._under_way = group
        return group


def entries_of(label: pb.LogGroup, body: bytes) -> Iterator[tuple[pb.LogEntry, memoryview]]:
    """The entries of a group, each with the bytes of its push, of which no copy is made.

    Raises WireError(BAD_REQUEST) if the label is not of these bytes.
    """
    sizes = label.sizes
    if len(sizes) != len(label.entries) or not sizes or min(sizes) < 0 or sum(sizes) != len(body):
        raise WireError(
            pb.BAD_REQUEST,
            f"{len(label.entries)} entries of {sum(sizes)} bytes, with {len(body)} bytes",
        )
    return _cut(label, memoryview(body))


def _cut(label: pb.LogGroup, body: memoryview) -> Iterator[tuple[pb.LogEntry, memoryview]]:
    place = 0
    for entry, size in zip(label.entries, label.sizes, strict=True):
        yield entry, body[place : place + size]
        place += size
