"""The reason why a job failed: one value, with the text that the user needs to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.master.work.units import Span
from shoal.proto import shoal_pb2 as pb


@dataclass(frozen=True)
class Failure:
    """The reason of a failure.

    message: complete in itself, one line or a few.
    traceback: of the user's code or of ours; empty where it would say nothing.
    span: the records at fault; None where it is not about records.
    error: in one line, where the message says more. place: the first of the records in the
        words of their reader, where known. gone: so many records, from the first of the span on
        in the order of their source, are there no more.
    server: with SERVER_AWAY the index of the parameter server, where known.
    """

    kind: pb.FailureKind
    message: str
    traceback: str = ""
    span: Span | None = None
    error: str = ""
    place: str = ""
    server: int | None = None
    gone: int = 0

    @property
    def another_tries(self) -> bool:
        """True if another start of the process may succeed where this one failed."""
        return self.kind in (pb.INTERNAL, pb.SERVER_AWAY)

    @classmethod
    def internal(cls, message: str, traceback: str = "") -> Failure:
        """A failure that is not the user's."""
        return cls(pb.INTERNAL, message, traceback)

    @classmethod
    def of_user(cls, message: str) -> Failure:
        """Wrong input; `message` says what to do about it."""
        return cls(pb.USER_ERROR, message)

    @classmethod
    def from_message(cls, message: pb.Failure) -> Failure:
        """The failure that a process reported."""
        span = None
        if message.HasField("range"):
            span = Span(message.range.source, message.range.start, message.range.end)
        return cls(
            message.kind or pb.INTERNAL,
            message.message,
            message.traceback,
            span,
            message.error,
            message.place,
            message.server if message.HasField("server") else None,
            message.gone,
        )

    def to_message(self) -> pb.Failure:
        """The same for the wire."""
        message = pb.Failure(
            kind=self.kind,
            message=self.message,
            traceback=self.traceback,
            error=self.error,
            place=self.place,
            server=self.server,
            gone=self.gone,
        )
        if self.span is not None:
            message.range.CopyFrom(self.span.to_message())
        return message

    def to_json(self) -> dict[str, Any]:
        """The same for result.json."""
        span = self.span
        return {
            "kind": pb.FailureKind.Name(self.kind),
            "message": self.message,
            "traceback": self.traceback,
            "range": span and {"source": span.source, "start": span.start, "end": span.end},
        }
