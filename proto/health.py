"""gRPC's standard health service, which Kubernetes' probes ask.

Answers "serving" as long as the process handles calls; that is all that a probe is to
know. The two messages are so small that they are written here as bytes, in place of a
further dependency (grpc.health.v1.HealthCheckResponse: field 1, status, 1 for SERVING).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

SERVICE = "grpc.health.v1.Health"
SERVING = b"\x08\x01"

POOL = "experimental_thread_pool"
"""The attribute of a handler in which gRPC looks for the threads that are to handle it."""


def health_handler(pool: ThreadPoolExecutor) -> grpc.GenericRpcHandler:
    """The handler of Check, whatever service is asked for. pool: the threads that answer.

    It does not wait for the request, which nobody has to be known to send.
    """

    def serving(_requests: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
        return SERVING

    vars(serving)[POOL] = pool
    check = grpc.stream_unary_rpc_method_handler(serving)
    return grpc.method_handlers_generic_handler(SERVICE, {"Check": check})
