"""Moving routing slots: the calls to the servers, and their order.

The servers that have the slots send rows in rounds, in each the rows that changed since the round
before, while training goes on. Then no server takes new pushes; a push that one of them has is let
in by the others, so that each push is on all servers or on none; and a last round follows. The
master's word in the journal decides the move. From then on the new table holds, even if a process
dies; until then the old one does. Owns that order. job/moves/moves.py decides when to move and what
follows; ps/moving.py does the servers' part.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from shoal.errors import Error
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.job.instructions import FenceWorker
from shoal.master.work.ids import ServerId
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import CallError
from shoal.proto.values.routing import Routing

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

SHORT_SECONDS = 0.05
"""A round that takes no longer is followed by the last one."""

ROUNDS = 12
"""At most, before the last one."""

SHRINKS = 0.7
"""A round that takes more than this part of the one before says that no later one will be short."""

EQUAL_SECONDS = 5.0
"""For workers to repeat the pushes that some servers have and others not."""

LOOK_SECONDS = 0.002
"""Between looks whether they have."""

AGAIN_SECONDS = 0.2
"""Before a server that could not be told is told again."""


class MovingError(Error):
    """Rows could not be moved; the message says why."""


@dataclass(frozen=True)
class Moved:
    """The result of a move. size: bytes. seconds: of all; paused: those that took no push."""

    slots: int
    rows: int
    size: int
    seconds: float
    paused: float


@dataclass(frozen=True)
class Servers:
    """The places of the servers at one moment. routed: with slots; joining: about to get some.

    over: incarnations of workers that are over: no push of theirs will come any more.
    """

    routed: Mapping[ServerId, Place]
    joining: Mapping[ServerId, Place]
    over: Sequence[FenceWorker]

    @property
    def all(self) -> dict[ServerId, Place]:
        """All servers: routed and joining."""
        return {**self.routed, **self.joining}


class Between(Protocol):
    """The moments of a --sync job when no gradient waits for an update (between_updates.py)."""

    def quiet(self) -> AbstractContextManager[None]:
        """Enter at such a moment, which lasts until the end."""

    def check(self, held: Iterable[pb.GradientId]) -> None:
        """Raise MovingError if these gradients, which servers hold, may still be applied."""


class Always:
    """The moments of a job without updates: any moment is one."""

    def quiet(self) -> AbstractContextManager[None]:
        """Enter at once."""
        return nullcontext()

    def check(self, held: Iterable[pb.GradientId]) -> None:
        """Nothing is held."""


class SlotMover:
    """Moves slots between the servers of one job, on a thread of the caller's.

    ending: set when the job has ended.
    """

    def __init__(
        self, servers: ServerConnections, ending: threading.Event, updates: Between | None = None
    ) -> None:
        """updates: of a job with --sync."""
        self._servers = servers
        self._ending = ending
        self._updates = updates or Always()

    def move(
        self,
        before: Routing,
        message: pb.RoutingTable,
        attempt: int,
        there: Servers,
        commit: Callable[[Mapping[ServerId, Place]], object],
    ) -> Moved:
        """Move rows from where the table `before` has them to where `message` has them.

        commit: decides the move, if the servers are still those of `there`. Raises MovingError, and
        what it raises: then nothing is decided, and the servers are to be told so.
        """
        if not all(place.here for place in there.all.values()):
            raise MovingError("a server is away")
        with ThreadPoolExecutor(len(there.all), thread_name_prefix="move") as threads:
            try:
                move = _Move(self._servers, threads, before, message, attempt, there)
                return move.run(commit, self._updates)
            except CallError as error:
                raise MovingError(str(error)) from error

    def settle(
        self,
        table: Callable[[], tuple[pb.RoutingTable, int]],
        places: Callable[[], Mapping[ServerId, Place]],
    ) -> None:
        """Tell all servers which table holds, now that a move is over, however it went.

        One that is away hears it when it registers. table: with the last attempt; table, places: of
        the moment.
        """
        told: dict[ServerId, int | None] = {}
        warned: set[ServerId] = set()
        while not self._ending.is_set():
            left = {
                server: place
                for server, place in places().items()
                if place.here and told.get(server, -1) != place.incarnation
            }
            if not left:
                return
            with ThreadPoolExecutor(len(left), thread_name_prefix="move") as threads:
                end = partial(self._end_move, *table())
                heard = dict(zip(left, threads.map(end, left.keys(), left.values()), strict=True))
            failed = {server: error for server, error in heard.items() if error is not None}
            told |= {server: left[server].incarnation for server in heard.keys() - failed.keys()}
            for server, error in failed.items():
                away = isinstance(error, CallError) or server in warned
                warned.add(server)
                level = logging.DEBUG if away else logging.WARNING
                logger.log(level, "%s was not told that a move is over: %s", server, error)
            if failed:
                self._ending.wait(AGAIN_SECONDS)

    def _end_move(
        self, table: pb.RoutingTable, attempt: int, server: ServerId, place: Place
    ) -> Exception | None:
        """End the move on a server; returns the error if that failed.

        Until it is told, the server takes no push. Errors of its own are returned too.
        """
        try:
            self._servers.end_move(server, place, table, attempt)
        except (CallError, RuntimeError) as error:
            return error
        return None


class _Move:
    """One move, to its decision."""

    def __init__(
        self,
        servers: ServerConnections,
        threads: ThreadPoolExecutor,
        before: Routing,
        message: pb.RoutingTable,
        attempt: int,
        there: Servers,
    ) -> None:
        self._attempt = attempt
        self._servers = servers
        self._threads = threads
        self._message = message
        self._there = there
        self._epoch = message.epoch
        after = Routing.from_message(message)
        self._addresses = [""] * max(before.servers, after.servers)
        for server, place in there.all.items():
            self._addresses[server.index] = place.address
        moving = after.owners != before.owners
        self._slots = int(moving.sum())
        sources = {ServerId(int(each)) for each in np.unique(before.owners[moving])}
        self._sources = {each: place for each, place in there.routed.items() if each in sources}
        self._since = dict.fromkeys(there.routed, 0)
        # Those that leave are told to end, and hear no more of tables.
        present = set(after.present)
        self._staying = {each: at for each, at in there.all.items() if each.index in present}
        # Of the dense variables; they go when nothing changes any more.
        self._of_dense: dict[ServerId, Place] = {}
        if after.dense != before.dense:
            first = range(before.dense)
            self._of_dense = {each: at for each, at in there.routed.items() if each.index in first}
        self._rows = self._size = 0

    def _of(
        self, places: Mapping[ServerId, Place], call: Callable[[ServerId, Place], Result]
    ) -> dict[ServerId, Result]:
        made = self._threads.map(call, places.keys(), places.values())
        return dict(zip(places, made, strict=True))

    def run(self, commit: Callable[[Mapping[ServerId, Place]], object], updates: Between) -> Moved:
        began = time.monotonic()
        self._begin()
        faults.point("move-begun")
        took = self._round()
        for _ in range(ROUNDS):
            if took <= SHORT_SECONDS:
                break
            last, took = took, self._round()
            if took > SHRINKS * last:
                break
        frozen = time.monotonic()
        with updates.quiet():
            replies = self._freeze()
            updates.check([each for reply in replies for each in reply.held])
            self._round(last=True)
            self._join(replies[0])
            faults.point("before-move-committed")
            commit(self._there.all)
            faults.point("move-committed")
            self._of(self._staying, self._set_routing)
        now = time.monotonic()
        return Moved(self._slots, self._rows, self._size, now - began, now - frozen)

    def _begin(self) -> None:
        begun = self._of(
            self._there.routed,
            lambda server, at: self._servers.begin_move(server, at, self._message, self._attempt),
        )
        reply = next(iter(begun.values()))
        self._of(
            self._there.joining,
            lambda server, at: self._servers.begin_move(
                server, at, self._message, self._attempt, reply
            ),
        )

    def _round(self, *, last: bool = False) -> float:
        """Send the rows that changed since the last round; returns the slowest server's seconds."""
        replies = self._of(
            self._sources | (self._of_dense if last else {}),
            lambda server, at: self._servers.send_rows(
                server,
                at,
                self._message,
                self._attempt,
                self._addresses,
                self._since[server],
                last and server in self._of_dense,
            ),
        )
        self._since |= {server: reply.next for server, reply in replies.items()}
        self._rows += sum(reply.rows for reply in replies.values())
        self._size += sum(reply.bytes for reply in replies.values())
        return max((reply.seconds for reply in replies.values()), default=0.0)

    def _freeze(self) -> list[pb.FreezeReply]:
        """Stop new pushes and wait until all servers have the same ones; returns the replies."""
        replies = self._of(self._there.routed, partial(self._let_in, ()))
        give_up = time.monotonic() + EQUAL_SECONDS
        over = {each.worker.index: each.incarnation for each in self._there.over}
        while behind := _behind(replies, over):
            if time.monotonic() > give_up or self._servers.closing:
                raise MovingError(
                    f"a push was not repeated within {EQUAL_SECONDS:g} s, which some servers have"
                )
            most = _last_of(replies)
            places = {server: self._there.routed[server] for server in behind}
            replies |= self._of(places, partial(self._let_in, most))
            time.sleep(LOOK_SECONDS)
        return list(replies.values())

    def _let_in(
        self, until: Sequence[pb.PushIdentity], server: ServerId, place: Place
    ) -> pb.FreezeReply:
        return self._servers.freeze(server, place, self._epoch, self._attempt, until)

    def _join(self, first: pb.FreezeReply) -> None:
        request = pb.JoinRequest(
            epoch=self._epoch,
            attempt=self._attempt,
            has=first.has,
            step=first.step,
            version=first.version,
            clock=first.clock,
            update=first.update,
            fences=[
                pb.FenceRequest(worker=each.worker.index, incarnation=each.incarnation)
                for each in self._there.over
            ],
        )
        self._of(self._there.joining, lambda server, at: self._servers.join(server, at, request))

    def _set_routing(self, server: ServerId, place: Place) -> None:
        try:
            self._servers.set_routing(server, place, self._message)
        except (CallError, RuntimeError) as error:
            # It hears it with the end of the move, or when it registers.
            logger.debug("%s was not told of the new table: %s", server, error)


def _order(push: pb.PushIdentity) -> tuple[int, int]:
    """The position of a push among the pushes of its worker."""
    return push.incarnation, push.sequence


def _last_of(replies: Mapping[ServerId, pb.FreezeReply]) -> list[pb.PushIdentity]:
    """The last push of each worker that any server has."""
    last: dict[int, pb.PushIdentity] = {}
    for each in (each.identity for reply in replies.values() for each in reply.has):
        if _order(each) > _order(last.setdefault(each.worker, each)):
            last[each.worker] = each
    return list(last.values())


def _behind(replies: Mapping[ServerId, pb.FreezeReply], over: Mapping[int, int]) -> list[ServerId]:
    """The servers that lack the last push of a worker that another one has.

    over: of workers, the incarnation that is over: of it nothing will come.
    """
    most = _last_of(replies)
    behind = []
    for server, reply in replies.items():
        has = {each.identity.worker: _order(each.identity) for each in reply.has}
        if any(
            has.get(each.worker, (-1, 0)) != _order(each)
            for each in most
            if each.incarnation > over.get(each.worker, -1)
        ):
            behind.append(server)
    return behind
