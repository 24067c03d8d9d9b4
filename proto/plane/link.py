"""One connection of the data plane, as either end has it.

Owns the socket: exact reads into buffers, writes of scattered buffers, how long each may take, and
closing it from another thread. Does not know what the bytes mean.

With certificates the bytes go through TLS in C (native/tls.h), or through Python's ssl where
hello.py finds that there is none in C.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shoal.errors import Error
from shoal.proto.plane.direct import Direct
from shoal.proto.plane.message import PREFIX_BYTES, parse
from shoal.proto.wire.frames import Buffer

if TYPE_CHECKING:
    from shoal.native.tls import Secured

ROOM_BYTES = 32 << 10
"""Of a connection's own buffer: a message up to here is received with one call of the system."""

PART_BYTES = 4 << 20
"""A deadline by part is for so many bytes."""

LONG_SECONDS = 20.0
"""From which on a limit counts whole seconds."""

ALIGNMENT = 64
BUFFERS = 512
"""In one call of the system, which takes 1,024 at most."""

_TIME = struct.Struct("@ll")
_BEGIN = ALIGNMENT - PREFIX_BYTES
"""Where a message begins in the buffer, so that its bytes are aligned."""

# A peer whose machine has vanished sends no reset: it is asked, as gRPC's pings do it.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))


class BrokenError(Error):
    """The connection is of no more use; says why."""


class LateError(BrokenError):
    """The other end did not send, or take, anything in time."""


def unfilled(size: int) -> memoryview:
    """Memory for `size` bytes, aligned to 64, not cleared."""
    array = np.empty(size + ALIGNMENT, np.uint8)
    skipped = -array.ctypes.data % ALIGNMENT
    return array[skipped : skipped + size].data


def kept(data: memoryview) -> memoryview:
    """A copy of what a connection has received, for who keeps it beyond the call."""
    made = unfilled(len(data))
    # NumPy copies without Python's lock, so other calls go on.
    np.copyto(np.frombuffer(made, np.uint8), np.frombuffer(data, np.uint8))
    return made


class Link:
    """One connection. Two threads may not read, or write, at a time; any may `shut` it.

    user: who has it at the moment, for whoever made it. number: of its socket. secured: TLS in C on
    it, or None. by_number: True if C can use it by these two.
    """

    def __init__(self, made: socket.socket, secured: Secured | None = None) -> None:
        """made: connected, and a TLS handshake, if any, is over. secured: TLS in C on it."""
        self.socket = made
        self.secured = secured
        self._tls = isinstance(made, ssl.SSLSocket)
        self.by_number = not self._tls
        self.number = made.fileno()
        self._limits: dict[int, float] = {}
        self.user: Any = None
        self._view = unfilled(_BEGIN + PREFIX_BYTES + ROOM_BYTES)
        self._start = self._end = _BEGIN
        if made.family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
        made.settimeout(None if secured is None else 0.0)

    @property
    def names(self) -> list[str]:
        """The URIs in the certificate of the other end; none without TLS."""
        if self.secured is not None:
            return [each.decode("utf-8", "replace") for each in self.secured.names()]
        certificate: Any = self.socket.getpeercert() if self._tls else None  # type: ignore[attr-defined]
        others = (certificate or {}).get("subjectAltName", ())
        return [str(value) for kind, value in others if kind == "URI"]

    def speak_for(self, worker: int | None) -> None:
        """Let requests that are answered without Python speak for this worker; None: for nobody."""
        if self.secured is not None:
            self.secured.speak_for(worker)

    def _limit(self, option: int, seconds: float) -> None:
        """Limit the time that one call of the system may take."""
        if self._tls:
            # Python repeats its calls by itself on a socket that blocks.
            if self.socket.gettimeout() != (seconds or None):
                self.socket.settimeout(seconds or None)
        elif self._limits.get(option) != seconds:
            packed = _TIME.pack(int(seconds), int(seconds % 1 * 1e6))
            self.socket.setsockopt(socket.SOL_SOCKET, option, packed)
            self._limits[option] = seconds

    def shut(self) -> None:
        """End the connection: who waits for it hears of that. By any thread."""
        with contextlib.suppress(OSError):
            # Not SSLSocket's own, which takes the TLS state away from its reader.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and give its socket back. By who reads and writes only."""
        self.shut()
        if self.secured is not None:
            self.secured.close()
        self.socket.close()

    # ------------------------------------------------------------ receiving

    @property
    def empty(self) -> bool:
        """True if nothing was received that was not read."""
        return self._start == self._end

    def received(self, data: bytes) -> None:
        """Take up to ROOM_BYTES that somebody else received, to be read next; only if `empty`."""
        self._start, self._end = _BEGIN, _BEGIN + len(data)
        self._view[_BEGIN : self._end] = data

    def next_prefix(self, until: float) -> tuple[int, int]:
        """Kind and size of the next message. until: moment of time.monotonic.

        Raises LateError if it does not come, BrokenError, WireError if it is no message.
        """
        return parse(self.read(PREFIX_BYTES, until))

    def wait(self, seconds: float) -> bool:
        """Wait for a message; True if one begins within so many seconds. Raises BrokenError."""
        if self._start == self._end:
            self._start = self._end = _BEGIN
            try:
                self._end += self._receive(self._view[_BEGIN:], seconds, exact=False)
            except LateError:
                return False
        return True

    def read(self, size: int, until: float) -> memoryview:
        """The next `size` bytes, up to ROOM_BYTES; valid until the next call."""
        if self._end - self._start < size:
            if self._start == self._end:
                self._start = self._end = _BEGIN
            elif self._start + size > len(self._view):
                # A part of a stream may come with the beginning of the next one, which goes on
                # beyond the buffer.
                begun = bytes(self._view[self._start : self._end])
                self._start, self._end = _BEGIN, _BEGIN + len(begun)
                self._view[_BEGIN : self._end] = begun
            while self._end - self._start < size:
                # The rest of the room: usually this is the whole message.
                left = until - time.monotonic()
                self._end += self._receive(self._view[self._end :], left, exact=False)
        found = self._view[self._start : self._start + size]
        self._start += size
        return found

    def into(self, target: memoryview, until: float | None, part_seconds: float = 0.0) -> None:
        """Receive into a buffer until it is full.

        until: moment by which it is; None: each PART_BYTES take `part_seconds` at most.
        """
        known = min(len(target), self._end - self._start)
        if known:
            target[:known] = self._view[self._start : self._start + known]
            self._start += known
        place = known
        while place < len(target):
            end = min(len(target), place + PART_BYTES) if until is None else len(target)
            last = until if until is not None else time.monotonic() + part_seconds
            while place < end:
                left = last - time.monotonic()
                place += self._receive(target[place:end], left, exact=True)

    def skip(self, size: int, part_seconds: float) -> None:
        """Receive `size` bytes for nothing."""
        known = min(size, self._end - self._start)
        self._start += known
        size -= known
        if size:
            self._start = self._end = _BEGIN
        last = time.monotonic() + part_seconds
        passed = 0
        while size:
            got = self._receive(self._view[:size], last - time.monotonic(), exact=False)
            size -= got
            passed += got
            if passed >= PART_BYTES:
                last, passed = time.monotonic() + part_seconds, 0

    def _receive(self, view: memoryview, seconds: float, *, exact: bool) -> int:
        if seconds <= 0:
            raise LateError("nothing came in time")
        flags = socket.MSG_WAITALL if exact and not self._tls else 0
        try:
            if self.secured is not None:
                return self._received(self.secured.receive(view, seconds, exact))
            # Rounded, and a long one more so: a limit that is as it was costs nothing.
            exact_enough = int(seconds) + 1.0 if seconds > LONG_SECONDS else round(seconds, 1)
            self._limit(socket.SO_RCVTIMEO, max(0.1, exact_enough))
            got = self.socket.recv_into(view, 0, flags)
        except (OSError, ValueError) as error:  # the latter: SSLSocket's, once it was closed
            if _is_late(error):
                raise LateError("nothing came in time") from error
            raise BrokenError(str(error)) from error
        return self._received(got)

    @staticmethod
    def _received(got: int) -> int:
        if not got:
            raise BrokenError("the connection was closed by the other end")
        return got

    def answered_by(
        self, direct: Direct, flags: bytearray, part_seconds: float, seconds: float, pause: str
    ) -> bool:
        """Let `direct` answer requests; return True if there is one for others.

        Not with Python's ssl, by which nothing is answered. part_seconds: for a request to begin,
        and to go on. seconds: as `send` takes them. flags, pause: as `direct` takes them. Raises
        LateError, BrokenError.
        """
        if self._tls:
            return True
        try:
            if self.secured is None:
                self._limit(socket.SO_RCVTIMEO, part_seconds)
                self._limit(socket.SO_SNDTIMEO, seconds)
            there, self._start, self._end = direct.serve(
                self.socket.fileno(),
                self._view,
                _BEGIN,
                self._start,
                self._end,
                flags,
                part_seconds,
                pause,
                self.secured,
                seconds,
            )
        except OSError as error:
            raise (LateError if _is_late(error) else BrokenError)(str(error)) from error
        return there

    # ------------------------------------------------------------ sending

    def send(self, buffers: Sequence[Buffer], size: int, seconds: float) -> None:
        """Send buffers one after another.

        size: bytes of all. seconds: after which, if nothing of them was taken, it is given up; 0:
        never.
        Raises LateError, BrokenError.
        """
        try:
            if self.secured is not None:
                self.secured.send(_views(buffers), seconds)
                return
            self._limit(socket.SO_SNDTIMEO, seconds)
            if self._tls:
                self._send_tls(buffers)
                return
            sent = self.socket.sendmsg(cast(Any, buffers)) if len(buffers) <= BUFFERS else 0
            if sent < size:
                self._send_rest(buffers, sent)
        except (OSError, ValueError) as error:
            if _is_late(error):
                raise LateError(f"the other end took nothing for {seconds:g} s") from error
            raise BrokenError(str(error)) from error

    def _send_rest(self, buffers: Iterable[Buffer], sent: int) -> None:
        left = list(reversed(_views(buffers)))
        while True:
            while left and sent >= len(left[-1]):
                sent -= len(left.pop())
            if not left:
                return
            left[-1] = left[-1][sent:]
            sent = self.socket.sendmsg(left[: -BUFFERS - 1 : -1])

    def _send_tls(self, buffers: Sequence[Buffer]) -> None:
        views = _views(buffers)
        if sum(map(len, views)) <= ROOM_BYTES:
            self.socket.sendall(b"".join(views))  # one record, not one a buffer
            return
        for view in views:
            for place in range(0, len(view), PART_BYTES):
                self.socket.sendall(view[place : place + PART_BYTES])


def _is_late(error: Exception) -> bool:
    """True if a call of the system took as long as it may, and the connection is there."""
    if isinstance(error, TimeoutError):
        return error.errno != errno.ETIMEDOUT  # the system's own, for a peer that is gone
    return isinstance(error, (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError))


def _views(buffers: Iterable[Buffer]) -> list[memoryview]:
    """Buffers as bytes, without empty ones."""
    views: list[memoryview] = []
    for each in buffers:
        plain: Any = each.reshape(-1).view(np.uint8) if isinstance(each, np.ndarray) else each
        if len(plain):
            views.append(memoryview(plain))
    return views
