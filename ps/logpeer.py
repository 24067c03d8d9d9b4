"""A log that is kept in the memory of another server, the next one.

Owns the calls. What the other one does with them is logheld.py's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.methods import Method, Reply, Request
from shoal.proto.rpc import Connection
from shoal.ps.logbatch import unpacked
from shoal.ps.logs import Entries, LogLostError, LogTakenError, TakenLog

logger = logging.getLogger(__name__)

APPEND_SECONDS = 10.0
"""Most that a push waits for a peer that is there and does not answer."""

APPEND_SHARE = 0.25
"""Of --server-timeout-seconds, if that is less: its worker is to be answered long before."""

APPEND_PATIENCE = 0.5
"""Seconds to repeat what a broken connection may have lost. A peer that has died cannot be
back so soon; then the push is answered without."""

CALL_DEADLINE = 5.0
"""Seconds; pushes wait for some of these calls."""


class PeerSink:
    """The log of server `server` at server `keeper`.

    peer: its name, as `peer_name` gives it. locate: where that is. holder: the same for
        taking a log: "" if it is not there, as the master knows it. Either raises WireError,
        PeerUnavailableError. server_timeout_seconds: after which this server, if it answers
        nothing, is taken for dead.
    """

    def __init__(
        self,
        server: int,
        incarnation: int,
        keeper: int,
        peer: str,
        locate: Callable[[], str],
        holder: Callable[[], str],
        retry_seconds: float,
        server_timeout_seconds: float,
    ) -> None:
        self._append_seconds = min(APPEND_SECONDS, APPEND_SHARE * server_timeout_seconds)
        self._lock = threading.Lock()
        # The log that each append under way is of.
        self._under_way: dict[Future[pb.AppendLogReply], str] = {}
        self.retry_seconds = retry_seconds
        self._server = server
        self._incarnation = incarnation
        self._keeper = f"ps-{keeper}"
        self._peer = peer
        self._locate = locate
        self._holder = holder
        self._connection: Connection | None = None
        self._log = ""

    def clear(self) -> None:
        """See Sink. The servers of earlier runs have ended, and their memory with them."""

    def reach(self) -> None:
        """See Sink."""
        self._connect()
        try:
            self.check()
        except LogLostError as error:
            if not (isinstance(error.__cause__, WireError) and error.__cause__.kind == pb.NO_LOG):
                raise

    def begin(self, base: pb.LogBase) -> None:
        """See Sink."""
        self._call(self._connect(), methods.BEGIN_LOG, pb.BeginLogRequest(base=base))
        self._log = base.log

    def append(self, entry: pb.LogEntry, frame: bytes) -> Callable[[], None]:
        """See Sink."""
        connection = self._connection
        assert connection is not None, "no log was begun"
        seconds = self._append_seconds
        try:
            answer = connection.start(methods.APPEND_LOG, frame, seconds, entry)
        except PeerUnavailableError as error:
            raise self._unreached(error) from error
        with self._lock:
            self._under_way[answer] = entry.log
        finish = partial(
            connection.finish, methods.APPEND_LOG, frame, answer, seconds, APPEND_PATIENCE, entry
        )

        def wait() -> None:
            try:
                self._translated(finish)
            except LogLostError:
                self._give_up(entry.log)
                raise
            finally:
                with self._lock:
                    self._under_way.pop(answer, None)

        return wait

    def _give_up(self, log: str) -> None:
        """A log is lost as a whole: the other pushes that wait for it need not wait longer."""
        with self._lock:
            others = [answer for answer, of in self._under_way.items() if of == log]
        for answer in others:
            answer.cancel()

    def mark(self, applied: Iterable[pb.PushIdentity]) -> None:
        """See Sink."""

    def drop(self, log: str, step: int, applied: Iterable[pb.PushIdentity], mark: None) -> None:
        """See Sink."""
        del mark
        self._drop(pb.DropLogRequest(log=log, step=step, applied=applied))

    def check(self) -> None:
        """See Sink."""
        self._drop(pb.DropLogRequest(log=self._log))

    def _drop(self, request: pb.DropLogRequest) -> None:
        request.server, request.incarnation = self._server, self._incarnation
        self._call(self._connection or self._connect(), methods.DROP_LOG, request)

    def take(self) -> TakenLog | None:
        """See Sink."""
        try:
            address = self._holder()
        except (WireError, PeerUnavailableError) as error:
            raise LogLostError(f"the master was not reached: {error}") from error
        if not address:
            return None
        self._move(address)
        assert self._connection is not None
        request = pb.TakeLogRequest(server=self._server, incarnation=self._incarnation)
        stream = self._connection.stream(methods.TAKE_LOG, request)
        first = self._translated(lambda: next(stream, b""))
        if not first:
            return None
        return TakenLog(pb.LogBase.FromString(first), self._entries(stream))

    def adopt(self, base: pb.LogBase, step: int, applied: Iterable[pb.PushIdentity]) -> None:
        """See Sink."""
        self._log = base.log
        if step:
            self._drop(pb.DropLogRequest(log=base.log, step=step, applied=applied))

    def close(self) -> None:
        """See Sink."""
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> Connection:
        """The connection to where the peer is now."""
        try:
            self._move(self._locate())
        except (WireError, PeerUnavailableError) as error:
            raise LogLostError(f"where it is is not known: {error}") from error
        assert self._connection is not None
        return self._connection

    def _move(self, address: str) -> None:
        old = self._connection
        if old is None or old.address != address:
            self._connection = Connection(
                address, deadline=CALL_DEADLINE, patience=0.0, peer=self._peer
            )
            if old is not None:
                old.close()

    def _call(
        self, connection: Connection, method: Method[Request, Reply], request: Request
    ) -> None:
        self._translated(lambda: connection.call(method, request))

    def _entries(self, stream: Iterator[bytes]) -> Entries:
        while message := self._translated(lambda: next(stream, b"")):
            yield from unpacked(message)

    def _translated(self, call: Callable[[], Reply]) -> Reply:
        """Call, with errors of the wire as those of a log."""
        try:
            return call()
        except WireError as error:
            if error.kind == pb.FENCED:
                raise LogTakenError(error.message) from error
            if error.kind == pb.NO_LOG:
                raise LogLostError(f"{self._keeper}, which kept it, has it no more") from error
            raise self._unreached(error) from error
        except (PeerUnavailableError, RuntimeError) as error:  # the latter: a bug there, no memory
            raise self._unreached(error) from error

    def _unreached(self, error: Exception) -> LogLostError:
        logger.info("the log at %s: %s", self._keeper, error)
        return LogLostError(f"{self._keeper}, which keeps it, cannot be reached")
