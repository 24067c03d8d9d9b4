"""Fences: every server must refuse a worker that is over, and tell its last push.

One thread asks all servers for all workers at the same time, however many died at once, and
shares nothing with checkpoints. A server that is not there is not called: before it answers a
worker it registers, and learns which workers are over (`Membership.fences`), so none of these can
push to it. It is asked once it has registered, since only it knows its pushes. An answer holds for
that incarnation of the server: the next one may have less, and is asked anew. Owns the asking; the
job draws the conclusions from the answers.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import cast

from shoal.master.calls.servers import FENCE_DEADLINE, Place, ServerConnections
from shoal.master.job.instructions import FenceWorker
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.ids import ServerId
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError, PeerUnavailableError

logger = logging.getLogger(__name__)

ASK_SECONDS = 0.2
"""Between looks for servers that have come back, and tries of those that did not answer."""

NEVER_PUSHED = AppliedPush(0, 0, 0)


@dataclass(frozen=True)
class Said:
    """A worker's last push that a server has. incarnation: the server's; None: it never ran."""

    incarnation: int | None
    push: AppliedPush


@dataclass(frozen=True)
class _Answer:
    """A call of a fence to an incarnation of a server has ended."""

    fence: FenceWorker
    server: ServerId
    incarnation: int | None
    connection: Connection
    future: Future[pb.FenceReply]


@dataclass
class _Asked:
    """The progress of a fence. again: the servers that did not answer, to be asked once more."""

    answers: dict[ServerId, Said] = field(default_factory=dict)
    under_way: set[ServerId] = field(default_factory=set)
    again: set[ServerId] = field(default_factory=set)


class Fences:
    """The fences of a job.

    places: where its servers are, all of them. fenced: takes a fence with what each server has of
        its worker last, in the order of `places`, and returns whether it could; not if a server
        that said so is not there any more. From the thread. failed: takes what else the thread
        raises; it goes on with the other fences.
    """

    def __init__(
        self,
        servers: ServerConnections,
        places: Callable[[], Mapping[ServerId, Place]],
        fenced: Callable[[FenceWorker, Mapping[ServerId, Said]], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self._servers = servers
        self._places = places
        self._fenced = fenced
        self._failed = failed
        self._inbox: queue.SimpleQueue[FenceWorker | _Answer | None] = queue.SimpleQueue()
        self._pending: dict[FenceWorker, _Asked] = {}
        self._thread = threading.Thread(target=self._run, name="fences", daemon=True)

    def submit(self, fence: FenceWorker) -> None:
        """Make all servers refuse a worker. Two threads must not call this at once."""
        if self._thread.ident is None:
            self._thread.start()
        self._inbox.put(fence)

    def close(self) -> None:
        """End the thread; what is under way is given up."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        look = 0.0
        while True:
            events = self._next()
            if None in events:
                return
            try:
                # All that has come, before anything is asked; and of many fences only those of
                # which something new is known. With n servers each has n answers.
                touched = {fence for event in events if (fence := self._take(event)) is not None}
                if time.monotonic() > look + ASK_SECONDS:
                    look = time.monotonic()
                    for asked in self._pending.values():
                        asked.again.clear()
                    touched = set(self._pending)
                self._ask(touched)
            except Exception as error:
                self._failed(error)

    def _next(self) -> list[FenceWorker | _Answer | None]:
        """The new events; waits for one, but not beyond the next look while a fence is pending."""
        events: list[FenceWorker | _Answer | None] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._inbox.get(timeout=ASK_SECONDS if self._pending else None))
            while True:
                events.append(self._inbox.get_nowait())
        return events

    def _ask(self, fences: Iterable[FenceWorker]) -> None:
        fences = [fence for fence in fences if fence in self._pending]
        if not fences:
            return
        places = self._places()
        for fence in fences:
            asked = self._pending[fence]
            for server, place in places.items():
                said = asked.answers.get(server)
                if said is not None and said.incarnation != place.incarnation:
                    del asked.answers[server]
                elif said is not None:
                    continue
                if server in asked.under_way or server in asked.again:
                    continue
                if not place.address:
                    asked.answers[server] = Said(place.incarnation, NEVER_PUSHED)
                elif place.here:
                    self._call(fence, asked, server, place)
            if len(asked.answers) == len(places):
                del self._pending[fence]
                if not self._fenced(fence, {server: asked.answers[server] for server in places}):
                    self._pending[fence] = asked

    def _call(self, fence: FenceWorker, asked: _Asked, server: ServerId, place: Place) -> None:
        request = pb.FenceRequest(
            worker=fence.worker.index, incarnation=fence.incarnation, kept=fence.kept
        )
        connection = self._servers.connection(server, place)
        try:
            begun = connection.start(methods.FENCE, request, FENCE_DEADLINE)
        except PeerUnavailableError:  # closed, as the job ends
            asked.again.add(server)
            return
        asked.under_way.add(server)
        whose = fence, server, place.incarnation, connection
        future = cast("Future[pb.FenceReply]", begun)  # as of all calls of gRPC
        future.add_done_callback(lambda ended: self._inbox.put(_Answer(*whose, ended)))

    def _take(self, event: FenceWorker | _Answer | None) -> FenceWorker | None:
        """Note what has come; returns the fence of which there is something to do now."""
        if not isinstance(event, _Answer):
            if event is not None:
                self._pending.setdefault(event, _Asked())
            return event
        asked = self._pending.get(event.fence)
        if asked is None:
            return None
        asked.under_way.discard(event.server)
        try:
            reply = event.connection.result(methods.FENCE, event.future)
        except CallError as error:
            logger.warning(
                "%s could not be told yet that %s is dead: %s",
                event.server,
                event.fence.worker,
                error,
            )
            asked.again.add(event.server)
        except RuntimeError as error:  # a mistake of the server's own
            self._failed(error)
        else:
            push = AppliedPush(reply.sequence, reply.task, reply.records_done)
            asked.answers[event.server] = Said(event.incarnation, push)
        return None if asked.under_way else event.fence
