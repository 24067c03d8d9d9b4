"""Requests to a server that are begun and not ended: their callers are there, and send no more.

Owns a connection and the threads that gRPC has for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from shoal.proto import methods, parts
from shoal.proto.identity import Identity
from shoal.proto.transport import PARTS_SUFFIX, PEER_METADATA, open_channel

REQUEST_BYTES = parts.PART_BYTES + 1
"""Of each: one part is sent, and one is not."""


class HalfSent:
    """Sends the first part of some pushes to a server, until it is closed."""

    def __init__(
        self, address: str, peer: str, count: int, identity: Identity | None = None
    ) -> None:
        """peer: the server's name. identity: of a worker."""
        self._over = threading.Event()
        self._sent = threading.Semaphore(0)
        self._count = count
        self._channel = open_channel(address, peer, identity)
        stub = self._channel.stream_unary(methods.PUSH.path + PARTS_SUFFIX)
        metadata = ((PEER_METADATA, peer),)
        self._calls = [stub.future(self._first_part(), metadata=metadata) for _ in range(count)]

    def wait_sent(self) -> None:
        """Wait until gRPC has taken the first part of each."""
        for _ in range(self._count):
            self._sent.acquire()

    def close(self) -> None:
        """End the requests without the rest of them."""
        for call in self._calls:
            call.cancel()
        self._over.set()
        self._channel.close()

    def _first_part(self) -> Iterator[bytes]:
        yield next(parts.cut(bytes(REQUEST_BYTES)))
        self._sent.release()  # the next one is asked for
        self._over.wait()
