"""The bound on the bytes of one kind that a process holds. Imports nothing of ours but errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError


class Budget:
    """Bytes that are held, at most `limit`; alone, something larger is. Shared by threads.

    what: they are of, in words.
    """

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._changed = threading.Condition()
        self.held = 0

    @contextmanager
    def holding(self, size: int, seconds: float) -> Iterator[None]:
        """Hold `size` bytes during the body, once there is room for them.

        Raises WireError(NOT_READY) if there is none within `seconds`.
        """
        end = time.monotonic() + seconds
        with self._changed:
            while self.held and self.held + size > self._limit:
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    raise self._full()
            self.held += size
        try:
            yield
        finally:
            self._free(size)

    def giving(self, data: bytes) -> Iterator[bytes]:
        """`data`, which is held, whether or not there is room, until more is asked for."""
        with self._changed:
            self.held += len(data)
        try:
            yield data
        finally:
            self._free(len(data))

    def check(self) -> None:
        """Raises WireError(NOT_READY) if all is held."""
        if self.held >= self._limit:
            raise self._full()

    def _free(self, size: int) -> None:
        with self._changed:
            self.held -= size
            self._changed.notify_all()

    def _full(self) -> WireError:
        return WireError(pb.NOT_READY, f"{self.held} bytes of {self._what} are held already")
