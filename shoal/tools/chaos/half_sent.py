"""Requests to a server that are begun and not ended: their callers are there, and send no more.

Owns their connections.
"""

from __future__ import annotations

from shoal.proto import methods
from shoal.proto.identity import Identity
from shoal.proto.plane.client import Pool
from shoal.proto.plane.link import PART_BYTES, Link
from shoal.proto.plane.message import prefix

REQUEST_BYTES = PART_BYTES + 1
"""Of each: all but the last byte are sent."""


class HalfSent:
    """Sends the first part of some pushes to a server, until it is closed."""

    def __init__(
        self, address: str, peer: str, count: int, identity: Identity | None = None
    ) -> None:
        """peer: the server's name. identity: of a worker. Raises as Pool.connected."""
        self._pool = Pool(address, peer, identity)
        self._links: list[Link] = []
        try:
            for _ in range(count):
                self._links.append(self._pool.connected())
                self._send(self._links[-1])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the requests without the rest of them."""
        for link in self._links:
            link.close()
        self._pool.close()

    @staticmethod
    def _send(link: Link) -> None:
        begun = [prefix(methods.PUSH.kind, REQUEST_BYTES), bytes(REQUEST_BYTES - 1)]
        link.send(begun, sum(map(len, begun)), 10.0)
