"""Receiving: one request, whole or put together from parts, in bounded time and memory.

A thread that receives a request waits for the other end, which may have been stopped in the
middle, or may send nothing on purpose. Owns how long it waits, and how many bytes of requests
that are not whole yet a process holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc

from shoal.proto import parts
from shoal.proto import shoal_pb2 as pb
from shoal.proto.budget import Budget
from shoal.proto.errors import WireError
from shoal.proto.methods import Method, Threads
from shoal.proto.transport import MAXIMUM_MESSAGE_BYTES
from shoal.proto.watch import WATCH

PART_SECONDS = 10.0
"""For the next part of a request, and for a whole one where it is small."""

WHOLE_SECONDS = 60.0
"""For a whole request of data, of up to parts.WHOLE_BYTES."""

HELD_BYTES = MAXIMUM_MESSAGE_BYTES
"""Of requests in parts that are not whole yet; the largest one still finds room."""


class Receiver:
    """Receives the requests of one process. Shared by threads."""

    def __init__(self) -> None:
        self._room = Budget("requests that are not whole yet", HELD_BYTES)

    def whole(
        self, method: Method[Any, Any], requests: Iterator[Any], context: grpc.ServicerContext
    ) -> Any:
        """The request of a call that has one.

        Raises WireError(BAD_REQUEST) without one; gRPC's RpcError if the caller is gone, or was
        given up since it sent nothing in time.
        """
        data = method.request is bytes and method.threads == Threads.DATA
        with WATCH.within(WHOLE_SECONDS if data else PART_SECONDS, context.cancel):
            for request in requests:
                return request
        raise WireError(pb.BAD_REQUEST, "a call without a request")

    def joined(
        self, method: Method[Any, Any], requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> bytes:
        """The request of a call that sends it in parts. Raises as `whole` and `parts.join` do."""
        del method
        room = partial(self._room.holding, seconds=PART_SECONDS)
        return parts.join(_in_time(requests, context), MAXIMUM_MESSAGE_BYTES, room)


def _in_time(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    """The parts; a call whose next one does not come in time is cancelled."""
    while True:
        with WATCH.within(PART_SECONDS, context.cancel):
            part = next(requests, None)
        if part is None:
            return
        yield part
