"""Serving: a gRPC server of handlers, and how their errors go back.

Owns threads, and refusing calls that were meant for another process. Does not know what
any call means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from shoal.proto import faults, parts
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import STATUS_CODES, WireError
from shoal.proto.health import POOL, health_handler
from shoal.proto.methods import THREADS, Method, Threads
from shoal.proto.pools import NO_THREAD, started_pool
from shoal.proto.transport import (
    ERROR_METADATA,
    LABEL_METADATA,
    MAXIMUM_MESSAGE_BYTES,
    PARTS_SUFFIX,
    PEER_METADATA,
    SERVER_OPTIONS,
    deserializer,
    serialize,
)

logger = logging.getLogger(__name__)

MAXIMUM_ERROR_BYTES = 1 << 10
"""Of an error's text on the wire. It travels twice, in metadata of which gRPC takes 8 KiB."""

Handlers = Mapping[Method[Any, Any], Callable[[Any], Any]]


def _shortened(text: str) -> str:
    """`text` in at most MAXIMUM_ERROR_BYTES of UTF-8; says how much is missing."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAXIMUM_ERROR_BYTES:
        return encoded.decode("utf-8")
    end = f" ... (the first {MAXIMUM_ERROR_BYTES} of {len(encoded)} bytes)"
    return encoded[: MAXIMUM_ERROR_BYTES - len(end)].decode("utf-8", "ignore") + end


def _abort(context: grpc.ServicerContext, error: WireError) -> None:
    message = _shortened(error.message)
    detail = pb.ErrorDetail(kind=error.kind, message=message)
    context.set_trailing_metadata(((ERROR_METADATA, detail.SerializeToString()),))
    context.abort(STATUS_CODES[error.kind], message)


def _abort_bug(method: Method[Any, Any], context: grpc.ServicerContext, error: Exception) -> None:
    """Log a handler's error whole, and tell the caller of it. Only while it is handled."""
    logger.exception("%s failed", method.path)
    context.abort(grpc.StatusCode.UNKNOWN, _shortened(f"{type(error).__name__}: {error}"))


def _check_peer(name: str, context: grpc.ServicerContext) -> None:
    """Raises WireError(WRONG_PEER) for a call that was meant for another than `name`."""
    if not name:
        return
    meant = next(
        (value for key, value in context.invocation_metadata() if key == PEER_METADATA), None
    )
    if meant != name:
        meant_for = f"for {meant}" if meant else "without a job's token"
        raise WireError(pb.WRONG_PEER, f"this is {name}, the call was {meant_for}")


def _label(kind: type[Message], context: grpc.ServicerContext) -> Message:
    """The label of a call. Raises WireError(BAD_REQUEST) if it has none."""
    for key, value in context.invocation_metadata():
        if key == LABEL_METADATA:
            try:
                return kind.FromString(value)
            except DecodeError as error:
                raise WireError(pb.BAD_REQUEST, f"label: {error}") from error
    raise WireError(pb.BAD_REQUEST, f"the call has no label, which is to be a {kind.__name__}")


def _guard(
    method: Method[Any, Any], handler: Callable[[Any], Any], name: str
) -> Callable[..., Any]:
    """The gRPC-facing form of a handler: errors translated, bugs logged whole."""

    def unary(request: Any, context: grpc.ServicerContext) -> Any:
        faults.before_call()
        try:
            _check_peer(name, context)
            if method.label is not None:
                return handler((_label(method.label, context), request))
            return handler(request)
        except WireError as error:
            _abort(context, error)
        except Exception as error:
            _abort_bug(method, context, error)

    def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        faults.before_call()
        try:
            _check_peer(name, context)
            yield from handler(request)
        except WireError as error:
            _abort(context, error)
        except Exception as error:
            _abort_bug(method, context, error)

    return stream if method.streaming else unary


def _joined(handler: Callable[[bytes, grpc.ServicerContext], bytes]) -> Callable[..., bytes]:
    """The form of a guarded handler that takes its request in parts."""

    def joined(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            request = parts.join(requests, MAXIMUM_MESSAGE_BYTES)
        except WireError as error:
            _abort(context, error)
        return handler(request, context)

    return joined


def serve(
    handlers: Handlers, address: str, threads: int, name: str = ""
) -> tuple[grpc.Server, int]:
    """Start a server for `handlers` on `address` and return it with its port.

    handlers: method -> function of the request. A method of bytes gets and returns
        bytes. Raise `WireError` to refuse a call.
    address: "host:port"; port 0 takes a free one.
    threads: calls of data handled at the same time; further ones wait. Others have their
        own (methods.THREADS).
    name: as `peer_name` gives it; calls meant for another are refused. "": none are.

    Raises OSError if the address cannot be bound, or there are not threads enough.
    """
    services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    guarded: Callable[..., Any]
    joined: Callable[..., Any]
    pools = {
        kind: started_pool(count, f"rpc-{kind.value}")
        for kind, count in THREADS.items()
        if kind == Threads.STATE or any(method.threads == kind for method in handlers)
    }
    for method, handler in handlers.items():
        make = (
            grpc.unary_stream_rpc_method_handler
            if method.streaming
            else grpc.unary_unary_rpc_method_handler
        )
        own = services.setdefault(method.service, {})
        guarded = _guard(method, handler, name)
        joined = _joined(guarded)
        if method.threads in pools:
            for each in (guarded, joined):
                vars(each)[POOL] = pools[method.threads]
        own[method.name] = make(
            guarded,
            request_deserializer=deserializer(method.request),
            response_serializer=serialize,
        )
        if method.request is bytes and not method.streaming:
            own[method.name + PARTS_SUFFIX] = grpc.stream_unary_rpc_method_handler(
                joined, response_serializer=serialize
            )
    server = grpc.server(started_pool(threads, "rpc"), options=SERVER_OPTIONS)
    for service, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_generic_rpc_handlers((health_handler(pools[Threads.STATE]),))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    try:
        server.start()
    except RuntimeError as error:
        raise OSError(f"{NO_THREAD} ({error})") from error
    return server, port
