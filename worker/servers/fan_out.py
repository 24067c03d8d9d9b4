"""A call to many servers at once below Python, and what becomes of those that are not plain.

Owns which servers are called by native/fan_out: those with an idle connection that C can use. Every
other one, and one that refused, was away or gave no plain answer, is called by itself, with
`start` and `finish` of calls.py. What requests and answers hold is known to pull_requests.py and
push_requests.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.native import fan_out as native
from shoal.native.fan_out import FanOut
from shoal.proto.channels.circuit import Attempt, Circuit
from shoal.proto.channels.rpc import Lent
from shoal.proto.methods import Method
from shoal.proto.plane import message
from shoal.proto.plane.client import Take
from shoal.proto.plane.link import BrokenError, LateError
from shoal.proto.wire.transport import MAXIMUM_MESSAGE_BYTES
from shoal.worker.servers.calls import Frame, ServerCalls

LOOK_SECONDS = 0.005
"""Between two looks at a call that another thread makes."""


def fan_out(servers: int, method: Method[Any, Any]) -> FanOut:
    """A call to so many servers, to be filled in."""
    return FanOut(servers, method.kind, message.ANSWER, MAXIMUM_MESSAGE_BYTES)


class FannedOut:
    """One call to several servers, once.

    answered: the servers whose answers are there, by index, once `run` has returned. made: has
    these, if there are any.
    """

    def __init__(
        self,
        calls: ServerCalls,
        method: Method[Any, bytes],
        servers: Sequence[int],
        make: Callable[[], FanOut],
        frame: Callable[[int], Frame],
    ) -> None:
        """servers: all that are called. make: the requests to all. frame: that to one."""
        self._calls = calls
        self._method = method
        self._servers = servers
        self._make = make
        self._frame = frame
        self._over = threading.Event()
        self.made: FanOut | None = None
        self._begun: dict[int, tuple[Frame, Attempt[bytes]]] = {}
        self.answered: list[int] = []

    def was_answered(self, server: int) -> bool:
        """Wait for a server; True if it answered, without a refusal. By any thread."""
        while server not in self._begun and not self._over.is_set():
            status = self._status(server)
            if status == native.DONE or status > native.UNREAD:
                break
            self._over.wait(LOOK_SECONDS)
        if server in self._begun:
            return Circuit.was_answered(self._method, self._begun[server][1])
        return self._status(server) == native.DONE

    def _status(self, server: int) -> int:
        return 0 if self.made is None else int(self.made.status[server])

    def run(self, *, one_by_one: bool = False) -> None:
        """Send to all servers, and receive what answers there are.

        one_by_one: only begin calls, of all. Raises what a handler of signals raises.
        """
        lent: dict[int, Lent] = {}
        try:
            if not one_by_one:
                lent = self._calls.lend(self._servers, self._method)
            for server in self._servers:
                if server not in lent:
                    self._begin(server)
            if lent:
                self._exchange(lent)
        finally:
            self._over.set()
            for _, pool, link in lent.values():  # those of an error, or after a signal
                pool.drop(link)

    @property
    def left(self) -> list[int]:
        """The servers that are not `answered`, whose calls are to be `finish`ed one by one."""
        return sorted(self._begun)

    def finish(self, server: int, take: Take | None = None) -> Any:
        """Wait for the answer of a server that is left, as ServerCalls.finish."""
        return self._calls.finish(server, self._method, *self._begun[server], take)

    def _begin(self, server: int) -> None:
        frame = self._frame(server)
        self._begun[server] = frame, self._calls.start(server, self._method, frame)

    def _exchange(self, lent: dict[int, Lent]) -> None:
        seconds = next(iter(lent.values()))[0].deadline
        self.made = made = self._make()
        sockets = np.full(made.status.size, -1, np.int32)
        sockets[list(lent)] = [link.number for _, _, link in lent.values()]
        until = time.monotonic() + seconds
        links = ((server, link.secured) for server, (_, _, link) in lent.items())
        made.run(sockets, seconds, {server: each for server, each in links if each is not None})
        statuses = made.status.tolist()
        self.answered = [server for server in lent if statuses[server] == native.DONE]
        for server in self.answered:
            # The circuit is closed, or whoever waits at it asks the server in a moment.
            _, pool, link = lent.pop(server)
            pool.give_back(link)
        for server in list(lent):
            if statuses[server] == native.UNSENT:
                _, pool, link = lent.pop(server)
                pool.give_back(link)
                self._begin(server)
            else:
                found, frame = self._found(made, server, seconds), self._frame(server)
                connection, pool, link = lent.pop(server)
                exchange = pool.taken_on(self._method, link, seconds, found, until)
                self._begun[server] = frame, Attempt(connection, exchange)

    @staticmethod
    def _found(made: FanOut, server: int, seconds: float) -> bytes | BrokenError:
        """The bytes that have come of an answer that is not plain, or why there are none."""
        status = int(made.status[server])
        if status == native.UNREAD:
            return made.kept(server)
        if status == native.LATE:
            return LateError(f"no answer for {seconds:g} s")
        if status == native.UNTAKEN:
            return LateError(f"the other end took nothing for {seconds:g} s")
        if status == native.CLOSED:
            return BrokenError("the connection was closed by the other end")
        number = made.error(server)
        return BrokenError(str(OSError(number, os.strerror(number))))
