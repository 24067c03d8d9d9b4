"""The logs that a server keeps for others, in memory.

Owns the bytes and who may write them. Does not know what a push is.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.plane.link import kept
from shoal.proto.wire.frames import Pieces
from shoal.ps.update_log.batches import Kept, packed
from shoal.ps.update_log.groups import entries_of

ENTRY_BYTES = 72
"""What an entry costs beside its push, measured: its label and its place."""

SMALL_BYTES = 16 << 10
"""A push below it shares a buffer with others: one of its own would cost more."""

SHARED_BYTES = 256 << 10
"""From which on a shared buffer takes no further push."""


class _Run:
    """Entries that came one after another, in two buffers: their labels, and their pushes.

    An object for each would cost more than a small push does. Of each entry, int64: its step, and
    where its label and its push end. open: whether it takes a further small push; not once entries
    are read, as a buffer that somebody reads cannot grow.
    """

    __slots__ = ("_frames", "_label_ends", "_labels", "_push_ends", "open", "steps")

    def __init__(self, large: memoryview | None = None) -> None:
        """large: the only push."""
        self.steps, self._label_ends, self._push_ends = array("q"), array("q"), array("q")
        self._labels = bytearray()
        self._frames: bytearray | memoryview = bytearray() if large is None else large
        self.open = large is None

    @property
    def size(self) -> int:
        """Bytes of all, with what each costs beside its push."""
        return ENTRY_BYTES * len(self.steps) + len(self._frames)

    def add(self, step: int, label: bytes, frame: bytes | memoryview) -> None:
        """Add an entry, with the push that it was made for, or one more."""
        frames, labels = self._frames, self._labels
        if isinstance(frames, bytearray):
            frames += frame
            self.open = len(frames) < SHARED_BYTES
        labels += label
        self.steps.append(step)
        self._label_ends.append(len(labels))
        self._push_ends.append(len(frames))

    def entries(self) -> Iterator[tuple[int, Kept]]:
        """The step of each, and its label and push, which is not copied."""
        self.open = False
        frames, label, push = memoryview(self._frames), 0, 0
        ends = zip(self.steps, self._label_ends, self._push_ends, strict=True)
        for step, label_end, push_end in ends:
            yield step, (bytes(self._labels[label:label_end]), frames[push:push_end])
            label, push = label_end, push_end


@dataclass
class _Held:
    """position: place of the last entry among all that the writer appended.

    runs: in the order in which their entries came; those of the same step are done again so.
    size: bytes of all, with what each costs beside its push.
    """

    base: pb.LogBase
    runs: list[_Run] = field(default_factory=list)
    size: int = 0
    position: int = 0

    def add(self, step: int, label: bytes, frame: bytes | memoryview) -> None:
        """Keep an entry; a large push where it lies, a small one as a copy."""
        if len(frame) >= SMALL_BYTES:
            self.runs.append(_Run(memoryview(frame)))
        elif not self.runs or not self.runs[-1].open:
            self.runs.append(_Run())
        self.runs[-1].add(step, label, frame)
        self.size += ENTRY_BYTES + len(frame)

    def entries(self) -> list[tuple[int, Kept]]:
        """All, by step."""
        found = (each for run in self.runs for each in run.entries())
        return sorted(found, key=lambda each: each[0])

    def drop(self, step: int) -> None:
        """Keep the entries above `step`."""
        runs, self.runs, self.size = self.runs, [], 0
        for run in runs:
            if min(run.steps) > step:
                self.runs.append(run)
                self.size += run.size
            elif max(run.steps) > step:
                for each, (label, frame) in run.entries():
                    if each > step:
                        self.add(each, label, frame)


class PeerLogs:
    """The log of each server that has one here. Its methods are handlers of calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[int, _Held] = {}

    def __len__(self) -> int:
        """Bytes of all entries kept."""
        with self._lock:
            return sum(held.size for held in self._logs.values())

    def keep_only(self, servers: Collection[int]) -> None:
        """Let go of the logs of all other servers: they have left, or another one keeps theirs."""
        with self._lock:
            self._logs = {server: held for server, held in self._logs.items() if server in servers}

    def begin(self, request: pb.BeginLogRequest) -> pb.BeginLogReply:
        """Keep a new log in place of the server's old one. Raises WireError(FENCED)."""
        base = request.base
        with self._lock:
            held = self._logs.get(base.server)
            if held is not None:
                self._check_writer(held, base.incarnation)
            self._logs[base.server] = _Held(base)
        return pb.BeginLogReply()

    def append(self, labelled: tuple[pb.LogGroup, bytes | memoryview]) -> pb.AppendLogReply:
        """Keep a group of pushes; the same one again changes nothing.

        Raises WireError: NO_LOG, also where entries before the group have not come; FENCED,
        BAD_REQUEST.
        """
        group, body = labelled
        # The body is the connection's. Without the lock, as a large one takes a while.
        entries = [
            (entry, kept(frame) if len(frame) >= SMALL_BYTES else frame)
            for entry, frame in entries_of(group, body)
        ]
        writer = group.entries[0]
        faults.point("log-appending")
        with self._lock:
            held = self._find(writer.server, writer.log, writer.incarnation)
            if group.first + len(entries) - 1 == held.position:
                return pb.AppendLogReply(position=held.position)  # its answer was lost
            if group.first != held.position + 1:
                raise WireError(
                    pb.NO_LOG,
                    f"log {writer.log} of ps-{writer.server} has {held.position} entries, and "
                    f"those from {group.first} on have come",
                )
            for entry, frame in entries:
                held.add(entry.step, entry.SerializeToString(), frame)
            held.position += len(entries)
            return pb.AppendLogReply(position=held.position)

    def drop(self, request: pb.DropLogRequest) -> pb.DropLogReply:
        """Let go of what is in a checkpoint. Raises WireError(NO_LOG, FENCED)."""
        with self._lock:
            held = self._find(request.server, request.log, request.incarnation)
            if request.step:
                held.base = pb.LogBase(
                    log=request.log,
                    server=request.server,
                    incarnation=held.base.incarnation,
                    applied=request.applied,
                    update=request.update,
                    epoch=held.base.epoch,
                )
                held.drop(request.step)
        return pb.DropLogReply()

    def take(self, request: pb.TakeLogRequest) -> Iterator[bytes | Pieces]:
        """Give a server's log to its new incarnation. It stays, and nobody else may write it."""
        with self._lock:
            held = self._logs.get(request.server)
            if held is None:
                return
            self._check_writer(held, request.incarnation)
            if held.base.incarnation != request.incarnation:
                held.base.incarnation = request.incarnation
                held.position = 0
            base = held.base.SerializeToString()
            entries = held.entries()
        yield base
        yield from packed(each for _, each in entries)

    def _find(self, server: int, log: str, incarnation: int) -> _Held:
        held = self._logs.get(server)
        if held is not None:
            self._check_writer(held, incarnation)
        if held is None or held.base.log != log:
            raise WireError(pb.NO_LOG, f"log {log} of ps-{server} is not kept here")
        return held

    @staticmethod
    def _check_writer(held: _Held, incarnation: int) -> None:
        if incarnation < held.base.incarnation:
            raise WireError(
                pb.FENCED,
                f"ps-{held.base.server} was started again: incarnation {held.base.incarnation} "
                f"writes its log, not {incarnation}",
            )
