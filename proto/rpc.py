"""Calling: a connection to one peer, with its deadlines and retries.

The one place where deadlines and the retry policy are set. Owns which errors are tried
again, and what the others become; does not know what any call means. Waiting together for
a peer that is away is circuit.py's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, cast
from weakref import WeakSet

import grpc
from google.protobuf.message import Message

from shoal.proto import faults, parts
from shoal.proto import shoal_pb2 as pb
from shoal.proto.backoff import BACKOFF_LIMIT, backoff_seconds
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.handshakes import explained
from shoal.proto.identity import Identity
from shoal.proto.methods import Method, Reply, Request
from shoal.proto.transport import (
    ERROR_METADATA,
    LABEL_METADATA,
    PARTS_SUFFIX,
    PEER_METADATA,
    deserializer,
    open_channel,
    serialize,
)
from shoal.proto.watch import WATCH

DEFAULT_DEADLINE = 60.0
"""Seconds one attempt of a call may take."""

DEFAULT_PATIENCE = 120.0
"""Seconds during which an unreachable peer is tried again."""

RETRYABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        # By the peer, which ends or has waited too long for the rest of a request: what is
        # cancelled here is another exception.
        grpc.StatusCode.CANCELLED,
    }
)


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
    until_ready: a peer that answers NOT_READY is there, and is waited for as long as it does; the
    patience is then for its silence.
    """

    def __init__(
        self,
        address: str,
        *,
        deadline: float = DEFAULT_DEADLINE,
        patience: float = DEFAULT_PATIENCE,
        cancelled: threading.Event | None = None,
        peer: str = "",
        identity: Identity | None = None,
        address_now: Callable[[], str | None] | None = None,
        until_ready: bool = False,
    ) -> None:
        """peer: name of the process that is meant, which refuses the call if it is another.

        identity: of this process; None: without encryption, and the peer does not know who calls.
        """
        self.address = address
        self._metadata: tuple[tuple[str, str | bytes], ...] = (
            ((PEER_METADATA, peer),) if peer else ()
        )
        self._address_now = address_now
        self._until_ready = until_ready
        self._moving = threading.Lock()
        # Channels to where the peer was, with the calls that were made there.
        self._left: list[tuple[grpc.Channel, WeakSet[Any]]] = []
        self._calls: WeakSet[Any] = WeakSet()
        self.deadline = deadline
        self.patience = patience
        self._cancelled = cancelled or threading.Event()
        self._peer = peer
        self._identity = identity
        self._channel = self._channel_to(address)
        self._stubs: dict[str, Any] = {}

    def close(self) -> None:
        """Close the channel; calls under way fail."""
        with self._moving:
            channels = [self._channel, *(channel for channel, _ in self._left)]
        for channel in channels:
            channel.close()

    def _follow(self) -> None:
        """Call the peer where it is now."""
        address = self._address_now() if self._address_now else None
        with self._moving:
            if address is None or address == self.address:
                return
            # Not closed while calls of other threads are there, which are to fail by themselves,
            # as those that may be repeated: at the first move after they have ended.
            ended = [each for each in self._left if all(call.done() for call in each[1])]
            self._left = [each for each in self._left if each not in ended]
            self._left.append((self._channel, self._calls))
            self._channel, self._calls = self._channel_to(address), WeakSet()
            self._stubs = {}
            self.address = address
        for channel, _ in ended:
            channel.close()

    def _channel_to(self, address: str) -> grpc.Channel:
        return open_channel(faults.route(address, self._peer), self._peer, self._identity)

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
        if isinstance(request, bytes) and len(request) > parts.WHOLE_BYTES:
            stub, calls = self._stub(method, in_parts=True)
            call = stub.future(parts.cut(request), timeout=deadline, metadata=metadata)
        else:
            stub, calls = self._stub(method)
            call = stub.future(request, timeout=deadline, metadata=metadata)
        self._note(call, calls)
        return call

    def _stub(
        self, method: Method[Request, Reply], *, in_parts: bool = False
    ) -> tuple[Any, WeakSet[Any]]:
        """What makes a call to where the peer is now, and where the call is to be noted."""
        with self._moving:
            channel, stubs, calls = self._channel, self._stubs, self._calls
        path = method.path + PARTS_SUFFIX if in_parts else method.path
        stub = stubs.get(path)
        if stub is None:
            read = deserializer(method.reply)
            if in_parts:
                stub = channel.stream_unary(path, response_deserializer=read)
            else:
                make = channel.unary_stream if method.streaming else channel.unary_unary
                stub = make(path, request_serializer=serialize, response_deserializer=read)
            stubs[path] = stub
        return stub, calls

    def _note(self, call: Any, calls: WeakSet[Any]) -> None:
        with self._moving:  # who looks through them must not find them changing
            calls.add(call)

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
                if self._until_ready and patience is None and _not_ready(error):
                    give_up = time.monotonic() + BACKOFF_LIMIT + self.patience
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
            stub, calls = self._stub(method)
            answers = stub(request, metadata=self._metadata)
            self._note(answers, calls)
        except ValueError as error:  # gRPC's for a closed channel
            raise PeerUnavailableError(self.address, method.name, str(error)) from error
        try:
            while True:
                # gRPC's own timeout would be one of the whole stream.
                late = threading.Event()
                try:
                    with WATCH.within(self.deadline, partial(_give_up, late, answers)):
                        answer = next(answers, None)
                except grpc.RpcError as error:
                    if late.is_set():
                        reason = f"no answer for {self.deadline:g} s"
                        raise PeerUnavailableError(self.address, method.name, reason) from error
                    raise self._translate(method, error) from error
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
        if (refusal := _refusal(error)) is not None:
            return refusal
        if error.code() in RETRYABLE:
            reason = explained(error.details() or "no answer", self._identity)
            return PeerUnavailableError(self.address, method.name, reason)
        return RuntimeError(
            f"{method.name} at {self.address} failed: {error.code().name}: {error.details()}"
        )


def _refusal(error: grpc.RpcError) -> WireError | None:
    """What the peer itself has said; None where it was not reached, or broke."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA:
            detail = pb.ErrorDetail.FromString(value)
            return WireError(detail.kind, detail.message)
    return None


def _not_ready(error: grpc.RpcError) -> bool:
    refusal = _refusal(error)
    return refusal is not None and refusal.kind == pb.NOT_READY
