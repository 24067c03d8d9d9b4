"""Requests that are answered without Python: by whom, and what becomes of the others.

Knows no call: what is answered is the handler's own affair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shoal.native.tls import Secured

BUSY, ENDING, FLAGS = 0, 1, 2
"""Bytes by which threads tell each other: a request is being handled; it is to be the last one. And
how many they are."""


class Direct(Protocol):
    """Answers requests without Python: native/answering.pyx's Answerer."""

    def serve(
        self,
        socket: int,
        buffer: memoryview,
        begin: int,
        start: int,
        end: int,
        flags: bytearray,
        part_seconds: float,
        pause: str,
        secured: Secured | None,
        answer_seconds: float,
    ) -> tuple[bool, int, int]:
        """Answer the requests of a connection, until there is one for Python: True, or none: False.

        socket: its number. buffer: what has come is from `start` to `end`, whose new values are
        returned; a message is best received at `begin`. flags: see FLAGS. pause: a file; while
        it is there, all are for Python. secured: TLS on the socket, if any; answer_seconds: its
        limit for an answer of which nothing is taken. Raises OSError.
        """

    def durations(self, kind: int) -> tuple[list[int], float]:
        """Requests of a kind answered by `serve`, by the time of each, and seconds of all."""


@dataclass(frozen=True)
class WithDirect:
    """The handler of a call, of whose requests `direct` answers as many as it can.

    Both answer alike, so nobody but a clock can tell. kind: of the call's requests.
    """

    handler: Callable[[Any], Any]
    direct: Direct
    kind: int

    @property
    def durations(self) -> tuple[list[int], float]:
        """The durations of the requests that `direct` answered, as it tells them."""
        return self.direct.durations(self.kind)

    def __call__(self, request: Any) -> Any:
        """Handle a request as any handler does."""
        return self.handler(request)


def around(
    handler: Callable[[Any], Any], wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
) -> Callable[[Any], Any]:
    """The wrapped handler; requests that are answered without Python still are, unseen by it."""
    if isinstance(handler, WithDirect):
        return replace(handler, handler=wrap(handler.handler))
    return wrap(handler)
