"""Receiving one request of gRPC, in bounded time.

A thread that receives a request waits for the other end, which may have been stopped in the
middle, or may send nothing on purpose. Those that carry arrays are plane/server.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.watch import WATCH

REQUEST_SECONDS = 10.0
"""For a whole request."""


def received(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
    """The request of a call that has one.

    Raises WireError(BAD_REQUEST) without one; gRPC's RpcError if the caller is gone, or was
    given up since it sent nothing in time.
    """
    with WATCH.within(REQUEST_SECONDS, context.cancel):
        for request in requests:
            return request
    raise WireError(pb.BAD_REQUEST, "a call without a request")
