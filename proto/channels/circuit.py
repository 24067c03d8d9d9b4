"""A connection to one server that may go away and come back, at another address even.

Owns the circuit: closed while the server answers, open from the first call that cannot
reach it, or that it does not take yet, until one gets through again. While it is open one caller
at a time asks, with growing pauses and in few bytes, whether its own call would be taken, and only
then repeats it; the others wait for what comes of it. So a server that starts again is not met by
every thread of every worker at once, and one without room is not sent the same frame again and
again. One that is known to be coming is waited for without limit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic

from google.protobuf.message import Message

from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import DEFAULT_DEADLINE, DEFAULT_PATIENCE, Connection, Lent
from shoal.proto.errors import (
    BrokenStreamError,
    CallError,
    PeerUnavailableError,
    ServerAwayError,
    WireError,
)
from shoal.proto.identity import Identity
from shoal.proto.methods import READY, Method, Reply, Request
from shoal.proto.plane.client import Exchange, Take
from shoal.proto.wire.backoff import BACKOFF_FIRST, backoff_seconds

logger = logging.getLogger(__name__)

AWAY = frozenset({pb.NOT_READY, pb.WRONG_PEER})
"""Refusals that mean: the server is not there (yet). Another job's process may have taken
its port meanwhile."""


REFUSED_FIRST = 0.004
"""Seconds before the first question whether a call is taken that a server has refused."""


@dataclass
class Attempt(Generic[Reply]):
    """A call that was begun: where, and its answer to come; both None if it has to wait."""

    connection: Connection | None
    future: Future[Reply] | Exchange[Reply] | None


class Circuit:
    """Calls to one server, shared by threads. Every call made here must be safe to repeat.

    patience: seconds for which the server may be out of reach where it is said to be, until calls
        fail. Time in which it says itself that it is not ready, or in which nobody can say where
        it is, as it is being started, does not count.
    """

    def __init__(
        self,
        what: str,
        locate: Callable[[], str],
        address: str,
        *,
        peer: str = "",
        identity: Identity | None = None,
        patience: float = DEFAULT_PATIENCE,
        deadline: float = DEFAULT_DEADLINE,
        cancelled: threading.Event | None = None,
        flag: str = "",
        server: int | None = None,
        caller: pb.PushIdentity | None = None,
    ) -> None:
        """what: the server in words. flag: the one that sets the patience. For errors.

        server: its index, for errors too. peer, identity: as Connection takes them.
        caller: the worker that calls, by which the server says whether it would take a push.
        locate: where the server is now; asked before each try while it is away. Raises
            WireError or PeerUnavailableError if that is not known: then it is coming; but
            STALE_ROUTING if it will not come any more, which calls raise then.
        """
        self._what = what
        self._locate = locate
        self._peer = peer
        self._identity = identity
        self._patience = patience
        self._deadline = deadline
        self._cancelled = cancelled or threading.Event()
        self._closed = False
        self._flag = flag
        self._server = server
        self._caller = caller
        self._connection = self._connect(address)
        self._changed = threading.Condition()
        self._away_since: float | None = None
        self._missed_since = 0.0
        self._coming = False
        # Of the calls that it does not take, the name; "" where it is not reached at all.
        self._refused = ""
        self._tries = 0
        self._trying = False

    @property
    def address(self) -> str:
        """The last known address of the server."""
        return self._connection.address

    @property
    def away(self) -> bool:
        """True if calls wait for the server."""
        return self._away_since is not None

    def close(self) -> None:
        """Close the connection; calls under way fail, and so does every later one."""
        with self._changed:
            self._closed = True
            connection = self._connection
            self._changed.notify_all()
        connection.close()

    def _connect(self, address: str) -> Connection:
        return Connection(
            address,
            deadline=self._deadline,
            patience=0.0,
            peer=self._peer,
            identity=self._identity,
        )

    # ------------------------------------------------------------ calls

    def call(self, method: Method[Request, Reply], request: Request) -> Reply:
        """Send `request` and wait for the answer, and for the server where it is away.

        Raises WireError if it refuses, ServerAwayError if it stays away for longer than
        the patience, PeerUnavailableError if the waiting is cancelled or this is closed.
        """
        return self.finish(method, request, self.start(method, request))

    def start(self, method: Method[Request, Reply], request: Request) -> Attempt[Reply]:
        """Send `request` without waiting, unless the server is away; then `finish` sends it."""
        # Without the lock, as each call of each step does it: at worst the connection is closed
        # by who opens the circuit in this moment, and the call waits with all others.
        if self._waits(method):
            return Attempt(None, None)
        return self._send(method, request, self._connection)

    def _waits(self, method: Method[Any, Any]) -> bool:
        """True if calls of this kind wait: all do, unless the server takes all kinds but one."""
        return self._away_since is not None and self._refused in ("", method.name)

    def finish(
        self,
        method: Method[Request, Reply],
        request: Request,
        attempt: Attempt[Reply],
        take: Take | None = None,
    ) -> Reply:
        """Wait for a call begun with `start`, repeating it as `call` does.

        take: as Connection.result takes it; begun anew with each repetition.
        """
        while (answer := self._collect(method, attempt, take)) is None:
            with self._turn(method) as mine:
                if mine and self._takes(method, request):
                    attempt = self._send(method, request, self._connection)
                    if (answer := self._collect(method, attempt, take)) is not None:
                        return answer
            attempt = self.start(method, request)
        return answer

    def lend(self, method: Method[Any, Any]) -> Lent | None:
        """A connection for an exchange by its number, if the server is there and has one idle."""
        if self._away_since is not None and self._waits(method):
            return None
        return self._connection.lend()

    @staticmethod
    def was_answered(method: Method[Any, Reply], attempt: Attempt[Reply]) -> bool:
        """Wait for a call begun with `start`; True if it was answered, without a refusal."""
        if attempt.connection is None or attempt.future is None:
            return False
        try:
            attempt.connection.result(method, attempt.future)
        except (CallError, RuntimeError):
            return False
        return True

    def _takes(self, method: Method[Any, Any], request: Any) -> bool:
        """True if the server, where it is now, would take this call. Ask only in turn."""
        connection = self._move()
        size = request.ByteSize() if isinstance(request, Message) else len(request)
        probe = pb.ReadyRequest(method=method.name, bytes=size, caller=self._caller)
        try:
            connection.call(READY, probe, patience=0.0)
        except CallError as error:
            self._failed(connection, error, method)
            return False
        return True

    def stream(self, method: Method[Request, Reply], request: Request) -> Iterator[Reply]:
        """Send `request` and yield the streamed answers.

        Raises as `call` does, and BrokenStreamError if the server goes away after its first answer:
        what was yielded cannot be taken back.
        """
        while True:
            with self._turn(method) as mine:
                connection = self._move() if mine else self._connection
                answers = connection.stream(method, request)
                try:
                    first = next(answers, None)
                except CallError as error:
                    self._failed(connection, error, method)
                    continue
                self._answered(connection, method)
            break
        if first is None:
            return
        yield first
        try:
            yield from answers
        except PeerUnavailableError as error:
            raise BrokenStreamError(error.address, error.method, error.reason) from error

    def _send(
        self, method: Method[Request, Reply], request: Request, connection: Connection
    ) -> Attempt[Reply]:
        try:
            return Attempt(connection, connection.start(method, request))
        except PeerUnavailableError:
            return Attempt(None, None)  # closed in this moment, as the server moved

    def _collect(
        self, method: Method[Request, Reply], attempt: Attempt[Reply], take: Take | None = None
    ) -> Reply | None:
        """The answer of an attempt; None if there was none, or none that counts."""
        connection, future = attempt.connection, attempt.future
        if connection is None or future is None:
            return None
        try:
            answer = connection.result(method, future, take)
        except CallError as error:
            self._failed(connection, error, method)
            return None
        self._answered(connection, method)
        return answer

    # ------------------------------------------------------------ the circuit

    def _answered(self, connection: Connection, method: Method[Any, Any]) -> None:
        if self._away_since is None:
            return  # as nearly always; who opens the circuit in this moment comes after this answer
        with self._changed:
            if self._away_since is None or connection is not self._connection:
                return
            if self._refused not in ("", method.name):
                return  # it takes calls of this kind, and others not yet
            away = time.monotonic() - self._away_since
            self._away_since = None
            self._changed.notify_all()
        logger.info("%s is back after %.1f s, at %s", self._what, away, connection.address)

    def _failed(
        self,
        connection: Connection,
        error: CallError,
        method: Method[Any, Any],
    ) -> None:
        """Open the circuit; raises if it has been open for too long.

        Raises `error` if it is a refusal of a server that is there.
        """
        if isinstance(error, WireError) and error.kind not in AWAY:
            self._answered(connection, method)
            raise error
        self._check_cancelled(error)
        with self._changed:
            if connection is not self._connection:
                return  # it has moved since
            now = time.monotonic()
            if self._away_since is None:
                self._away_since = self._missed_since = now
                self._tries = 0
                logger.warning("%s is away, waiting for it: %s", self._what, error)
            here = isinstance(error, WireError) and error.kind == pb.NOT_READY
            self._refused = method.name if here else ""
            if self._coming or here:
                self._missed_since = now
            # After a failed try and not before one: whoever was itself stopped for a
            # while gets the chance to find the server there.
            missed = now - self._missed_since
        if missed > self._patience:
            raise ServerAwayError(
                f"{self._what} has been out of reach for {missed:.0f} s, longer than "
                f"{self._flag or 'the patience'} ({self._patience:g}); its log says why. "
                f"The last attempt: {error}",
                self._server,
            ) from error

    @contextmanager
    def _turn(self, method: Method[Any, Any]) -> Iterator[bool]:
        """Enter once the server is there (False), or it is the caller's turn to try (True)."""
        with self._changed:
            self._check_closed()
            while self._waits(method) and self._trying:
                # In slices: nobody notifies when the waiting is cancelled.
                self._changed.wait(0.2)
                self._check_cancelled()
            mine = self._waits(method)
            self._trying |= mine
        if not mine:
            yield False
            return
        try:
            self._tries += 1  # by the one whose turn it is, so without the lock
            # One that answers, and refuses for the moment, is asked in a few milliseconds.
            first = REFUSED_FIRST if self._refused else BACKOFF_FIRST
            if self._cancelled.wait(backoff_seconds(self._tries, first)):
                self._check_cancelled()
            yield True
        finally:
            with self._changed:
                self._trying = False
                self._changed.notify_all()

    def _check_closed(self, cause: Exception | None = None) -> None:
        if self._closed:
            raise PeerUnavailableError(self.address, self._what, "closed") from cause

    def _check_cancelled(self, cause: Exception | None = None) -> None:
        self._check_closed(cause)
        if self._cancelled.is_set():
            raise PeerUnavailableError(self.address, self._what, "cancelled") from cause

    def _move(self) -> Connection:
        """The connection to where the server is now. Only by whose turn it is."""
        old = self._connection
        try:
            address = self._locate()
        except CallError as error:
            if isinstance(error, WireError) and error.kind == pb.STALE_ROUTING:
                raise  # nowhere any more
            logger.debug("where %s is now is not known: %s", self._what, error)
            self._coming = True
            return old
        self._coming = False
        if address == old.address and self._refused:
            return old
        # Also to the same address, which may be a name: gRPC looks seldom for one that it has not
        # found, and would find a server late that is back.
        with self._changed:
            self._check_closed()  # nobody would close a connection made after `close`
            self._connection = self._connect(address)
        old.close()
        return self._connection
