"""Serving and calling: gRPC servers, connections, deadlines, retries, limits.

The one place where gRPC options, deadlines and the retry policy are set. Owns how
a call travels and how an error comes back; does not know what any call means.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError, Message

from shoal.proto import faults, parts
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import STATUS_CODES, PeerUnavailableError, WireError
from shoal.proto.health import health_handler
from shoal.proto.methods import Method, Reply, Request

logger = logging.getLogger(__name__)

MAXIMUM_MESSAGE_BYTES = 1 << 30
"""Largest frame, bytes: far above a batch's rows, far below protobuf's own 2 GiB."""

PARTS_SUFFIX = "Parts"
"""Of the name of a method whose request comes in parts (proto/parts.py)."""

ERROR_METADATA = "shoal-error-bin"

PEER_METADATA = "shoal-peer"
"""Whom a call is meant for, as `peer_name` gives it."""

LABEL_METADATA = "shoal-label-bin"
"""A method's label (methods.py)."""

APART_THREADS = 2
"""Of the methods that are handled apart, whose handlers never wait."""

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAXIMUM_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAXIMUM_MESSAGE_BYTES),
    # A peer whose machine vanished sends no reset: without pings a call would wait
    # for its whole deadline.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Without it a ping is waited for for a minute, whatever keepalive_timeout says.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnecting must be quick: a restarted process is back within seconds, gRPC's
    # default backoff grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A job's processes talk directly; a proxy from the environment only breaks that.
    ("grpc.enable_http_proxy", 0),
    # A pod that was replaced has another address at the same name: gRPC would not ask
    # for it for 30 seconds.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
]

SERVER_OPTIONS: list[tuple[str, int]] = [
    *CHANNEL_OPTIONS[:7],
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # Without it two servers could share one port by mistake and split its calls.
    ("grpc.so_reuseport", 0),
]

DEFAULT_DEADLINE = 60.0
"""Seconds one attempt of a call may take."""

DEFAULT_PATIENCE = 120.0
"""Seconds during which an unreachable peer is tried again."""


def peer_name(token: str, role: str, index: int = 0) -> str:
    """The name of one process of one job, "" without a token.

    Ports are used again: without it a worker could train another job's server, or the
    wrong one of its own. It is no secret and protects from mistakes only.
    """
    return f"{token}/{role}-{index}" if token else ""


RETRYABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})

BACKOFF_FIRST = 0.05
BACKOFF_LIMIT = 2.0


def backoff_seconds(attempt: int) -> float:
    """Seconds to wait before attempt number `attempt` (from 1), with jitter.

    Exponential, so that many callers do not return to a struggling peer at once
    (M. Brooker, "Exponential Backoff And Jitter", 2015).
    """
    pause: float = min(BACKOFF_LIMIT, BACKOFF_FIRST * 2 ** (attempt - 1))
    return random.uniform(0.5, 1.0) * pause


Handlers = Mapping[Method[Any, Any], Callable[[Any], Any]]


def _serialize(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def _deserializer(kind: type) -> Callable[[bytes], Any] | None:
    # None leaves gRPC's bytes as they are.
    return None if kind is bytes else cast(type[Message], kind).FromString


def _abort(context: grpc.ServicerContext, error: WireError) -> None:
    detail = pb.ErrorDetail(kind=error.kind, message=error.message)
    context.set_trailing_metadata(((ERROR_METADATA, detail.SerializeToString()),))
    context.abort(STATUS_CODES[error.kind], error.message)


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
        try:
            _check_peer(name, context)
            if method.label is not None:
                return handler((_label(method.label, context), request))
            return handler(request)
        except WireError as error:
            _abort(context, error)
        except Exception:
            logger.exception("%s failed", method.path)
            raise

    def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            _check_peer(name, context)
            yield from handler(request)
        except WireError as error:
            _abort(context, error)
        except Exception:
            logger.exception("%s failed", method.path)
            raise

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
    threads: calls handled at the same time; further ones wait.
    name: as `peer_name` gives it; calls meant for another are refused. "": none are.

    Raises OSError if the address cannot be bound.
    """
    services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    guarded: Callable[..., Any]
    joined: Callable[..., Any]
    apart: dict[str, ThreadPoolExecutor] = {}
    if any(method.apart for method in handlers):
        # gRPC looks for this name among the attributes of a handler.
        pool = ThreadPoolExecutor(APART_THREADS, thread_name_prefix="rpc-apart")
        apart = {"experimental_thread_pool": pool}
    for method, handler in handlers.items():
        make = (
            grpc.unary_stream_rpc_method_handler
            if method.streaming
            else grpc.unary_unary_rpc_method_handler
        )
        own = services.setdefault(method.service, {})
        guarded = _guard(method, handler, name)
        joined = _joined(guarded)
        if method.apart:
            vars(guarded).update(apart)
            vars(joined).update(apart)
        own[method.name] = make(
            guarded,
            request_deserializer=_deserializer(method.request),
            response_serializer=_serialize,
        )
        if method.request is bytes and not method.streaming:
            own[method.name + PARTS_SUFFIX] = grpc.stream_unary_rpc_method_handler(
                joined, response_serializer=_serialize
            )
    server = grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="rpc"), options=SERVER_OPTIONS
    )
    for service, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_generic_rpc_handlers((health_handler(),))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    server.start()
    return server, port


def _give_up(late: threading.Event, call: grpc.Call) -> None:
    late.set()
    call.cancel()


class Connection:
    """A channel to one peer, shared by threads.

    `call` waits and retries; `start` sends without waiting (for fan-out). A peer
    that cannot be reached is tried again, with backoff, until `patience` seconds
    have passed or `cancelled` is set, so every call made here must be safe to
    repeat.

    address_now: asked before each repetition where the peer is now; None: where it was.
    """

    def __init__(
        self,
        address: str,
        *,
        deadline: float = DEFAULT_DEADLINE,
        patience: float = DEFAULT_PATIENCE,
        cancelled: threading.Event | None = None,
        peer: str = "",
        address_now: Callable[[], str | None] | None = None,
    ) -> None:
        """peer: name of the process that is meant, which refuses the call if it is another."""
        self.address = address
        self._metadata: tuple[tuple[str, str | bytes], ...] = (
            ((PEER_METADATA, peer),) if peer else ()
        )
        self._address_now = address_now
        self._moving = threading.Lock()
        self._left: list[grpc.Channel] = []
        self.deadline = deadline
        self.patience = patience
        self._cancelled = cancelled or threading.Event()
        self._peer = peer
        self._channel = self._channel_to(address)
        self._stubs: dict[str, Any] = {}

    def close(self) -> None:
        """Close the channel; calls under way fail."""
        for channel in (self._channel, *self._left):
            channel.close()

    def _follow(self) -> None:
        """Call the peer where it is now."""
        address = self._address_now() if self._address_now else None
        with self._moving:
            if address is None or address == self.address:
                return
            # Not closed: calls of other threads there are to fail by themselves, as
            # those that may be repeated.
            self._left.append(self._channel)
            self._channel = self._channel_to(address)
            self._stubs = {}
            self.address = address

    def _channel_to(self, address: str) -> grpc.Channel:
        return grpc.insecure_channel(faults.route(address, self._peer), options=CHANNEL_OPTIONS)

    def _send(
        self,
        method: Method[Request, Reply],
        request: Request,
        deadline: float,
        label: Message | None,
    ) -> Any:
        """Send a request, in parts if it is large; returns the call."""
        metadata = self._metadata
        if label is not None:
            metadata = (*metadata, (LABEL_METADATA, label.SerializeToString()))
        if not isinstance(request, bytes) or len(request) <= parts.WHOLE_BYTES:
            return self._stub(method).future(request, timeout=deadline, metadata=metadata)
        path = method.path + PARTS_SUFFIX
        stub = self._stubs.get(path)
        if stub is None:
            stub = self._stubs[path] = self._channel.stream_unary(
                path, response_deserializer=_deserializer(method.reply)
            )
        return stub.future(parts.cut(request), timeout=deadline, metadata=metadata)

    def _stub(self, method: Method[Request, Reply]) -> Any:
        with self._moving:
            channel, stubs = self._channel, self._stubs
        stub = stubs.get(method.path)
        if stub is None:
            make = channel.unary_stream if method.streaming else channel.unary_unary
            stub = stubs[method.path] = make(
                method.path,
                request_serializer=_serialize,
                response_deserializer=_deserializer(method.reply),
            )
        return stub

    def call(
        self,
        method: Method[Request, Reply],
        request: Request,
        *,
        deadline: float | None = None,
        patience: float | None = None,
    ) -> Reply:
        """Send `request` and wait for the answer.

        deadline, patience: seconds, as the connection's own where None.

        Raises WireError if the peer refuses, PeerUnavailableError if it cannot be
        reached in time.
        """
        return self.finish(
            method, request, self.start(method, request, deadline), deadline, patience
        )

    def start(
        self,
        method: Method[Request, Reply],
        request: Request,
        deadline: float | None = None,
        label: Message | None = None,
    ) -> Future[Reply]:
        """Send `request` once, without waiting; `finish` waits and retries.

        label: for a method that has one. Raises PeerUnavailableError if the connection is
        closed.
        """
        try:
            future = self._send(method, request, deadline or self.deadline, label)
        except ValueError as error:  # gRPC's for a closed channel
            raise PeerUnavailableError(self.address, method.name, str(error)) from error
        return cast("Future[Reply]", future)

    def result(self, method: Method[Request, Reply], future: Future[Reply]) -> Reply:
        """Wait for a call begun with `start`, without a retry. Raises as `call` does."""
        try:
            return future.result()
        except grpc.FutureCancelledError as error:
            raise PeerUnavailableError(self.address, method.name, "cancelled") from error
        except grpc.RpcError as error:
            raise self._translate(method, error) from error

    def finish(
        self,
        method: Method[Request, Reply],
        request: Request,
        first: Future[Reply],
        deadline: float | None = None,
        patience: float | None = None,
        label: Message | None = None,
    ) -> Reply:
        """Wait for a call begun with `start`, retrying as `call` does."""
        give_up = time.monotonic() + (self.patience if patience is None else patience)
        attempt = 1
        future = first
        while True:
            try:
                return future.result()
            except grpc.FutureCancelledError as error:
                raise PeerUnavailableError(self.address, method.name, "cancelled") from error
            except grpc.RpcError as error:
                self._retry_or_raise(method, error, give_up, attempt)
            attempt += 1
            future = self.start(method, request, deadline, label)

    def stream(self, method: Method[Request, Reply], request: Request) -> Iterator[Reply]:
        """Send `request` and yield the streamed answers, without retry.

        The deadline holds for the wait for each answer: a whole stream may take as long
        as it is long, and what the caller does between two answers does not count.

        Raises as `call` does.
        """
        try:
            answers = self._stub(method)(request, metadata=self._metadata)
        except ValueError as error:  # gRPC's for a closed channel
            raise PeerUnavailableError(self.address, method.name, str(error)) from error
        try:
            while True:
                # gRPC's own timeout would be one of the whole stream.
                late = threading.Event()
                timer = threading.Timer(self.deadline, _give_up, (late, answers))
                timer.daemon = True
                timer.start()
                try:
                    answer = next(answers, None)
                except grpc.RpcError as error:
                    if late.is_set():
                        reason = f"no answer for {self.deadline:g} s"
                        raise PeerUnavailableError(self.address, method.name, reason) from error
                    raise self._translate(method, error) from error
                finally:
                    timer.cancel()
                if answer is None:
                    return
                yield answer
        finally:
            answers.cancel()  # a caller that stops early leaves no call behind

    def _retry_or_raise(
        self, method: Method[Any, Any], error: grpc.RpcError, give_up: float, attempt: int
    ) -> None:
        translated = self._translate(method, error)
        retryable = error.code() in RETRYABLE
        if isinstance(translated, WireError):
            # A peer that can move has left this address to the one that refuses.
            moved = translated.kind == pb.WRONG_PEER and self._address_now is not None
            retryable = moved or (retryable and translated.kind == pb.NOT_READY)
        pause = backoff_seconds(attempt)
        if not retryable or time.monotonic() + pause > give_up:
            raise translated from error
        if self._cancelled.wait(pause):
            raise PeerUnavailableError(self.address, method.name, "cancelled") from error
        self._follow()

    def _translate(self, method: Method[Any, Any], error: grpc.RpcError) -> Exception:
        for key, value in error.trailing_metadata() or ():
            if key == ERROR_METADATA:
                detail = pb.ErrorDetail.FromString(value)
                return WireError(detail.kind, detail.message)
        if error.code() in RETRYABLE or error.code() == grpc.StatusCode.CANCELLED:
            return PeerUnavailableError(self.address, method.name, error.details() or "no answer")
        return RuntimeError(
            f"{method.name} at {self.address} failed: {error.code().name}: {error.details()}"
        )
