"""The position of the master's journal, as the job's other processes have been told.

The master tells it with its questions and answers. Each process keeps the highest and tells it
back. So a journal that has lost its end, or was replaced, is known by the processes that have seen
more of it. Owns keeping the position; comparing it is master/journal/witnesses.py's.
"""

from __future__ import annotations

import threading
from typing import Any

from google.protobuf.message import Message

from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.methods import Method, Reply, Request

FIELD = "journal"
"""Of each message that carries it."""


class Seen:
    """The highest position that a process was told of; shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._position = pb.JournalPosition()

    def note(self, position: pb.JournalPosition) -> None:
        """The process is told of this position."""
        with self._lock:
            if position.number > self._position.number:
                self._position = pb.JournalPosition()
                self._position.CopyFrom(position)

    @property
    def position(self) -> pb.JournalPosition:
        """Not to be changed; number 0: none."""
        return self._position

    def to_json(self) -> dict[str, Any] | None:
        """The position in a manifest's form; None if there is none."""
        return position_json(self._position) if self._position.number else None


def position_json(position: pb.JournalPosition) -> dict[str, Any]:
    """The position in the form of a manifest or result.json: JSON's numbers have 53 bits only."""
    return {
        "journal": f"{position.journal:016x}",
        "event": position.number,
        "checksum": f"{position.checksum:016x}",
    }


def position_of(content: Any) -> pb.JournalPosition | None:
    """The position that `position_json` put into `content`; None if it is none."""
    try:
        return pb.JournalPosition(
            journal=int(content["journal"], 16),
            number=content["event"],
            checksum=int(content["checksum"], 16),
        )
    except (LookupError, TypeError, ValueError):
        return None


class WitnessConnection(Connection):
    """A connection to the master whose calls and answers carry the position."""

    def __init__(self, address: str, **how: Any) -> None:
        super().__init__(address, **how)
        self.seen = Seen()

    def call(self, method: Method[Request, Reply], request: Request, **how: Any) -> Reply:
        """See Connection."""
        if _carries(request):
            getattr(request, FIELD).CopyFrom(self.seen.position)
        reply = super().call(method, request, **how)
        if _carries(reply):
            self.seen.note(getattr(reply, FIELD))
        return reply


def _carries(message: Message | bytes) -> bool:
    return isinstance(message, Message) and FIELD in message.DESCRIPTOR.fields_by_name
