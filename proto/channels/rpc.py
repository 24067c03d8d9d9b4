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
from typing import Any, cast
from weakref import WeakSet

import grpc
from google.protobuf.message import Message

from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import CallError, PeerUnavailableError, WireError
from shoal.proto.identity import Identity
from shoal.proto.methods import Method, Reply, Request
from shoal.proto.plane.client import Exchange, Pool, Take
from shoal.proto.plane.link import Link
from shoal.proto.wire.backoff import BACKOFF_LIMIT, backoff_seconds
from shoal.proto.wire.handshakes import explained
from shoal.proto.wire.transport import ERROR_METADATA, PEER_METADATA, open_channel, serialize

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


class CancelledError(PeerUnavailableError):
    """The call was given up here: it is not repeated."""


class Connection:
    """The way to one peer, shared by threads: a channel of gRPC, and the data plane.

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
        # The last one is for new calls.
        self._pools: list[Pool] = []
        self._closed = False

    def close(self) -> None:
        """Close the connection; calls under way fail."""
        with self._moving:
            self._closed = True
            channels = [self._channel, *(channel for channel, _ in self._left)]
            pools, self._pools = self._pools, []
        for each in (*channels, *pools):
            each.close()

    def _pool(self) -> Pool:
        """The connections of the data plane to where the peer is now; made at the first call."""
        with self._moving:
            if not self._pools:
                self._pools.append(Pool(self.address, self._peer, self._identity))
            return self._pools[-1]

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
            for pool in self._pools:
                pool.retire()  # exchanges of other threads end by themselves, too
            self._pools = [each for each in self._pools if each.used]
            self._pools.append(Pool(address, self._peer, self._identity))
            self.address = address
        for channel, _ in ended:
            channel.close()

    def _channel_to(self, address: str) -> grpc.Channel:
        return open_channel(faults.route(address, self._peer), self._peer, self._identity)

    def _stub(self, method: Method[Request, Reply]) -> tuple[Any, WeakSet[Any]]:
        """The stub for a call to the peer's present place, and the set that is to note the call."""
        with self._moving:
            channel, stubs, calls = self._channel, self._stubs, self._calls
        stub = stubs.get(method.path)
        if stub is None:
            read = cast(type[Message], method.reply).FromString
            stub = channel.unary_unary(
                method.path, request_serializer=serialize, response_deserializer=read
            )
            stubs[method.path] = stub
        return stub, calls

    def call(
        self,
        method: Method[Request, Reply],
        request: Request,
        *,
        deadline: float | None = None,
        patience: float | None = None,
        label: Message | None = None,
        take: Take | None = None,
    ) -> Reply:
        """Send `request` and wait for the answer.

        deadline, patience: seconds, as the connection's own where None. label: for a method that
        has one. take: as `result` takes it.

        Raises WireError if the peer refuses, PeerUnavailableError if it cannot be
        reached in time.
        """
        first = self.start(method, request, deadline, label)
        return self.finish(method, request, first, deadline, patience, label, take)

    def finish(
        self,
        method: Method[Request, Reply],
        request: Request,
        first: Future[Reply] | Exchange[Reply],
        deadline: float | None = None,
        patience: float | None = None,
        label: Message | None = None,
        take: Take | None = None,
    ) -> Reply:
        """Wait for a call begun with `start`, repeating it as `call` does."""
        give_up = time.monotonic() + (self.patience if patience is None else patience)
        attempt = 1
        future = first
        while True:
            try:
                return self.result(method, future, take)
            except CallError as error:
                not_ready = isinstance(error, WireError) and error.kind == pb.NOT_READY
                if self._until_ready and patience is None and not_ready:
                    give_up = time.monotonic() + BACKOFF_LIMIT + self.patience
                self._wait_or_raise(method, error, give_up, attempt)
            attempt += 1
            future = self.start(method, request, deadline, label)

    def start(
        self,
        method: Method[Request, Reply],
        request: Request,
        deadline: float | None = None,
        label: Message | None = None,
    ) -> Future[Reply] | Exchange[Reply]:
        """Send `request` once, without waiting for the answer; `result` does.

        label: for a method that has one. Raises PeerUnavailableError if the connection is
        closed.
        """
        if method.kind:
            pool = pools[-1] if (pools := self._pools) else self._pool()
            if self._closed:
                raise PeerUnavailableError(self.address, method.name, "the connection is closed")
            return pool.begin(method, request, deadline or self.deadline, label)
        stub, calls = self._stub(method)
        try:
            future = stub.future(
                request, timeout=deadline or self.deadline, metadata=self._metadata
            )
        except ValueError as error:  # gRPC's for a closed channel
            raise PeerUnavailableError(self.address, method.name, str(error)) from error
        with self._moving:  # who looks through them must not find them changing
            calls.add(future)
        return cast("Future[Reply]", future)

    def lend(self) -> Lent | None:
        """An idle connection of the data plane, as Pool.lend; None also once this is closed."""
        pools = self._pools
        if not pools or self._closed:
            return None
        link = pools[-1].lend()
        return None if link is None else (self, pools[-1], link)

    def result(
        self,
        method: Method[Request, Reply],
        future: Future[Reply] | Exchange[Reply],
        take: Take | None = None,
    ) -> Reply:
        """Wait for a call begun with `start`, without a retry. Raises as `call` does.

        take: reads the answer of a call on the data plane while it is received; what it returns is
        the result. By default it is parsed, or left as bytes.
        """
        if isinstance(future, Exchange):
            return future.result(take)
        try:
            return future.result()
        except grpc.FutureCancelledError as error:
            raise CancelledError(self.address, method.name, "cancelled") from error
        except grpc.RpcError as error:
            raise self._translate(method, error) from error

    def stream(self, method: Method[Request, Reply], request: Request) -> Iterator[Reply]:
        """Send `request`, once the first is asked for, and yield the answers, without retry.

        The deadline holds for the wait for each answer: a whole stream may take as long
        as it is long, and what the caller does between two answers does not count.

        Raises as `call` does.
        """
        exchange = self.start(method, request)
        assert isinstance(exchange, Exchange), f"{method.name} is no stream"
        yield from exchange.parts()

    def _wait_or_raise(
        self, method: Method[Any, Any], error: CallError, give_up: float, attempt: int
    ) -> None:
        """Wait before a call is repeated; raises `error` if it is not to be."""
        retryable = isinstance(error, PeerUnavailableError)
        if isinstance(error, WireError):
            # A peer that can move has left this address to the one that refuses.
            moved = error.kind == pb.WRONG_PEER and self._address_now is not None
            retryable = moved or error.kind == pb.NOT_READY
        pause = backoff_seconds(attempt)
        retryable = retryable and not isinstance(error, CancelledError)
        if not retryable or time.monotonic() + pause > give_up:
            raise error
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


Lent = tuple[Connection, Pool, Link]
"""A connection of the data plane that was lent, behind those to whom it belongs."""


def _refusal(error: grpc.RpcError) -> WireError | None:
    """The peer's own refusal; None if it was not reached, or broke."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA:
            detail = pb.ErrorDetail.FromString(value)
            return WireError(detail.kind, detail.message)
    return None
