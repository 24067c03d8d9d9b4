"""Fences: every server is to refuse a worker that is over, and to say what it has of it.

One thread asks all servers for all workers at the same time, however many died at once, and
shares nothing with checkpoints. A server that is not there is not called: before it answers a
worker it registers, and learns which workers are over (`Membership.fences`), so none of these can
push to it. It is asked once it has registered, since only it knows what it has. Owns the asking;
what follows from the answers is the job's.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from shoal.master.applied import AppliedPush
from shoal.master.ids import ServerId
from shoal.master.instructions import FenceWorker
from shoal.master.servers import FENCE_DEADLINE, Place, ServerConnections
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.rpc import Connection

logger = logging.getLogger(__name__)

ASK_SECONDS = 0.2
"""Between looks for servers that have come back, and tries of those that did not answer."""

NEVER_PUSHED = AppliedPush(0, 0, 0)


@dataclass(frozen=True)
class _Answer:
    """A call of a fence has ended."""

    fence: FenceWorker
    server: ServerId
    connection: Connection
    future: Future[pb.FenceReply]


@dataclass
class _Asked:
    """How far a fence is. again: the servers that did not answer, to be asked once more."""

    answers: dict[ServerId, AppliedPush] = field(default_factory=dict)
    under_way: set[ServerId] = field(default_factory=set)
    again: set[ServerId] = field(default_factory=set)


class Fences:
    """The fences of a job.

    places: where its servers are, all of them. fenced: takes a fence with what each server had of
        its worker last, in the order of `places`; from the thread. failed: takes what else the
        thread raises; it goes on with the other fences.
    """

    def __init__(
        self,
        servers: ServerConnections,
        places: Callable[[], Mapping[ServerId, Place]],
        fenced: Callable[[FenceWorker, list[AppliedPush]], None],
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
        """Have all servers refuse a worker. Not by two threads at once."""
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
            try:
                event = self._inbox.get(timeout=ASK_SECONDS if self._pending else None)
            except queue.Empty:
                event = None
            else:
                if event is None:
                    return
            try:
                if isinstance(event, _Answer):
                    self._take(event)
                elif event is not None:
                    self._pending.setdefault(event, _Asked())
                if time.monotonic() > look + ASK_SECONDS:
                    look = time.monotonic()
                    for asked in self._pending.values():
                        asked.again.clear()
                self._ask()
            except Exception as error:
                self._failed(error)

    def _ask(self) -> None:
        if not self._pending:
            return
        places = self._places()
        for fence, asked in list(self._pending.items()):
            for server, place in places.items():
                if server in asked.answers or server in asked.under_way or server in asked.again:
                    continue
                if not place.address:
                    asked.answers[server] = NEVER_PUSHED
                elif place.here:
                    self._call(fence, asked, server, place)
            if len(asked.answers) == len(places):
                del self._pending[fence]
                self._fenced(fence, [asked.answers[server] for server in places])

    def _call(self, fence: FenceWorker, asked: _Asked, server: ServerId, place: Place) -> None:
        request = pb.FenceRequest(
            worker=fence.worker.index, incarnation=fence.incarnation, kept=fence.kept
        )
        connection = self._servers.connection(server, place)
        try:
            future = connection.start(methods.FENCE, request, FENCE_DEADLINE)
        except PeerUnavailableError:  # closed, as the job ends
            asked.again.add(server)
            return
        asked.under_way.add(server)
        future.add_done_callback(
            lambda ended: self._inbox.put(_Answer(fence, server, connection, ended))
        )

    def _take(self, answer: _Answer) -> None:
        asked = self._pending.get(answer.fence)
        if asked is None:
            return
        asked.under_way.discard(answer.server)
        try:
            reply = answer.connection.result(methods.FENCE, answer.future)
        except (PeerUnavailableError, WireError) as error:
            logger.warning(
                "%s could not be told yet that %s is dead: %s",
                answer.server,
                answer.fence.worker,
                error,
            )
            asked.again.add(answer.server)
        else:
            asked.answers[answer.server] = AppliedPush(
                reply.sequence, reply.task, reply.records_done
            )
