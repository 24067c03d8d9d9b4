"""The reader of answers in C beside Python's, for any bytes: a pull of two small tables.

What it takes, Python must read too, and as it was taken. The rest comes back as it came.
"""

from __future__ import annotations

import socket
from typing import Any

import numpy as np

from shoal.native import fan_out
from shoal.native.fan_out import FanOut
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.plane.link import ROOM_BYTES
from shoal.proto.plane.message import ANSWER, PREFIX_BYTES, REFUSAL, parse, prefix
from shoal.proto.wire import frames

ROWS, DIMS, DENSE = 3, (2, 3), (4, 1)
MOST_BYTES = 1 << 20
MARGIN = 64
"""Of each array on both sides: nothing may be written there."""

KEPT = np.float32(-7.0)


def message(reply: pb.PullReply, dtype: Any = np.float32) -> bytes:
    """A plain answer, whole."""
    arrays = [np.arange(ROWS * dim).reshape(ROWS, dim).astype(dtype) for dim in DIMS]
    if reply.has_dense:
        arrays += [np.arange(size, dtype=np.float32) for size in DENSE]
    frame = frames.encode(reply, arrays)
    return prefix(ANSWER, len(frame)) + frame


def seeds() -> list[bytes]:
    """Answers that Python takes: the last one not in C."""
    full = pb.PullReply(version=2**62, has_dense=True, time=1.5, applied=7, update=3)
    return [message(each) for each in (full, pb.PullReply(), pb.PullReply(version=-1))]


def refusal() -> bytes:
    """One that a server may give."""
    detail = pb.ErrorDetail(kind=pb.NOT_OWNER, message="gone").SerializeToString()
    return prefix(REFUSAL, len(detail)) + detail


class Places:
    """Arrays between margins."""

    def __init__(self) -> None:
        shapes: list[tuple[int, ...]] = [(ROWS, dim) for dim in DIMS]
        shapes += [(size,) for size in DENSE]
        self._memory = []
        self.arrays = []
        for shape in shapes:
            size = int(np.prod(shape))
            self._memory.append(np.full(MARGIN + size + MARGIN, KEPT, np.float32))
            self.arrays.append(self._memory[-1][MARGIN : MARGIN + size].reshape(shape))

    def check(self) -> None:
        """Raises AssertionError if something was written beside the arrays."""
        for memory in self._memory:
            assert (memory[:MARGIN] == KEPT).all()
            assert (memory[-MARGIN:] == KEPT).all()


def pull_of(places: list[Any], servers: int = 1, ids: int = ROWS) -> FanOut:
    """A pull of the same rows from servers, into arrays [servers * n, ...]."""
    made = FanOut(servers, 2, ANSWER, MOST_BYTES)
    offsets = np.arange(servers + 1) * ids
    made.specs(9)
    made.send(np.arange(servers * ids), offsets, pb.INT64)
    for rows in places[: len(DIMS)]:
        made.want(rows, offsets, pb.FLOAT32)
    for vector in places[len(DIMS) :]:
        starts = np.arange(servers + 1) * (vector.size // servers)
        made.want(vector, starts, pb.FLOAT32, optional=True)
    made.answers(fields=6, specs=6, reals=[3], flags=[2], flag=2)
    return made


def expected(data: bytes) -> tuple[pb.PullReply, list[Any]]:
    """An answer as Python reads it. Raises WireError."""
    if len(data) < PREFIX_BYTES:
        raise WireError(pb.BAD_REQUEST, "short")
    kind, size = parse(data[:PREFIX_BYTES])
    if kind != ANSWER or len(data) != PREFIX_BYTES + size:
        raise WireError(pb.BAD_REQUEST, "no answer")
    reply, arrays = frames.decode(data[PREFIX_BYTES:], pb.PullReply)
    shapes: list[tuple[int, ...]] = [(ROWS, dim) for dim in DIMS]
    if reply.has_dense:
        shapes += [(size,) for size in DENSE]
    if [(each.dtype, each.shape) for each in arrays] != [(np.float32, each) for each in shapes]:
        raise WireError(pb.BAD_REQUEST, "other arrays")
    return reply, arrays


def check(data: bytes) -> bool:
    """Whether an answer is taken in C.

    Raises AssertionError if not as Python reads it, WireError if Python refuses it.
    """
    if len(data) > MOST_BYTES:
        raise WireError(pb.BAD_REQUEST, "more bytes than there is room for")
    places = Places()
    call = pull_of(places.arrays)
    near, far = socket.socketpair()
    with near, far:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MOST_BYTES)
        far.sendall(data)
        far.shutdown(socket.SHUT_WR)
        call.run(np.array([near.fileno()], np.int32), 10.0)
    places.check()
    status = int(call.status[0])
    if status == fan_out.UNREAD:
        assert call.kept(0) == data[: min(len(data), ROOM_BYTES)]
    else:
        assert status in (fan_out.DONE, fan_out.CLOSED)
    try:
        reply, arrays = expected(data)
    except WireError as error:
        if status != fan_out.DONE:
            raise
        raise AssertionError(f"C takes what Python refuses: {error}") from error
    if status != fan_out.DONE:
        return False
    numbers = call.numbers[0, [1, 2, 4, 5]].tolist()
    assert numbers == [reply.version, reply.has_dense, reply.applied, reply.update]
    assert call.numbers[:, 3].tobytes() == np.float64(reply.time).tobytes()
    for array, place in zip(arrays, places.arrays, strict=False):
        assert array.tobytes() == place.tobytes()
    if not reply.has_dense:
        assert all((each == KEPT).all() for each in places.arrays[len(DIMS) :])
    return True
