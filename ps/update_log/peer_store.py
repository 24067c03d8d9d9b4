"""The logs that a server keeps for others, in memory.

Owns the bytes and who may write them. Does not know what a push is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.frames import Pieces
from shoal.proto.plane.link import kept
from shoal.ps.update_log.batches import Kept, packed
from shoal.ps.update_log.groups import entries_of

ENTRY_BYTES = 360
"""What an entry costs beside its push, measured: its label, its place, and Python's objects."""

SMALL_BYTES = 16 << 10
"""A push below it is copied under Python's lock: an array of its own would cost more."""


def copied(frame: memoryview) -> bytes | memoryview:
    """A copy of a push, as it is kept."""
    return bytes(frame) if len(frame) < SMALL_BYTES else kept(frame)


@dataclass
class _Held:
    """position: place of the last entry among all that the writer appended.

    entries: by step, and where entries have the same one, in the order in which they came: label
    and push. size: bytes of all, with what each costs beside its push.
    """

    base: pb.LogBase
    entries: dict[tuple[int, int], Kept] = field(default_factory=dict)
    moves: dict[int, int] = field(default_factory=dict)  # step -> epoch, of entries of moves
    came: int = 0
    size: int = 0
    position: int = 0


class PeerLogs:
    """The log of each server that has one here. Its methods are handlers of calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[int, _Held] = {}

    def __len__(self) -> int:
        """Bytes of all entries kept."""
        with self._lock:
            return sum(held.size for held in self._logs.values())

    def keep_only(self, servers: int) -> None:
        """Let go of the logs of all but so many servers, the first ones: the others have left."""
        with self._lock:
            self._logs = {server: held for server, held in self._logs.items() if server < servers}

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
        # Copied: the body is the connection's.
        entries = [
            (entry, (entry.SerializeToString(), copied(frame)))
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
            for entry, each in entries:
                held.came += 1
                held.entries[entry.step, held.came] = each
                held.size += ENTRY_BYTES + len(each[1])
                held.moves |= {entry.step: entry.move} if entry.move else {}
            held.position += len(entries)
            return pb.AppendLogReply(position=held.position)

    def drop(self, request: pb.DropLogRequest) -> pb.DropLogReply:
        """Let go of what is in a checkpoint. Raises WireError(NO_LOG, FENCED)."""
        with self._lock:
            held = self._find(request.server, request.log, request.incarnation)
            if request.step:
                moved = [move for step, move in held.moves.items() if step <= request.step]
                held.base = pb.LogBase(
                    log=request.log,
                    server=request.server,
                    incarnation=held.base.incarnation,
                    applied=request.applied,
                    update=request.update,
                    epoch=max([held.base.epoch, *moved]),
                )
                held.entries = {
                    at: each for at, each in held.entries.items() if at[0] > request.step
                }
                held.size = sum(ENTRY_BYTES + len(frame) for _, frame in held.entries.values())
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
            entries = [held.entries[at] for at in sorted(held.entries)]
        yield base
        yield from packed(entries)

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
