"""The master's own calls to the parameter servers: status, checkpoints, updates.

Owns the connections; the calls of fences are fences.py's. When to call, and what an answer means,
is others' to say.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.master.job.members.members import ProcessState, ServerMember
from shoal.master.job.updates import Gradient, Update
from shoal.master.work.ids import ProcessId, ServerId
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError, PeerUnavailableError
from shoal.proto.identity import Identity
from shoal.proto.methods import Method, Reply, Request
from shoal.proto.wire.transport import peer_name

logger = logging.getLogger(__name__)

STATUS_DEADLINE = 2.0
"""Seconds; the next poll comes soon, so an unanswered one is dropped."""

STACKS_DEADLINE = 5.0
"""Seconds for a server to say where its threads stand, which takes it milliseconds."""

FENCE_DEADLINE = 10.0
"""Seconds; a fence waits for the push under way."""

BEGIN_DEADLINE = 60.0
"""Seconds; a server fixes its rows between two pushes, and ends an older writing first."""

WRITE_DEADLINE = 3600.0
"""Seconds for a server's shard of a checkpoint; a server that dies ends the call at once."""

MOVE_DEADLINE = 30.0
"""Seconds for what a server does at the beginning and the end of a move of slots, but for rows."""

ROWS_DEADLINE = 3600.0
"""Seconds for a server to send rows, or to do away with some."""

NEW_NAME_SECONDS = 10.0
"""For the name of a new pod to be known everywhere: it registers a few seconds before that."""

COMPLETE_DEADLINE = 10.0
"""Seconds; a server has another one let go of its log."""

SHUTDOWN_DEADLINE = 2.0
"""Seconds; a server that does not answer gets a signal."""


class Place(NamedTuple):
    """The address where a server is, or was last: "" if it never was anywhere.

    incarnation: the one that has registered there; None while the server is not there.
    """

    address: str
    incarnation: int | None

    @classmethod
    def of(cls, member: ServerMember) -> Place:
        """The place of a server of the job."""
        here = member.state == ProcessState.ALIVE
        return cls(member.address, member.incarnation if here else None)

    @property
    def here(self) -> bool:
        """True if the server has registered, and is not known to be dead."""
        return self.incarnation is not None


def places_of(members: Iterable[ServerMember]) -> dict[ServerId, Place]:
    """The places where servers are, or were last."""
    return {each.id: Place.of(each) for each in members}


class ServerConnections:
    """Connections by server, opened on first use; shared by threads.

    token: of the job. identity: of the master.

    Each incarnation of a server has one of its own, also at the same address: that may be a name,
    for which gRPC looks seldom after it was not found, and it would be without a connection for
    half a minute after the server is back.
    """

    def __init__(self, token: str, identity: Identity | None = None) -> None:
        self._token = token
        self._identity = identity
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: dict[ServerId, tuple[int, Connection]] = {}

    def connection(self, server: ServerId, place: Place) -> Connection:
        """The connection to the newest incarnation of a server, which is at a place."""
        with self._lock:
            newest, connection = self._connections.get(server, (-1, None))
            # Of a caller that has not heard of the newest one yet, too.
            incarnation = newest if place.incarnation is None else place.incarnation
            if connection is not None:
                if incarnation <= newest:
                    return connection
                connection.close()
            connection = Connection(
                place.address,
                cancelled=self._closing,
                peer=peer_name(self._token, server.role, server.index),
                identity=self._identity,
            )
            self._connections[server] = incarnation, connection
            return connection

    def give_up_waiting(self) -> None:
        """Let calls that are being retried fail now."""
        self._closing.set()

    def close(self) -> None:
        """Close all connections."""
        self._closing.set()
        with self._lock:
            for _, connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _call_once(
        self,
        server: ServerId,
        place: Place,
        method: Method[Request, Reply],
        request: Request,
        deadline: float,
    ) -> Reply:
        """A call that is not tried again: its caller decides how to go on.

        Raises WireError, PeerUnavailableError.
        """
        connection = self.connection(server, place)
        return connection.call(method, request, deadline=deadline, patience=0.0)

    def statuses(
        self,
        places: Mapping[ServerId, Place],
        journal: pb.JournalPosition,
        *,
        pushes: bool = False,
        loads: bool = False,
    ) -> Iterator[tuple[ServerId, pb.ServerStatus]]:
        """The statuses of the servers that answer; all are asked at once.

        journal: its last event, which the servers are told. pushes: they also say which pushes
        they have. loads: they also say how much each slot was asked for.
        """
        asked = []
        for server, place in places.items():
            connection = self.connection(server, place)
            with contextlib.suppress(PeerUnavailableError):  # closed, as the job ends
                request = pb.ServerStatusRequest(journal=journal, pushes=pushes, loads=loads)
                answer = connection.start(methods.STATUS, request, STATUS_DEADLINE)
                asked.append((server, connection, answer))
        for server, connection, answer in asked:
            try:
                yield server, connection.result(methods.STATUS, answer)
            except CallError as error:
                logger.debug("no status of %s: %s", server, error)
            except RuntimeError as error:
                # A mistake of its own: if it stays so, the server is killed as one that hangs.
                logger.warning("%s could not say how it is: %s", server, error)

    def stacks(self, places: Mapping[ServerId, Place]) -> dict[ProcessId, pb.ProcessStacks | str]:
        """The stacks of servers' threads, or why one has not answered; all are asked at once."""
        method, request = methods.GET_STACKS, pb.StacksRequest()
        asked: dict[ServerId, tuple[Connection, Any]] = {}
        found: dict[ProcessId, pb.ProcessStacks | str] = {}
        for server, place in places.items():
            connection = self.connection(server, place)
            try:
                asked[server] = connection, connection.start(method, request, STACKS_DEADLINE)
            except CallError as error:  # closed, as the job ends
                found[server] = str(error)
        for server, (connection, answer) in asked.items():
            try:
                found[server] = connection.result(method, answer)
            except (CallError, RuntimeError) as error:
                found[server] = str(error)
        return found

    def find_id(self, server: ServerId, place: Place, request: pb.FindIdRequest) -> pb.FoundId:
        """The state of an id on a server. Raises WireError, PeerUnavailableError."""
        return self._call_once(server, place, methods.FIND_ID, request, STACKS_DEADLINE)

    def begin_checkpoint(self, server: ServerId, place: Place, number: int, nonce: str) -> None:
        """Make a server fix its state for a checkpoint. Raises WireError, PeerUnavailableError."""
        request = pb.BeginCheckpointRequest(number=number, nonce=nonce)
        self._call_once(server, place, methods.BEGIN_CHECKPOINT, request, BEGIN_DEADLINE)

    def write_shard(self, server: ServerId, place: Place, number: int, nonce: str) -> list[str]:
        """Make a server write its fixed state; returns JSON for the manifest, one per shard.

        Raises WireError, PeerUnavailableError.
        """
        request = pb.WriteShardRequest(number=number, nonce=nonce)
        reply = self._call_once(server, place, methods.WRITE_SHARD, request, WRITE_DEADLINE)
        return [reply.shard, *reply.empty]

    def publish(
        self, server: ServerId, place: Place, request: pb.PublishRequest
    ) -> pb.PublishReply:
        """Make a server write its share of a delta.

        Raises WireError, PeerUnavailableError.
        """
        return self._call_once(server, place, methods.PUBLISH, request, WRITE_DEADLINE)

    def complete_checkpoint(self, server: ServerId, place: Place, number: int, nonce: str) -> None:
        """Tell a server that a checkpoint is complete; the next one's word will do as well."""
        request = pb.CompleteCheckpointRequest(number=number, nonce=nonce)
        try:
            self._call_once(server, place, methods.COMPLETE_CHECKPOINT, request, COMPLETE_DEADLINE)
        except CallError as error:
            logger.debug("%s was not told of checkpoint %d: %s", server, number, error)

    def drop_checkpoint(self, server: ServerId, place: Place, number: int, nonce: str) -> None:
        """Make a server give up a checkpoint; one that does not answer does so by itself."""
        request = pb.DropCheckpointRequest(number=number, nonce=nonce)
        try:
            self._call_once(server, place, methods.DROP_CHECKPOINT, request, SHUTDOWN_DEADLINE)
        except CallError as error:
            logger.debug("%s was not told to drop checkpoint %d: %s", server, number, error)

    def apply_update(self, places: Mapping[ServerId, Place], update: Update) -> int:
        """Make every server apply an update of --sync; returns the highest version.

        A server that has applied it does not apply it again. Raises PeerUnavailableError or
        WireError if a server cannot.
        """
        request = pb.ApplyUpdateRequest(
            update=update.number,
            after=update.after,
            gradients=map(_gradient_id, update.gradients),
            dropped=map(_gradient_id, update.dropped),
        )
        connections = [self.connection(*each) for each in places.items()]
        answers = [each.start(methods.APPLY_UPDATE, request) for each in connections]
        replies = [
            connection.finish(methods.APPLY_UPDATE, request, answer, patience=0.0)
            for connection, answer in zip(connections, answers, strict=True)
        ]
        return max(reply.version for reply in replies)

    @property
    def closing(self) -> bool:
        """True if no call is waited for any more."""
        return self._closing.is_set()

    def begin_move(
        self,
        server: ServerId,
        place: Place,
        table: pb.RoutingTable,
        attempt: int,
        other: pb.BeginMoveReply | None = None,
    ) -> pb.BeginMoveReply:
        """Tell a server of a move. attempt: as `Moves` counts them, in all calls of a move.

        other: the reply of another server, for a new server.

        Raises WireError, PeerUnavailableError, as all calls of a move.
        """
        request = pb.BeginMoveRequest(table=table, attempt=attempt)
        if other is None:
            return self._call_once(server, place, methods.BEGIN_MOVE, request, ROWS_DEADLINE)
        request.model.CopyFrom(other.model)
        request.step = other.step
        connection = self.connection(server, place)
        return connection.call(
            methods.BEGIN_MOVE, request, deadline=ROWS_DEADLINE, patience=NEW_NAME_SECONDS
        )

    def send_rows(
        self,
        server: ServerId,
        place: Place,
        table: pb.RoutingTable,
        attempt: int,
        addresses: Sequence[str],
        since: int,
        dense: bool,
    ) -> pb.SendRowsReply:
        """Make a server send the rows that move and that changed at step `since` or later.

        dense: also send the elements of dense variables that move.
        """
        request = pb.SendRowsRequest(
            table=table, attempt=attempt, addresses=addresses, since=since, dense=dense
        )
        return self._call_once(server, place, methods.SEND_ROWS, request, ROWS_DEADLINE)

    def freeze(
        self,
        server: ServerId,
        place: Place,
        epoch: int,
        attempt: int,
        until: Sequence[pb.PushIdentity],
    ) -> pb.FreezeReply:
        """Make a server take no pushes but those up to `until`; the reply tells which it has."""
        request = pb.FreezeRequest(epoch=epoch, attempt=attempt, until=until)
        return self._call_once(server, place, methods.FREEZE, request, MOVE_DEADLINE)

    def join(self, server: ServerId, place: Place, request: pb.JoinRequest) -> None:
        """Bring a new server to the state of the others."""
        self._call_once(server, place, methods.JOIN, request, MOVE_DEADLINE)

    def set_routing(self, server: ServerId, place: Place, table: pb.RoutingTable) -> None:
        """Make a server take a newer routing table."""
        self._call_once(server, place, methods.SET_ROUTING, table, MOVE_DEADLINE)

    def end_move(
        self, server: ServerId, place: Place, table: pb.RoutingTable, attempt: int
    ) -> None:
        """Tell a server that a move is over, and which table holds."""
        request = pb.EndMoveRequest(table=table, attempt=attempt)
        self._call_once(server, place, methods.END_MOVE, request, ROWS_DEADLINE)

    def shut_down(self, server: ServerId, place: Place, reason: str) -> None:
        """Ask a server to end; one that does not answer is left to the launcher."""
        request = pb.ShutdownRequest(reason=reason)
        try:
            self._call_once(server, place, methods.SHUTDOWN, request, SHUTDOWN_DEADLINE)
        except CallError as error:
            logger.debug("%s did not answer the shutdown: %s", server, error)


def _gradient_id(gradient: Gradient) -> pb.GradientId:
    return pb.GradientId(
        worker=gradient.worker.index,
        incarnation=gradient.incarnation,
        number=gradient.number,
    )
