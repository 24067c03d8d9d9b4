"""The errors that cross the wire, as one exception type with a kind.

A handler raises `WireError`; serving.py and rpc.py carry it to the caller, where the same
exception is raised again. Callers branch on `kind`, never on the text.
"""

from __future__ import annotations

import grpc

from shoal.errors import Error
from shoal.proto import shoal_pb2 as pb

STATUS_CODES: dict[pb.ErrorKind, grpc.StatusCode] = {
    pb.NOT_REGISTERED: grpc.StatusCode.FAILED_PRECONDITION,
    pb.DENSE_NOT_INITIALIZED: grpc.StatusCode.FAILED_PRECONDITION,
    pb.SPEC_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    pb.STALE_ROUTING: grpc.StatusCode.FAILED_PRECONDITION,
    pb.NOT_OWNER: grpc.StatusCode.FAILED_PRECONDITION,
    pb.FENCED: grpc.StatusCode.PERMISSION_DENIED,
    pb.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    pb.UNKNOWN_TASK: grpc.StatusCode.FAILED_PRECONDITION,
    pb.WRONG_PEER: grpc.StatusCode.PERMISSION_DENIED,
    pb.CHECKPOINT_FAILED: grpc.StatusCode.ABORTED,
    pb.NO_LOG: grpc.StatusCode.FAILED_PRECONDITION,
    pb.NOT_FINITE: grpc.StatusCode.INVALID_ARGUMENT,
    pb.OTHER_PROTOCOL: grpc.StatusCode.FAILED_PRECONDITION,
    pb.NOT_PERMITTED: grpc.StatusCode.PERMISSION_DENIED,
    # UNAVAILABLE on purpose: the client's retry policy covers it.
    pb.NOT_READY: grpc.StatusCode.UNAVAILABLE,
}
"""The gRPC status that each kind travels under, for tools that know only gRPC."""


MAXIMUM_ERROR_BYTES = 1 << 10
"""Of an error's text on the wire. It travels twice, in metadata of which gRPC takes 8 KiB."""


def shortened(text: str) -> str:
    """`text` in at most MAXIMUM_ERROR_BYTES of UTF-8; says how much is missing."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAXIMUM_ERROR_BYTES:
        return encoded.decode("utf-8")
    end = f" ... (the first {MAXIMUM_ERROR_BYTES} of {len(encoded)} bytes)"
    return encoded[: MAXIMUM_ERROR_BYTES - len(end)].decode("utf-8", "ignore") + end


def from_outside(text: str, most: int = 100) -> str:
    """Text of a process that may not be of the job, made fit for a log: a short line."""
    return "".join(each for each in text[:most] if each.isprintable())


class CallError(Error):
    """A call of another process that failed: it refused, or could not be reached."""


class WireError(CallError):
    """A refusal by the other side: `kind` says why, `message` says it in words."""

    def __init__(self, kind: pb.ErrorKind, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{pb.ErrorKind.Name(self.kind)}: {self.message}"


class PeerUnavailableError(CallError):
    """The other side could not be reached, or did not answer within the deadline."""

    def __init__(self, address: str, method: str, reason: str) -> None:
        super().__init__(address, method, reason)
        self.address = address
        self.method = method
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.method} at {self.address}: {self.reason}"


class BrokenStreamError(PeerUnavailableError):
    """The other side went away in the middle of a streamed answer."""


class ServerAwayError(Error):
    """A parameter server stayed away for longer than the job allows; says which.

    server: its index, None where that is not known.
    """

    def __init__(self, message: str, server: int | None = None) -> None:
        super().__init__(message)
        self.server = server
