"""The messages on a connection of the data plane: a prefix, and the bytes that it announces.

    offset 0    magic b"SHD1"
    offset 4    kind, uint8
    offset 5    three bytes of zeros, for later versions
    offset 8    bytes that follow, uint64 little-endian

A request's kind is its method's (proto/methods.py), and its bytes are a frame
(proto/wire/frames.py), a protobuf, or a label and frames. An answer is one message, or for a stream
several ones and an end. One exchange at a time is on a connection.
"""

from __future__ import annotations

import struct

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

MAGIC = b"SHD1"

_PREFIX = struct.Struct("<4sB3sQ")
_ZEROS = bytes(3)

PREFIX_BYTES = _PREFIX.size

ANSWER = 64
REFUSAL = 65
"""Its bytes are an ErrorDetail; of no kind where the handler broke."""
PART, END = 66, 67
"""Of an answer that is a stream."""
HELLO, CHALLENGE, PROOF, WELCOME = 96, 97, 98, 99

LABEL = struct.Struct("<I")
"""Before a label: its bytes. Then the label, then what it is of."""


def prefix(kind: int, size: int) -> bytes:
    """The prefix of a message of `size` bytes."""
    return _PREFIX.pack(MAGIC, kind, _ZEROS, size)


def parse(data: bytes | memoryview) -> tuple[int, int]:
    """Kind and size of the message of a prefix. Raises WireError(BAD_REQUEST)."""
    magic, kind, zeros, size = _PREFIX.unpack_from(data)
    if magic != MAGIC or zeros != _ZEROS:
        raise WireError(pb.BAD_REQUEST, f"a message begins with {bytes(data[:8])!r}")
    return kind, size
