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
from shoal.proto.wire.frames import Pieces
from shoal.ps.update_log.sinks import LogLostError

GROUP_BYTES = 4 << 20
"""A group has no more bytes of pushes, unless it is one push: more would make the first of its
pushes wait for the last one."""

GROUP_ENTRIES = 128
"""Buffers that one call of the system sends (plane/link.py), with room to spare."""


@dataclass(frozen=True)
class _Waiting:
    entry: pb.LogEntry
    frame: bytes | memoryview
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
        """The time at which its oldest entry was handed on."""
        return self.waiting[0].since

    def body(self) -> Pieces:
        """The call's bytes, from where the pushes lie."""
        return Pieces(sum(self.label.sizes), [each.frame for each in self.waiting])


class Groups:
    """The entries of one log of one writer, in the order in which they are handed on.

    One group is under way at a time; what comes meanwhile makes the next one. Who sends one reads
    the pushes where they lie, so they count as under way until that has ended.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._under_way: Group | None = None
        self._position = 0
        self._error: Exception | None = None
        self._sender: threading.Thread | None = None

    def add(self, entry: pb.LogEntry, frame: bytes | memoryview, now: float) -> Future[None]:
        """Hand an entry on. Returns what is done once it is kept.

        now: seconds of a clock that only goes on. Raises what `lose` was given.
        """
        waiting = _Waiting(entry, frame, now, Future())
        with self._changed:
            if self._error is not None:
                raise self._error
            self._waiting.append(waiting)
            self._changed.notify()
            return waiting.kept

    def next(self) -> Group | None:
        """The group that is to be sent now, which is waited for; None once the log is lost.

        By one thread, which then calls `answered` or `lose`.
        """
        with self._changed:
            while not self._waiting and self._error is None:
                self._changed.wait()
            return None if self._error is not None else self._next()

    def answered(self, group: Group, position: int) -> None:
        """The keeper has a group, and the log up to `position`.

        Raises LogLostError if that is another place than the group's end.
        """
        if position != group.last:
            raise LogLostError(f"its keeper has {position} of the {group.last} updates handed on")
        with self._changed:
            self._under_way = None
            self._position = position
        for each in group.waiting:
            each.kept.set_result(None)

    def lose(self, error: Exception) -> None:
        """The log is lost as a whole: nobody waits for it any more.

        By the thread that sends groups, which has sent what is under way; by others only those
        that wait lose it now, and the thread's group once that ends.
        """
        with self._changed:
            if self._error is None:
                self._error = error
            left = [*self._waiting]
            self._waiting.clear()
            if threading.current_thread() is self._sender:
                left += self._under_way.waiting if self._under_way else ()
                self._under_way = None
            error = self._error
            self._changed.notify_all()
        for each in left:
            each.kept.set_exception(error)

    def _next(self) -> Group:
        """Under the lock."""
        self._sender = threading.current_thread()
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


def entries_of(
    label: pb.LogGroup, body: bytes | memoryview
) -> Iterator[tuple[pb.LogEntry, memoryview]]:
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
