"""Large requests travel in parts, as a stream of messages, and are one request again.

Owns cutting and joining; which calls do it is rpc.py's and serving.py's. The first part
begins with the length of the whole. Answers are not cut here: who asks for many rows asks
in several calls (worker/servers/requests.py), so that one is gathered while another one travels.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.memory import unfilled_bytes

WHOLE_BYTES = 64 << 20
"""Larger requests are cut. Cutting those of 4 to 16 MiB made a push an eighth slower."""

PART_BYTES = 4 << 20
"""Bytes of a part."""

_TOTAL = struct.Struct("<Q")


def cut(request: bytes) -> Iterator[bytes]:
    """The parts of a request, each made when gRPC asks for it."""
    yield _TOTAL.pack(len(request)) + request[: PART_BYTES - _TOTAL.size]
    for start in range(PART_BYTES - _TOTAL.size, len(request), PART_BYTES):
        yield request[start : start + PART_BYTES]


def join(
    parts: Iterator[bytes],
    limit: int,
    room: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> bytes:
    """The request whose parts these are.

    room: entered with the bytes of the whole while it is put together.

    Raises WireError(BAD_REQUEST) if they are fewer or more bytes than were announced, or
    more than `limit`; what `room` raises.
    """
    first = next(parts, b"")
    if len(first) < _TOTAL.size:
        raise WireError(pb.BAD_REQUEST, "a request in parts without a first part")
    (total,) = _TOTAL.unpack_from(first)
    if total > limit:
        raise WireError(pb.BAD_REQUEST, f"a request of {total} bytes; at most {limit} are taken")
    with room(total):
        return _filled(total, itertools.chain([first[_TOTAL.size :]], parts))


def _filled(total: int, parts: Iterable[bytes]) -> bytes:
    whole, view = unfilled_bytes(total)
    target = np.frombuffer(view, np.uint8)
    filled = 0
    for part in parts:
        end = filled + len(part)
        if end > total:
            raise WireError(pb.BAD_REQUEST, f"a request of {total} bytes came with more")
        # NumPy copies without Python's lock, so other calls go on.
        target[filled:end] = np.frombuffer(part, np.uint8)
        filled = end
    if filled != total:
        raise WireError(pb.BAD_REQUEST, f"only {filled} of {total} bytes of a request came")
    return whole
