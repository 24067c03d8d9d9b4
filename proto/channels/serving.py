"""Serving: a gRPC server of handlers, and how their errors go back.

Owns gRPC's threads, refusing calls that were meant for another process, before anything of their
requests is read, and where both planes listen. Does not know what any call means. Reading a request
is receiving.py's; calls that carry arrays are plane/'s.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import grpc

from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.pools import NO_THREAD, started_pool
from shoal.proto.errors import STATUS_CODES, WireError, from_outside, shortened
from shoal.proto.health import POOL, health_handler
from shoal.proto.identity import Caller, Identity, caller_of
from shoal.proto.methods import THREADS, Method, Threads
from shoal.proto.permissions import check_permitted, check_speaker
from shoal.proto.plane.server import BACKLOG, ArrayServer
from shoal.proto.wire.receiving import received
from shoal.proto.wire.transport import (
    ARRAYS_PORT,
    ERROR_METADATA,
    PEER_METADATA,
    SERVER_OPTIONS,
    arrays_address,
    serialize,
    token_of,
)

logger = logging.getLogger(__name__)

PAIRS, LAST_PORT = 50, 65_535
"""Tries to find two free ports, one for gRPC and one for arrays."""

Handlers = Mapping[Method[Any, Any], Callable[[Any], Any]]


def _abort(context: grpc.ServicerContext, error: WireError) -> None:
    message = shortened(error.message)
    detail = pb.ErrorDetail(kind=error.kind, message=message)
    context.set_trailing_metadata(((ERROR_METADATA, detail.SerializeToString()),))
    context.abort(STATUS_CODES[error.kind], message)


def _abort_bug(method: Method[Any, Any], context: grpc.ServicerContext, error: Exception) -> None:
    """Log a handler's error whole, and tell the caller of it. Only while it is handled."""
    logger.exception("%s failed", method.path)
    context.abort(grpc.StatusCode.UNKNOWN, shortened(f"{type(error).__name__}: {error}"))


def _refusal(name: str, metadata: Sequence[tuple[str, str | bytes]]) -> WireError | None:
    """The refusal of a call that was meant for another than `name`; None if it was not."""
    given = next((value for key, value in metadata if key == PEER_METADATA), "")
    meant = given if isinstance(given, str) else given.decode("utf-8", "replace")
    if not name or hmac.compare_digest(meant.encode(), name.encode()):
        return None
    (token, process), (theirs, other) = token_of(name), token_of(meant)
    if hmac.compare_digest(theirs.encode(), token.encode()):
        meant_for = f"for {from_outside(other)}"
    else:
        meant_for = "for another job" if meant else "without a job's token"
    return WireError(pb.WRONG_PEER, f"this is {process}, the call was {meant_for}")


class _Guard:
    """The gRPC-facing forms of handlers: errors translated, bugs logged whole.

    All take their request as gRPC gives a stream of requests: so a thread that waits for one can
    be called off. On the wire one request looks alike either way.
    """

    def __init__(self, identity: Identity | None) -> None:
        """identity: of the process; None: it does not know who calls, and takes every call."""
        self._identity = identity

    def _caller(self, method: Method[Any, Any], context: grpc.ServicerContext) -> Caller | None:
        """The caller; None if that is not known, as this process has no identity.

        Raises WireError(NOT_PERMITTED), which is logged, if the caller may not call `method`.
        """
        if self._identity is None:
            return None
        caller = caller_of(context.auth_context())
        check_permitted(method, self._identity, caller, context.peer())
        return caller

    def unary(self, method: Method[Any, Any], handler: Callable[[Any], Any]) -> Callable[..., Any]:
        """The gRPC handler of a method."""

        def unary(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            faults.before_call()
            try:
                caller = self._caller(method, context)
                request = received(requests, context)
                check_speaker(method, caller, request, context.peer())
                return handler(request)
            except WireError as error:
                _abort(context, error)
            except grpc.RpcError:
                raise  # gRPC's own: the caller is gone
            except Exception as error:
                _abort_bug(method, context, error)

        return unary


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The calls of the process `name`; those meant for another are refused unread."""

    def __init__(
        self, name: str, handlers: Mapping[str, grpc.RpcMethodHandler], refusing: Executor
    ) -> None:
        """handlers: by path. name: "" takes every call. refusing: where calls are refused."""
        self._name = name
        self._handlers = handlers
        self._refusing = refusing

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
    """The address of a server of `serve` on this machine. address, port: as given, and got."""
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


class Server:
    """The servers that `serve` has started: gRPC's, and that of calls that carry arrays, if any."""

    def __init__(
        self, calls: grpc.Server, pools: Sequence[Executor], arrays: ArrayServer | None
    ) -> None:
        """pools: the threads of gRPC's calls, which end with the server."""
        self._calls = calls
        self._pools = pools
        self._arrays = arrays

    def stop(self, grace: float | None) -> threading.Event:
        """Take no call any more; those under way have `grace` seconds. Set once they have ended."""
        ended: threading.Event = self._calls.stop(grace)
        both = threading.Event()

        def wait() -> None:
            if self._arrays is not None:
                self._arrays.stop(grace or 0.0)
            ended.wait()
            for pool in self._pools:
                pool.shutdown(wait=False)
            both.set()

        if grace:
            threading.Thread(target=wait, name="rpc-stop", daemon=True).start()
        else:
            wait()
        return both


def _listeners(address: str) -> Iterator[tuple[str, socket.socket]]:
    """Addresses for gRPC to listen at, each with the socket that listens for arrays then.

    Several only for any free port. Raises OSError.
    """
    if address.startswith("unix:"):
        path = arrays_address(address).removeprefix("unix:")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # as gRPC does with its own
        made = socket.socket(socket.AF_UNIX)
        try:
            made.bind(path)
            made.listen(BACKLOG)
        except BaseException:
            made.close()
            raise
        yield address, made
        return
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(PAIRS if port == "0" else 1):
        wanted = 0 if port == "0" else int(port) + ARRAYS_PORT
        made = socket.create_server((host.strip("[]"), wanted), family=family, backlog=BACKLOG)
        found = made.getsockname()[1]
        if found <= ARRAYS_PORT or found > LAST_PORT:
            made.close()
            continue
        yield f"{host}:{found - ARRAYS_PORT}", made


def serve(
    handlers: Handlers,
    address: str,
    threads: int,
    name: str = "",
    identity: Identity | None = None,
    health: str = "",
    admit: Callable[[Method[Any, Any], int, str], object] = lambda *_: None,
) -> tuple[Server, int]:
    """Start a server for `handlers` on `address` and return it with its port.

    handlers: method -> function of the request. Raise `WireError` to refuse a call. A method of
        the data plane (methods.py) gets bytes as a memoryview, which is valid during the call, and
        returns bytes or frames.Pieces.
    address: "host:port"; port 0 takes a free one. Or "unix:path". Calls of the data plane are
        taken at transport.arrays_address of it.
    threads: calls of workers handled at the same time; further ones wait. Others have their
        own (methods.THREADS), and so have those of the data plane: one a connection.
    name: as `peer_name` gives it; calls meant for another are refused. "": none are.
    identity: of this process: the connection is encrypted, and takes certificates of the same
        authority only, for the calls that permissions.py permits them.
    health: a further address, without encryption, that answers the health check and nothing
        else; for probes, which have no certificate. Only with an identity.
    admit: of a call of the data plane, of the bytes of its request, and who calls: raises
        WireError if it would be refused. Asked before they are received.

    Raises OSError if the address cannot be bound, or there are not threads enough.
    """
    arrays = {method: each for method, each in handlers.items() if method.kind}
    calls = {method: each for method, each in handlers.items() if not method.kind}
    if not arrays:
        server, pools, port = _serve(calls, address, threads, name, identity, health)
        return Server(server, pools, None), port
    failed: OSError | None = None
    for here, listener in _listeners(address):
        try:
            server, pools, port = _serve(calls, here, threads, name, identity, health)
        except OSError as error:
            listener.close()
            failed = error  # the port beside it is another's
            continue
        plane = ArrayServer(arrays, listener, name, identity, admit)
        try:
            plane.start()
        except RuntimeError as error:
            Server(server, pools, None).stop(None)
            listener.close()
            raise OSError(f"{NO_THREAD} ({error})") from error
        return Server(server, pools, plane), port
    raise failed or OSError(f"there are no two free ports for {address}")


def _serve(
    handlers: Handlers,
    address: str,
    threads: int,
    name: str,
    identity: Identity | None,
    health: str,
) -> tuple[grpc.Server, list[Executor], int]:
    """Start gRPC's server, as `serve`; and return the threads of its calls."""
    guard = _Guard(identity)
    pools = {
        kind: started_pool(count, f"rpc-{kind.value}")
        for kind, count in THREADS.items()
        if kind in {Threads.STATE, *(method.threads for method in handlers)}
    }
    of_grpc: dict[str, grpc.RpcMethodHandler] = {}
    for method, handler in handlers.items():
        guarded = guard.unary(method, handler)
        if method.threads in pools:
            vars(guarded)[POOL] = pools[method.threads]
        of_grpc[method.path] = grpc.stream_unary_rpc_method_handler(
            guarded,
            request_deserializer=method.request.FromString,
            response_serializer=serialize,
        )
    others, refusing = started_pool(threads, "rpc"), started_pool(1, "rpc-refusals")
    all_pools: list[Executor] = [*pools.values(), others, refusing]
    server = grpc.server(others, options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (_Calls(name, of_grpc, refusing), health_handler(pools[Threads.STATE]))
    )
    try:
        if identity is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, identity.server_credentials())
            if health:
                address = health
                server.add_insecure_port(health)
    except RuntimeError as error:
        Server(server, all_pools, None).stop(None)
        raise OSError(f"cannot listen on {address}: {error}") from error
    try:
        server.start()
    except RuntimeError as error:
        Server(server, all_pools, None).stop(None)
        raise OSError(f"{NO_THREAD} ({error})") from error
    return server, all_pools, port
