"""Calling over the data plane: the connections to one peer, and one exchange on one of them.

Owns which connection a call takes, and what becomes of one that broke. When a call is repeated is
proto/channels/rpc.py's to say.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message

from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import CallError, PeerUnavailableError, WireError
from shoal.proto.identity import Identity
from shoal.proto.methods import Method
from shoal.proto.plane import hello, message
from shoal.proto.plane.link import ROOM_BYTES, BrokenError, LateError, Link, unfilled
from shoal.proto.wire.frames import Body, Buffer, Pieces, parsed
from shoal.proto.wire.handshakes import explained
from shoal.proto.wire.transport import MAXIMUM_MESSAGE_BYTES, arrays_address, open_socket

CONNECT_SECONDS = 5.0
"""For a connection to be made; a peer that is there takes it at once."""

UNTAKEN_MILLISECONDS = 30_000
"""After which a peer that has acknowledged nothing of what was sent is gone. Keep-alive finds those
of whom only an answer is missing: it asks where nothing is on its way."""

LATE_SECONDS = 2.0
"""To read an answer that is asked for after its deadline only: it may be there long since."""

IDLE_LINKS = 8
"""Connections to one peer that are kept for later calls."""

Reply = TypeVar("Reply")
Take = Callable[[Body], Any]
"""Reads an answer while it is received, and returns what the call is to return."""


class _Answer:
    """The bytes of an answer that is being received; see frames.Body."""

    def __init__(self, link: Link, size: int, until: float) -> None:
        self._link = link
        self._until = until
        self.size = self.left = size

    def read(self, size: int) -> memoryview:
        self._count(size)
        if size <= ROOM_BYTES:
            return self._link.read(size, self._until)
        made = unfilled(size)
        self._link.into(made, self._until)
        return made

    def into(self, target: memoryview) -> None:
        self._count(len(target))
        self._link.into(target, self._until)

    def _count(self, size: int) -> None:
        if size > self.left:
            raise WireError(pb.BAD_REQUEST, f"an answer of {self.size} bytes is too short")
        self.left -= size


def whole(body: Body) -> memoryview:
    """All bytes of an answer, in memory of their own."""
    made = unfilled(body.left)
    body.into(made)
    return made


class Exchange(Generic[Reply]):
    """A call that was sent once, and its answer to come."""

    def __init__(
        self,
        pool: Pool,
        method: Method[Any, Any],
        deadline: float,
        begun: Link | CallError,
        until: float | None = None,
    ) -> None:
        """begun: the connection; or why the call was not sent, or not answered.

        until: moment by which there is an answer; None: the deadline begins now.
        """
        self._pool = pool
        self._method = method
        self._deadline = deadline
        self._until = time.monotonic() + deadline if until is None else until
        self._lock = threading.Lock()
        self._link = begun if isinstance(begun, Link) else None
        self._error: Exception | None = None if isinstance(begun, Link) else begun
        self._reply: Any = None
        if self._link is not None:
            self._link.user = weakref.ref(self)

    def __del__(self) -> None:
        self._drop()  # nobody wants the answer any more

    def abandon(self) -> None:
        """Give the connection back to the system if nobody is reading the answer now."""
        if self._lock.acquire(blocking=False):
            try:
                if self._link is not None:
                    self._error = self._pool.unavailable(self._method, "the connection is closed")
                self._drop()
            finally:
                self._lock.release()

    def result(self, take: Take | None = None) -> Reply:
        """The answer, which is waited for; by the first thread that asks for it.

        take: reads it; by default a message is parsed, and bytes are left as they are. That of the
        first call counts.

        Raises WireError if the peer refused, PeerUnavailableError if it was not reached or did not
        answer in time, RuntimeError for an error of its own.
        """
        with self._lock:
            if self._link is not None:
                if (now := time.monotonic()) >= self._until:
                    # Who waited for another peer meanwhile, even for minutes, finds what has come.
                    self._until = now + LATE_SECONDS
                try:
                    self._reply = self._read(take)
                except Exception as error:
                    self._error = error
            if self._error is not None:
                raise self._error
            return cast(Reply, self._reply)

    def parts(self) -> Iterator[Reply]:
        """The answer of a call that is answered with a stream. Raises as `result`."""
        try:
            while True:
                with self._lock:
                    if self._error is not None:
                        raise self._error
                    # The deadline is for each: what the caller does in between does not count.
                    self._until = time.monotonic() + self._deadline
                    body = self._next(message.PART)
                    if body is None:
                        self._give_back()
                        return
                    part = self._parsed(body, None)
                yield part
        finally:
            self._drop()

    def _read(self, take: Take | None) -> Any:
        try:
            body = self._next(message.ANSWER)
            reply = None if body is None else self._parsed(body, take)
            self._give_back()
            return reply
        finally:
            self._drop()

    def _parsed(self, body: _Answer, take: Take | None) -> Any:
        try:
            if take is not None:
                reply = take(body)
            else:
                reply = whole(body)
                if self._method.reply is not bytes:
                    reply = parsed(cast(type[Message], self._method.reply), reply)
        except BrokenError as error:
            raise self._broken(error) from error
        if body.left:
            raise WireError(pb.BAD_REQUEST, f"an answer has {body.left} bytes too many")
        return reply

    def _next(self, kind: int) -> _Answer | None:
        """The next message of this kind; None for the end of a stream."""
        link = self._link
        assert link is not None
        try:
            found, size = link.next_prefix(self._until)
            if found == message.REFUSAL and size <= ROOM_BYTES:
                detail = parsed(pb.ErrorDetail, link.read(size, self._until))
                self._give_back()
                raise self._refusal(detail)
        except BrokenError as error:
            raise self._broken(error) from error
        if found == message.END and kind == message.PART and not size:
            return None
        if found != kind or size > MAXIMUM_MESSAGE_BYTES:
            raise WireError(pb.BAD_REQUEST, f"an answer is of kind {found} and {size} bytes")
        return _Answer(link, size, self._until)

    def _refusal(self, detail: pb.ErrorDetail) -> Exception:
        if detail.kind != pb.ERROR_KIND_UNSPECIFIED:
            return WireError(detail.kind, detail.message)
        where = f"{self._method.name} at {self._pool.address}"
        return RuntimeError(f"{where} failed: UNKNOWN: {detail.message}")

    def _broken(self, error: BrokenError) -> PeerUnavailableError:
        late = isinstance(error, LateError)
        return self._pool.unavailable(
            self._method, f"no answer for {self._deadline:g} s" if late else str(error)
        )

    def _give_back(self) -> None:
        link, self._link = self._link, None
        if link is not None and link.empty:
            self._pool.give_back(link)
        elif link is not None:
            self._pool.drop(link)  # more was said than one answer: that is nobody's

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._pool.drop(link)


class Pool:
    """The connections of this process to one other one, shared by threads.

    address: of its calls of gRPC; that for arrays follows from it.
    """

    def __init__(self, address: str, peer: str, identity: Identity | None) -> None:
        """peer: whom it means, as `peer_name` gives it. identity: of this process."""
        self.address = address
        self._peer = peer
        self._identity = identity
        # An exchange that nobody asks for may be collected while it is held.
        self._lock = threading.RLock()
        self._idle: list[Link] = []
        self._links: set[Link] = set()
        self._closed = False

    @property
    def used(self) -> bool:
        """True if there are connections, idle or not."""
        return bool(self._links)

    def close(self) -> None:
        """End the connections; exchanges under way fail."""
        self.retire()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.shut()
            exchange = link.user and link.user()
            if exchange is not None:
                exchange.abandon()

    def retire(self) -> None:
        """Begin no exchange any more; those under way go on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._links.difference_update(idle)
        for link in idle:
            link.close()

    def begin(
        self, method: Method[Any, Any], request: Any, deadline: float, label: Message | None = None
    ) -> Exchange[Any]:
        """Send a request; the result of the exchange says if that failed.

        request: a message, bytes or Pieces. deadline: seconds for all of it.
        """
        try:
            _check_size(method, request)
            link = self._take(deadline)
        except WireError as error:
            return Exchange(self, method, deadline, error)
        except LateError:
            why = f"no answer for {min(deadline, hello.HELLO_SECONDS):g} s"
            return Exchange(self, method, deadline, self.unavailable(method, why))
        except (OSError, ValueError, BrokenError) as error:
            why = explained(str(error) or type(error).__name__, self._identity)
            return Exchange(self, method, deadline, self.unavailable(method, why))
        try:
            buffers, size = _packed(method, request, label)
            link.send(buffers, size, deadline)
        except BrokenError as error:
            self.drop(link)
            return Exchange(self, method, deadline, self.unavailable(method, str(error)))
        except BaseException:
            self.drop(link)
            raise
        return Exchange(self, method, deadline, link)

    def lend(self) -> Link | None:
        """An idle connection, for an exchange by its number; None if there is none that has one.

        Afterwards it is given back, dropped, or the rest of the exchange is `taken_on`.
        """
        with self._lock:
            idle = self._idle
            return idle.pop() if idle and idle[-1].by_number else None

    def taken_on(
        self,
        method: Method[Any, Any],
        link: Link,
        deadline: float,
        found: bytes | BrokenError,
        until: float,
    ) -> Exchange[Any]:
        """The exchange for which a connection was lent, once its request was sent.

        found: what has come of the answer; or why there is none, or no request was taken. until:
        moment by which there is an answer.
        """
        if isinstance(found, bytes):
            link.received(found)
            return Exchange(self, method, deadline, link, until)
        self.drop(link)
        return Exchange(self, method, deadline, self.unavailable(method, str(found)))

    def unavailable(self, method: Method[Any, Any], reason: str) -> PeerUnavailableError:
        """The error of a call that was not answered."""
        return PeerUnavailableError(self.address, method.name, reason)

    def give_back(self, link: Link) -> None:
        """An exchange is over, and its connection as it was before."""
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_LINKS:
                self._idle.append(link)
                return
        self.drop(link)

    def drop(self, link: Link) -> None:
        """An exchange broke off: its connection is of no more use, and others may not be either."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._links.difference_update(idle, [link])
        for each in (*idle, link):
            each.close()

    def _take(self, deadline: float) -> Link:
        with self._lock:
            if self._closed:
                raise BrokenError("the connection is closed")
            if self._idle:
                return self._idle.pop()
        return self.connected(deadline)

    def connected(self, seconds: float = hello.HELLO_SECONDS) -> Link:
        """A new connection, whose other end has said who it is.

        seconds: for all of it. Raises WireError if either end refuses the other one, OSError,
        ValueError, BrokenError.
        """
        link = self._connected(seconds)
        with self._lock:
            closed = self._closed
            self._links.add(link)
        if closed:
            link.shut()
        try:
            hello.call(link, self._peer, self._identity, seconds)
        except BaseException:
            with self._lock:
                self._links.discard(link)
            link.close()
            raise
        return link

    def _connected(self, seconds: float) -> Link:
        address = arrays_address(faults.route(self.address, self._peer))
        made = _open(address, min(seconds, CONNECT_SECONDS))
        try:
            if self._identity is not None:
                return hello.encrypted(made, self._identity, self._peer)
            return Link(made)
        except BaseException:
            made.close()
            raise


def _open(address: str, seconds: float) -> socket.socket:
    """Open a socket as `open_socket` does; it finds a peer that acknowledges nothing any more."""
    made = open_socket(address, seconds)
    if made.family != socket.AF_UNIX:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_MILLISECONDS)
    return made


def _check_size(method: Method[Any, Any], request: Any) -> None:
    """Raises WireError(BAD_REQUEST) for a request that no server takes.

    Said here: a server would end the connection in the middle of it, as one that dies does.
    """
    size = request.ByteSize() if isinstance(request, Message) else len(request)
    if size > MAXIMUM_MESSAGE_BYTES:
        raise WireError(
            pb.BAD_REQUEST,
            f"a {method.name} of {size} bytes, at most {MAXIMUM_MESSAGE_BYTES} can be sent",
        )


def _packed(
    method: Method[Any, Any], request: Any, label: Message | None
) -> tuple[Sequence[Buffer], int]:
    """The buffers of a request, and their bytes."""
    buffers: list[Buffer] = []
    size = 0
    if label is not None:
        packed = label.SerializeToString()
        buffers = [message.LABEL.pack(len(packed)), packed]
        size = message.LABEL.size + len(packed)
    if isinstance(request, Message):
        request = request.SerializeToString()
    if isinstance(request, Pieces):
        for each in request.buffers:
            buffers += each if isinstance(each, list) else [each]
    else:
        buffers.append(request)
    size += len(request)
    return [message.prefix(method.kind, size), *buffers], message.PREFIX_BYTES + size
