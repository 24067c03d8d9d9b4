"""gRPC's standard health service, which Kubernetes' probes ask.

Answers "serving" as long as the process handles calls; that is all that a probe is to
know. The two messages are so small that they are written here as bytes, in place of a
further dependency (grpc.health.v1.HealthCheckResponse: field 1, status, 1 for SERVING).
"""

from __future__ import annotations

import grpc

SERVICE = "grpc.health.v1.Health"
SERVING = b"\x08\x01"


def health_handler() -> grpc.GenericRpcHandler:
    """The handler of Check, whatever service is asked for."""
    check = grpc.unary_unary_rpc_method_handler(lambda _request, _context: SERVING)
    return grpc.method_handlers_generic_handler(SERVICE, {"Check": check})
