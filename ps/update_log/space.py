"""The bytes that a server's own log holds, and the bytes that it may hold.

Owns the bytes of the pushes that are in it, or on their way. No I/O; its owner keeps threads apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

NEAR = 0.5
"""Share of the bound at which a checkpoint is asked for: taking it takes a while."""


class LogSpace:
    """The space of one log. bound: bytes that it may hold, but for a single push.

    bytes: that it holds. reserved: for pushes that are checked, and not in it yet. grows: it may
    hold twice what the server's tables take, where that is more.
    """

    def __init__(self, bound: int, *, grows: bool = False) -> None:
        self.bytes = 0
        self.reserved = 0
        self._bound = bound
        self._grows = grows
        # Of each entry, int64: a list of tuples would cost more than small pushes do.
        self._steps, self._sizes = array("q"), array("q")

    @property
    def nearly_full(self) -> bool:
        """True if a checkpoint should be taken, which makes room."""
        return self.bytes > NEAR * self._bound

    def beside(self, tables: int) -> None:
        """The server's tables take so many bytes now.

        A checkpoint writes them all, so it is asked for when the log has as much: else it would be
        most of the work. The bound does not fall again, or pushes would wait as rows leave.
        """
        if self._grows:
            self._bound = max(self._bound, 2 * tables)

    def check(self, size: int) -> None:
        """Raises WireError(NOT_READY) if there is no room for a push of `size` bytes now."""
        held = self.bytes + self.reserved
        if held and held + size > self._bound:
            raise WireError(
                pb.NOT_READY,
                f"the log of updates is full (--log-mb {self._bound >> 20}) until the next "
                "checkpoint is complete",
            )

    def add(self, step: int, size: int) -> None:
        """A push of `size` bytes is in the log, as the optimizers' `step`."""
        self._steps.append(step)
        self._sizes.append(size)
        self.bytes += size

    def hold(self, sizes: Iterable[tuple[int, int]], after: int = 0) -> None:
        """The log holds the pushes (step, bytes) of steps above `after`, and no others."""
        kept = [each for each in sizes if each[0] > after]
        self._steps = array("q", (step for step, _ in kept))
        self._sizes = array("q", (size for _, size in kept))
        self.bytes = sum(self._sizes)

    def drop(self, step: int) -> None:
        """The pushes up to `step` are in the log no longer."""
        self.hold(zip(self._steps, self._sizes, strict=True), step)
