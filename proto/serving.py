"""Serving: a gRPC server of handlers, and how their errors go back.

Owns threads, and refusing calls that were meant for another process, before anything of their
requests is read. Does not know what any call means. Reading a request is receiving.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.budget import Budget
from shoal.proto.errors import STATUS_CODES, WireError
from shoal.proto.health import POOL, health_handler
from shoal.proto.identity import Caller, Identity, caller_of
from shoal.proto.methods import THREADS, Method, Threads
from shoal.proto.permissions import CALLERS, permitted, spoken_for
from shoal.proto.pools import NO_THREAD, started_pool
from shoal.proto.receiving import Receiver
from shoal.proto.transport import (
    ERROR_METADATA,
    LABEL_METADATA,
    PARTS_SUFFIX,
    PEER_METADATA,
    SERVER_OPTIONS,
    deserializer,
    serialize,
)

logger = logging.getLogger(__name__)

MAXIMUM_ERROR_BYTES = 1 << 10
"""Of an error's text on the wire. It travels twice, in metadata of which gRPC takes 8 KiB."""

ANSWER_BYTES = 256 << 20
"""Of answers of data that wait for their callers to read them. While there are so many, calls
that would make more are told to come again."""

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


def _refusal(name: str, metadata: Sequence[tuple[str, str | bytes]]) -> WireError | None:
    """Why a call with this metadata was meant for another than `name`; None if it was not."""
    meant = next((value for key, value in metadata if key == PEER_METADATA), None)
    if not name or meant == name:
        return None
    meant_for = f"for {meant!s}" if meant else "without a job's token"
    return WireError(pb.WRONG_PEER, f"this is {name}, the call was {meant_for}")


def _label(kind: type[Message], context: grpc.ServicerContext) -> Message:
    """The label of a call. Raises WireError(BAD_REQUEST) if it has none."""
    for key, value in context.invocation_metadata():
        if key == LABEL_METADATA:
            try:
                return kind.FromString(value)
            except DecodeError as error:
                raise WireError(pb.BAD_REQUEST, f"label: {error}") from error
    raise WireError(pb.BAD_REQUEST, f"the call has no label, which is to be a {kind.__name__}")


class _Guard:
    """The gRPC-facing forms of handlers: errors translated, bugs logged whole.

    All take their request as gRPC gives a stream of requests: so a thread that waits for one can
    be called off. On the wire one request looks alike either way.
    """

    def __init__(self, identity: Identity | None) -> None:
        """identity: of the process; None: it does not know who calls, and takes every call."""
        self._identity = identity
        self._receiver = Receiver()
        self._answers = Budget("answers that nobody has read yet", ANSWER_BYTES)

    def _permit(self, method: Method[Any, Any], context: grpc.ServicerContext) -> Caller | None:
        """Who calls; None where that is not known, as this process has no identity.

        Raises WireError(NOT_PERMITTED), which is logged, if the caller may not call `method`.
        """
        if self._identity is None:
            return None
        caller = caller_of(context.auth_context())
        own_job = caller is not None and caller.job == self._identity.caller.job
        if caller is not None and own_job and permitted(method, caller.role):
            return caller
        who = str(caller) if caller else "a caller without a certificate"
        may = " or ".join(sorted(CALLERS[method])) + " of the same job"
        logger.warning("refused %s of %s at %s", method.name, who, context.peer())
        raise WireError(pb.NOT_PERMITTED, f"{who} may not call {method.name}, only a {may} may")

    def _hear(
        self,
        caller: Caller | None,
        method: Method[Any, Any],
        request: Any,
        context: grpc.ServicerContext,
    ) -> None:
        """Raises WireError(NOT_PERMITTED), which is logged, if a request speaks for another."""
        if caller is None or not (other := spoken_for(method, caller, request)):
            return
        logger.warning(
            "refused %s of %s at %s: it speaks for %s", method.name, caller, context.peer(), other
        )
        raise WireError(pb.NOT_PERMITTED, f"{caller} may not speak for {other} in {method.name}")

    def unary(
        self, method: Method[Any, Any], handler: Callable[[Any], Any], *, in_parts: bool
    ) -> Callable[..., Any]:
        """Of a method with one answer. in_parts: its request comes in parts."""

        def unary(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            faults.before_call()
            try:
                caller = self._permit(method, context)
                receive = self._receiver.joined if in_parts else self._receiver.whole
                request = receive(method, requests, context)
                if method.large:
                    self._answers.check()
                label = None if method.label is None else _label(method.label, context)
                self._hear(caller, method, request if label is None else label, context)
                answer = handler(request if label is None else (label, request))
            except WireError as error:
                _abort(context, error)
            except grpc.RpcError:
                raise  # gRPC's own: the caller is gone
            except Exception as error:
                _abort_bug(method, context, error)
            if method.large:
                self._answers.hold(len(answer))
                if not context.add_callback(lambda: self._answers.free(len(answer))):
                    self._answers.free(len(answer))  # the caller is gone already
            return answer

        return unary

    def stream(self, method: Method[Any, Any], handler: Callable[[Any], Any]) -> Callable[..., Any]:
        """Of a method that answers with a stream."""

        def stream(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            faults.before_call()
            try:
                caller = self._permit(method, context)
                request = self._receiver.whole(method, requests, context)
                self._hear(caller, method, request, context)
                yield from handler(request)
            except WireError as error:
                _abort(context, error)
            except grpc.RpcError:
                raise
            except Exception as error:
                _abort_bug(method, context, error)

        return stream


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The calls of the process `name`; those meant for another are refused unread."""

    def __init__(self, name: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """handlers: by path. name: "" takes every call."""
        self._name = name
        self._handlers = handlers
        self._refusing = started_pool(1, "rpc-refusals")

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call, as gRPC asks for it before it reads anything of the request."""
        handler = self._handlers.get(details.method)
        refused = handler and _refusal(self._name, details.invocation_metadata or ())
        if not refused:
            return handler

        def refuse(_requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
            _abort(context, refused)

        vars(refuse)[POOL] = self._refusing
        return grpc.stream_unary_rpc_method_handler(refuse)


def bound(address: str, port: int) -> str:
    """Where a server of `serve` is reached on this machine. address, port: as given, and got."""
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def serve(
    handlers: Handlers,
    address: str,
    threads: int,
    name: str = "",
    identity: Identity | None = None,
    health: str = "",
) -> tuple[grpc.Server, int]:
    """Start a server for `handlers` on `address` and return it with its port.

    handlers: method -> function of the request. A method of bytes gets and returns
        bytes. Raise `WireError` to refuse a call.
    address: "host:port"; port 0 takes a free one. Or "unix:path".
    threads: calls of data handled at the same time; further ones wait. Others have their
        own (methods.THREADS).
    name: as `peer_name` gives it; calls meant for another are refused. "": none are.
    identity: of this process: the connection is encrypted, and takes certificates of the same
        authority only, for the calls that permissions.py permits them.
    health: a further address, without encryption, that answers the health check and nothing
        else; for probes, which have no certificate. Only with an identity.

    Raises OSError if the address cannot be bound, or there are not threads enough.
    """
    guard = _Guard(identity)
    methods_in_parts = [each for each in handlers if each.request is bytes and not each.streaming]
    pools = {
        kind: started_pool(count, f"rpc-{kind.value}")
        for kind, count in THREADS.items()
        if kind in {Threads.STATE, *(method.threads for method in handlers)}
        or (kind == Threads.PARTS and methods_in_parts)
    }
    of_grpc: dict[str, grpc.RpcMethodHandler] = {}

    def add(path: str, make: Any, handler: Callable[..., Any], kind: Threads, read: Any) -> None:
        if kind in pools:
            vars(handler)[POOL] = pools[kind]
        of_grpc[path] = make(handler, request_deserializer=read, response_serializer=serialize)

    for method, handler in handlers.items():
        read = deserializer(method.request)
        if method.streaming:
            make, guarded = grpc.stream_stream_rpc_method_handler, guard.stream(method, handler)
        else:
            make = grpc.stream_unary_rpc_method_handler
            guarded = guard.unary(method, handler, in_parts=False)
        add(method.path, make, guarded, method.threads, read)
        if method in methods_in_parts:
            joined = guard.unary(method, handler, in_parts=True)
            kind = Threads.PARTS if method.threads == Threads.DATA else method.threads
            add(method.path + PARTS_SUFFIX, make, joined, kind, None)
    server = grpc.server(started_pool(threads, "rpc"), options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((_Calls(name, of_grpc), health_handler(pools[Threads.STATE])))
    try:
        if identity is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, identity.server_credentials())
            if health:
                address = health
                server.add_insecure_port(health)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    try:
        server.start()
    except RuntimeError as error:
        raise OSError(f"{NO_THREAD} ({error})") from error
    return server, port
