"""A log that is kept in the memory of another server, the next one.

Owns the calls. What goes together in one is groups.py's, what the other server does with them
peer_store.py's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError, PeerUnavailableError, WireError
from shoal.proto.identity import Identity
from shoal.proto.methods import Method, Reply, Request
from shoal.ps.update_log.batches import unpacked
from shoal.ps.update_log.groups import Group, Groups
from shoal.ps.update_log.peer_store import ENTRY_BYTES
from shoal.ps.update_log.sinks import Entries, LogLostError, LogTakenError, Standing, TakenLog

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

APPEND_SECONDS = 10.0
"""Most that a push waits for a peer that is there and does not answer, from being handed on."""

LEAST_SECONDS = 0.1
"""Of that, for the call of a push that waited for the one before."""

APPEND_SHARE = 0.25
"""Of server_timeout_seconds, if that is less: its worker is to be answered long before."""

APPEND_PATIENCE = 0.5
"""Seconds to repeat what a broken connection may have lost. A peer that has died cannot be
back so soon; then the push is answered without."""

CALL_DEADLINE = 5.0
"""Seconds; pushes wait for some of these calls."""


class _Writing:
    """One log as it is written: its entries, over one connection, in groups.

    A thread of its own sends them, as long as the log is there: so the frames of a group are not
    touched any more once those whose entries they are have been answered. seconds: as
    APPEND_SECONDS. translated: makes errors of the wire those of a log. lost: told that the log is.
    """

    def __init__(
        self,
        log: str,
        connection: Connection,
        seconds: float,
        translated: Callable[[Callable[[], pb.AppendLogReply]], pb.AppendLogReply],
        lost: Callable[[Connection], None],
    ) -> None:
        self.log = log
        self._connection = connection
        self._seconds = seconds
        self._translated = translated
        self._lost = lost
        self._groups = Groups()
        try:
            threading.Thread(target=self._send, name="log-sending", daemon=True).start()
        except RuntimeError as error:  # there is no thread left
            self._groups.lose(self._as_lost(error))

    def append(self, entry: pb.LogEntry, frame: bytes | memoryview) -> Callable[[], None]:
        return self._groups.add(entry, frame, time.monotonic()).result

    def end(self) -> None:
        """Send nothing any more, once what is under way has ended."""
        self._groups.lose(LogLostError("another one was begun, or this server ends"))

    def _send(self) -> None:
        try:
            while (group := self._groups.next()) is not None:
                self._groups.answered(group, self._kept(group))
        except BaseException as error:  # those who wait must hear of any
            self._groups.lose(self._as_lost(error))
            self._lost(self._connection)

    def _kept(self, group: Group) -> int:
        """Send a group and wait until it is kept; repeat what may have been lost on the way."""
        left = max(LEAST_SECONDS, group.since + self._seconds - time.monotonic())
        reply = self._translated(
            lambda: self._connection.call(
                methods.APPEND_LOG,
                group.body(),
                deadline=left,
                patience=APPEND_PATIENCE,
                label=group.label,
            )
        )
        return reply.position

    def _as_lost(self, error: BaseException) -> Exception:
        if isinstance(error, (LogLostError, LogTakenError)):
            return error
        logger.info("the log %s: %r", self.log, error)
        return LogLostError(f"its keeper was not reached: {error}")


class PeerSink:
    """The log of server `server` at the server that keeps it by the routing table.

    keeper: its index, of the moment. peer: a server's name, as `peer_name` gives it. locate: where
        a server is. holder: where the keeper is that has a log to take; "" if there is none, as the
        master knows it. Either raises WireError, PeerUnavailableError. server_timeout_seconds:
        after which this server, if it answers nothing, is taken for dead. identity: of this server.
    """

    def __init__(
        self,
        server: int,
        incarnation: int,
        keeper: Callable[[], int],
        peer: Callable[[int], str],
        locate: Callable[[int], str],
        holder: Callable[[], str],
        retry_seconds: float,
        server_timeout_seconds: float,
        identity: Identity | None = None,
    ) -> None:
        self._append_seconds = min(APPEND_SECONDS, APPEND_SHARE * server_timeout_seconds)
        self.retry_seconds = retry_seconds
        self.entry_bytes = ENTRY_BYTES
        self.keeps_moves = False
        self._server = server
        self._incarnation = incarnation
        self._keeper = keeper
        self._peer = peer
        self._identity = identity
        self._locate = locate
        self._holder = holder
        # Of the threads that find it broken, the first closes it.
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._writing: _Writing | None = None

    def clear(self) -> None:
        """See Sink. The servers of earlier runs have ended, and their memory with them."""

    def reach(self) -> None:
        """See Sink."""
        self._connect()
        try:
            self.check()
        except LogLostError as error:
            if not _has_none(error):
                raise

    def begin(self, base: pb.LogBase) -> None:
        """See Sink."""
        connection = self._connect()
        self._call(connection, methods.BEGIN_LOG, pb.BeginLogRequest(base=base))
        self._write(base.log, connection)

    def append(self, entry: pb.LogEntry, frame: bytes | memoryview) -> Callable[[], None]:
        """See Sink."""
        writing = self._writing
        assert writing is not None, "no log was begun"
        if writing.log != entry.log:
            raise LogLostError("another one was begun")
        return writing.append(entry, frame)

    def _write(self, log: str, connection: Connection) -> None:
        if self._writing is not None:
            self._writing.end()
        self._writing = _Writing(
            log, connection, self._append_seconds, self._translated, self._leave
        )

    def mark(self, standing: Standing) -> None:
        """See Sink."""

    def drop(self, log: str, step: int, standing: Standing, mark: None) -> None:
        """See Sink."""
        del mark
        applied, update = standing.applied, standing.update
        self._drop(pb.DropLogRequest(log=log, step=step, applied=applied, update=update))

    def check(self) -> None:
        """See Sink."""
        self._drop(pb.DropLogRequest(log=self._writing.log if self._writing else ""))

    def _drop(self, request: pb.DropLogRequest) -> None:
        request.server, request.incarnation = self._server, self._incarnation
        self._call(self._connection or self._connect(), methods.DROP_LOG, request)

    def take(self) -> TakenLog | None:
        """See Sink."""
        try:
            address = self._holder()
        except CallError as error:
            raise LogLostError(f"the master was not reached: {error}") from error
        if not address:
            return None
        connection = self._connection_to(address)
        request = pb.TakeLogRequest(server=self._server, incarnation=self._incarnation)
        stream = connection.stream(methods.TAKE_LOG, request)
        first = self._over(connection, lambda: next(stream, b""))
        if not first:
            return None
        return TakenLog(pb.LogBase.FromString(bytes(first)), self._entries(connection, stream))

    def adopt(self, base: pb.LogBase, step: int, standing: Standing) -> None:
        """See Sink."""
        assert self._connection is not None, "no log was taken"
        self._write(base.log, self._connection)
        if step:
            self.drop(base.log, step, standing, None)

    def close(self) -> None:
        """See Sink."""
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.close()
        if self._writing is not None:
            self._writing.end()

    def _connect(self) -> Connection:
        """The connection to where the peer is now."""
        try:
            return self._connection_to(self._locate(self._keeper()))
        except CallError as error:
            raise LogLostError(f"where it is is not known: {error}") from error

    def _connection_to(self, address: str) -> Connection:
        with self._lock:
            old = self._connection
            if old is not None and old.address == address:
                return old
            made = self._connection = Connection(
                address,
                deadline=CALL_DEADLINE,
                patience=0.0,
                peer=self._peer(self._keeper()),
                identity=self._identity,
            )
        if old is not None:
            old.close()
        return made

    def _leave(self, connection: Connection) -> None:
        """A connection is broken: the next try makes another, as the peer may have been replaced.

        Also at the same address, which may be a name that gRPC looks up seldom.
        """
        with self._lock:
            if self._connection is connection:
                self._connection = None
        connection.close()

    def _call(
        self, connection: Connection, method: Method[Request, Reply], request: Request
    ) -> None:
        self._over(connection, lambda: connection.call(method, request))

    def _entries(self, connection: Connection, stream: Iterator[bytes]) -> Entries:
        while message := self._over(connection, lambda: next(stream, b"")):
            yield from unpacked(message)

    def _over(self, connection: Connection, call: Callable[[], Result]) -> Result:
        """Call over a connection, which is left if it is broken."""
        try:
            return self._translated(call)
        except LogLostError as error:
            if not _has_none(error):
                self._leave(connection)
            raise

    def _translated(self, call: Callable[[], Result]) -> Result:
        """Call, with errors of the wire as those of a log."""
        try:
            return call()
        except WireError as error:
            if error.kind == pb.FENCED:
                raise LogTakenError(error.message) from error
            if error.kind == pb.NO_LOG:
                kept = f"ps-{self._keeper()}, which kept it"
                raise LogLostError(f"{kept}, has it no more") from error
            raise self._unreached(error) from error
        except (PeerUnavailableError, RuntimeError) as error:  # the latter: a bug there, no memory
            raise self._unreached(error) from error

    def _unreached(self, error: Exception) -> LogLostError:
        logger.info("the log at ps-%d: %s", self._keeper(), error)
        return LogLostError(f"ps-{self._keeper()}, which keeps it, cannot be reached")


def _has_none(error: LogLostError) -> bool:
    """True if the peer answered that it does not have the log."""
    return isinstance(error.__cause__, WireError) and error.__cause__.kind == pb.NO_LOG
