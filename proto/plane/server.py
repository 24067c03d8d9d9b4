"""Serving the data plane: a listener, and a thread for each connection.

The thread is in C, without Python's lock, as long as all that comes can be answered there
(direct.py); it comes back with the first request that cannot.

Owns the threads, who may call what, how a request is received in bounded time and memory, and how
its answer or its refusal goes back. Does not know what any call means.

A connection that stops in the middle of a request, or does not read its answer, costs its own
thread and its buffer. Requests larger than a connection's own buffer share a budget of bytes until
they are answered. Those of logs have one of their own: a push may wait for a log, so a log may not
wait for pushes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from google.protobuf.message import Message

from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.budget import Budget
from shoal.proto.errors import WireError, shortened
from shoal.proto.identity import WORKER, Caller, Identity
from shoal.proto.methods import Method
from shoal.proto.permissions import check_permitted, check_speaker, is_permitted
from shoal.proto.plane import hello, message
from shoal.proto.plane.direct import BUSY, ENDING, FLAGS, Direct, WithDirect
from shoal.proto.plane.link import ROOM_BYTES, BrokenError, Link, unfilled
from shoal.proto.seldom import REFUSALS, Seldom
from shoal.proto.wire.frames import Buffer, Pieces, parsed
from shoal.proto.wire.transport import MAXIMUM_MESSAGE_BYTES

logger = logging.getLogger(__name__)

PART_SECONDS = 10.0
"""For each part of a request, of link.PART_BYTES, to come."""

ANSWER_SECONDS = 60.0
"""After which an answer of which the other end takes nothing is given up."""

HELD_BYTES = MAXIMUM_MESSAGE_BYTES
"""Of requests that are being received and handled; the largest one still finds room."""

SPARE_BYTES = 256 << 20
"""Of buffers that are kept for later requests."""

STACK_BYTES = 512 << 10
"""Of a connection's thread; the system gives what is used."""

_STACKS = threading.Lock()
"""Held while the process's size of stacks is another: two servers that each put back what they
found would leave it small."""

STRANGERS = 64
"""Connections that have not said who they are; a further one takes the place of another."""

FIRST_SECONDS = 2.0
"""For the first byte of a connection, which comes with it."""

SILENT_SECONDS, SLOW_SECONDS = 0.5, 2.0
"""After which a stranger without a byte, or one that has begun, may lose its place to another."""

BACKLOG = 1024

Admit = Callable[[Method[Any, Any], int, str], object]
Handlers = Mapping[Method[Any, Any], Callable[[Any], Any]]


class _Spares:
    """Buffers of requests, used again: of each power of two, up to SPARE_BYTES of all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[memoryview]] = {}
        self._bytes = 0

    def take(self, size: int) -> memoryview:
        """A buffer of at least so many bytes."""
        order = 1 << (size - 1).bit_length()
        with self._lock:
            if free := self._free.get(order):
                self._bytes -= order
                return free.pop()
        return unfilled(order)

    def give_back(self, buffer: memoryview) -> None:
        """Nobody uses a buffer any more."""
        with self._lock:
            if self._bytes + len(buffer) <= SPARE_BYTES:
                self._bytes += len(buffer)
                self._free.setdefault(len(buffer), []).append(buffer)


class _Peer:
    """A connection of the server's. direct: answers its requests first. flags: see direct.FLAGS."""

    def __init__(self, link: Link, direct: Direct | None) -> None:
        self.link = link
        self.direct = direct
        self.flags = bytearray(FLAGS)


class _Stranger:
    """A connection that has not said who it is.

    handle: of the same, to end it. begun: its thread has found that something came.
    """

    def __init__(self, made: socket.socket, address: Any) -> None:
        self.handle = made.dup()
        # Of a user's own socket there is none.
        self.host = address[0] if isinstance(address, tuple) else ""
        self.since = time.monotonic()
        self.begun = False

    def end(self) -> None:
        """Shut the socket down, so that its thread finds it closed."""
        with contextlib.suppress(OSError):
            self.handle.shutdown(socket.SHUT_RDWR)


def _has_begun(made: socket.socket, seconds: float) -> bool:
    """Wait for a connection's first byte or its end; True if either comes in so many seconds."""
    ready = select.poll()
    ready.register(made, select.POLLIN)
    return bool(ready.poll(seconds * 1000))


def _giving_way(strangers: Iterable[_Stranger]) -> _Stranger | None:
    """The stranger that is to lose its place, in the order in which they came; None: not yet.

    Whoever is silent, and then whoever has come from where most do.
    """
    now = time.monotonic()
    silent = [each for each in strangers if now - each.since > SILENT_SECONDS]
    found = next(
        (each for each in silent if not (each.begun or _has_begun(each.handle, 0.0))), None
    )
    if found is not None:
        return found
    many = Counter(each.host for each in strangers)
    slow = [each for each in silent if now - each.since > SLOW_SECONDS]
    return max(slow, key=lambda each: many[each.host], default=None)


class ArrayServer:
    """Answers the calls of `handlers` on a listening socket, from `start` to `stop`."""

    def __init__(
        self,
        handlers: Handlers,
        listener: socket.socket,
        name: str,
        identity: Identity | None,
        admit: Admit,
    ) -> None:
        """All arguments are as `serving.serve` takes them, `admit` too."""
        self._methods = {method.kind: (method, handler) for method, handler in handlers.items()}
        self._direct = _direct(handlers)
        self._pause = os.fspath(faults.own_calls_file() or "")
        self._listener = listener
        self._path = listener.getsockname() if listener.family == socket.AF_UNIX else None
        self._name = name
        self._identity = identity
        self._admit = admit
        self._room = Budget("requests that are not answered yet", HELD_BYTES)
        self._room_of_logs = Budget("entries of logs that are not kept yet", HELD_BYTES)
        self._spares = _Spares()
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._peers: set[_Peer] = set()
        self._strangers: dict[socket.socket, _Stranger] = {}
        self._tells = Seldom(60.0)
        self._stopping = False

    def start(self) -> None:
        """Take connections from now on. Raises RuntimeError if there is no thread for it."""
        threading.Thread(target=self._accept, name="arrays", daemon=True).start()

    def stop(self, grace: float) -> None:
        """End: exchanges under way have `grace` seconds; then their connections are ended, too."""
        end = time.monotonic() + grace
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone wakes nobody
        self._listener.close()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        while True:
            late = time.monotonic() >= end
            with self._changed:
                for each in self._sockets if late else ():
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(each, socket.SHUT_RDWR)
                for peer in self._peers:
                    peer.flags[ENDING] = 1
                    if late or not peer.flags[BUSY]:
                        peer.link.shut()
                if late or not self._sockets:
                    return
                self._changed.wait(min(0.1, max(0.0, end - time.monotonic())))

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        while not self._stopping:
            try:
                self._accept_one()
            except Exception as error:  # also no memory, or no file: no other thread takes any
                if not self._stopping:
                    if self._tells.due():
                        logger.warning("no connection can be taken: %r", error)
                    time.sleep(0.1)

    def _accept_one(self) -> None:
        made, address = self._listener.accept()
        try:
            stranger = _Stranger(made, address)
            with self._changed:
                self._make_room()
                if self._stopping:
                    raise BrokenError("the server ends")
                self._strangers[made] = stranger
                self._sockets.add(made)
            self._begin(made)
        except BaseException:
            with self._changed:
                self._known(made)
                self._sockets.discard(made)
            made.close()
            raise

    def _make_room(self) -> None:
        """Wait until there is room for another stranger, and make it if need be. Under the lock."""
        while len(self._strangers) >= STRANGERS and not self._stopping:
            gone = _giving_way(self._strangers.values())
            if gone is None:
                self._changed.wait(0.1)
                continue
            gone.end()
            self._known(next(made for made, each in self._strangers.items() if each is gone))

    def _known(self, made: socket.socket) -> None:
        """A connection is no stranger any more. Under the lock."""
        if (stranger := self._strangers.pop(made, None)) is not None:
            stranger.handle.close()
            self._changed.notify_all()

    def _begin(self, made: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(made,), name="arrays", daemon=True)
        with _STACKS:
            before = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(before)

    def _serve(self, made: socket.socket) -> None:
        peer, now = None, made
        try:
            if not _has_begun(made, FIRST_SECONDS):
                return
            with self._changed:
                if (stranger := self._strangers.get(made)) is not None:
                    stranger.begun = True
            caller, direct = None, self._direct
            if self._identity is None:
                link = Link(made)
            else:
                link = hello.encrypted(made, self._identity, None)
                now = link.socket
                caller = hello.caller_by_certificate(link)
                direct = self._direct_for(caller, link)
                with self._changed:
                    self._sockets.discard(made)
                    self._sockets.add(now)
            peer = _Peer(link, direct)
            with self._changed:
                self._peers.add(peer)
            try:
                who = hello.answer(peer.link, self._name)
            except WireError as error:
                if REFUSALS.due():
                    logger.info("a connection is refused: %s", error)
                _refuse(peer.link, error)
                return
            with self._changed:
                self._known(made)
            while not self._stopping and self._exchange(peer, caller, who):
                pass
        except (BrokenError, OSError) as error:
            logger.debug("a connection ended: %s", error)
        except Exception:
            logger.exception("a connection's thread failed")
        finally:
            if peer is not None:
                peer.link.close()
            now.close()
            with self._changed:
                self._known(made)
                self._sockets -= {made, now}
                if peer is not None:
                    self._peers.discard(peer)
                self._changed.notify_all()

    def _direct_for(self, caller: Caller | None, link: Link) -> Direct | None:
        """The Direct for the caller that a certificate names; None: Python answers all.

        What C answers is for a worker, and speaks for one: see permissions.SPEAKERS.
        """
        direct = [method for method, handler in self._methods.values() if _is_direct(handler)]
        if caller is None or caller.role != WORKER:
            return None
        if not all(is_permitted(method, self._identity, caller) for method in direct):
            return None
        link.speak_for(caller.index)
        return self._direct

    # ------------------------------------------------------------ exchanges

    def _exchange(self, peer: _Peer, caller: Caller | None, who: str) -> bool:
        """One request and its answer, if one comes; whether the connection goes on."""
        link = peer.link
        if peer.direct is not None and not link.answered_by(
            peer.direct, peer.flags, PART_SECONDS, ANSWER_SECONDS, self._pause
        ):
            return True
        if not link.wait(PART_SECONDS):
            return True
        peer.flags[BUSY] = 1
        try:
            kind, size = link.next_prefix(time.monotonic() + PART_SECONDS)
            faults.before_call()
            with contextlib.ExitStack() as held:
                try:
                    method, handler = self._method(kind, size)
                    check_permitted(method, self._identity, caller, who)
                    self._admit(method, size, who)
                    payload = self._payload(method, link, size, held)
                except WireError as error:
                    # At once: the other end reads it when it has sent its request.
                    _refuse(link, error)
                    if kind not in self._methods or size > MAXIMUM_MESSAGE_BYTES:
                        return False
                    link.skip(size, PART_SECONDS)
                    return True
                try:
                    taken = request(method, payload)
                    speech = taken if method.label is None else taken[0]
                    check_speaker(method, caller, speech, who)
                except WireError as error:
                    _refuse(link, error)
                    return True
                return _answer(link, method, handler, taken)
        except WireError as error:  # no message at all
            _refuse(link, error)
            return False
        finally:
            peer.flags[BUSY] = 0

    def _payload(
        self, method: Method[Any, Any], link: Link, size: int, held: contextlib.ExitStack
    ) -> memoryview:
        """Receive a request. held: gives its memory back, once it is answered.

        Raises WireError(NOT_READY), before a byte of it is read, if there is no room for it.
        """
        if size <= ROOM_BYTES:
            return link.read(size, time.monotonic() + PART_SECONDS)
        room = self._room if method.label is None else self._room_of_logs
        held.enter_context(room.holding(size, PART_SECONDS))
        buffer = self._spares.take(size)
        held.callback(self._spares.give_back, buffer)
        link.into(buffer[:size], None, PART_SECONDS)
        return buffer[:size]

    def _method(self, kind: int, size: int) -> tuple[Method[Any, Any], Callable[[Any], Any]]:
        if kind not in self._methods:
            raise WireError(pb.BAD_REQUEST, f"there is no call of kind {kind} here")
        if size > MAXIMUM_MESSAGE_BYTES:
            raise WireError(
                pb.BAD_REQUEST,
                f"a request of {size} bytes; at most {MAXIMUM_MESSAGE_BYTES} are taken",
            )
        return self._methods[kind]


def _is_direct(handler: Callable[[Any], Any]) -> TypeGuard[WithDirect]:
    return isinstance(handler, WithDirect)


def _direct(handlers: Handlers) -> Direct | None:
    found = {id(each.direct): each.direct for each in handlers.values() if _is_direct(each)}
    assert len(found) <= 1, "a connection is given to one"
    return next(iter(found.values()), None)


def request(method: Method[Any, Any], payload: memoryview) -> Any:
    """The request as its handler takes it. Raises WireError(BAD_REQUEST)."""
    if method.label is not None:
        if len(payload) < message.LABEL.size:
            raise WireError(pb.BAD_REQUEST, "a label does not come whole")
        (size,) = message.LABEL.unpack_from(payload)
        end = message.LABEL.size + size
        if end > len(payload):
            raise WireError(pb.BAD_REQUEST, f"a label of {size} bytes does not come whole")
        return parsed(method.label, payload[message.LABEL.size : end]), payload[end:]
    return payload if method.request is bytes else parsed(method.request, payload)


def _answer(
    link: Link, method: Method[Any, Any], handler: Callable[[Any], Any], taken: Any
) -> bool:
    """Handle a request and answer it; return True if the connection goes on."""
    begun = False
    try:
        if method.streaming:
            for part in handler(taken):
                _send(link, message.PART, part, patient=True)
            link.send([message.prefix(message.END, 0)], message.PREFIX_BYTES, ANSWER_SECONDS)
            return True
        answer = handler(taken)
        if isinstance(answer, Pieces):
            parts = iter(answer.buffers)
            first = next(parts, b"")  # what fails up to here is refused
            begun = True
            _send_pieces(link, len(answer), first, parts)
        else:
            _send(link, message.ANSWER, answer)
        return True
    except BrokenError:
        raise
    except Exception as error:
        refused = error if isinstance(error, WireError) else None
        if refused is None:
            logger.exception("%s failed", method.path)
        elif begun:
            logger.info("an answer to %s is broken off: %s", method.path, refused)
        if begun:  # the other end cannot be told: it would take a refusal for a part of the answer
            return False
        kind = pb.ERROR_KIND_UNSPECIFIED
        _refuse(link, refused or WireError(kind, f"{type(error).__name__}: {error}"))
    return True


def _send_pieces(link: Link, size: int, first: Any, parts: Any) -> None:
    buffers = first if isinstance(first, list) else [first]
    buffers = [message.prefix(message.ANSWER, size), *buffers]
    left = message.PREFIX_BYTES + size
    while True:
        count = sum(each.nbytes if hasattr(each, "nbytes") else len(each) for each in buffers)
        link.send(buffers, count, ANSWER_SECONDS)
        left -= count
        following = next(parts, None)
        if following is None:
            break
        buffers = following if isinstance(following, list) else [following]
    assert not left, f"{left} bytes of an answer are missing"


def _send(link: Link, kind: int, answer: Any, *, patient: bool = False) -> None:
    """patient: the other end may take it when it likes; it is asked whether it is there."""
    buffers: Sequence[Buffer]
    if isinstance(answer, Message):
        answer = answer.SerializeToString()
    if isinstance(answer, Pieces):
        buffers = [
            one for each in answer.buffers for one in (each if isinstance(each, list) else [each])
        ]
    else:
        buffers = [answer]
    size = len(answer)
    packed = [message.prefix(kind, size), *buffers]
    link.send(packed, message.PREFIX_BYTES + size, 0.0 if patient else ANSWER_SECONDS)


def _refuse(link: Link, error: WireError) -> None:
    detail = pb.ErrorDetail(kind=error.kind, message=shortened(error.message)).SerializeToString()
    packed = [message.prefix(message.REFUSAL, len(detail)), detail]
    link.send(packed, message.PREFIX_BYTES + len(detail), ANSWER_SECONDS)
