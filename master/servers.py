"""The master's own calls to the parameter servers: status, fences, checkpoints, updates.

Owns the connections. When to call, and what an answer means, is others' to say.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping

from shoal.master.applied import AppliedPush
from shoal.master.ids import ServerId
from shoal.master.instructions import FenceWorker
from shoal.master.updates import Gradient, Update
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.methods import Method, Reply, Request
from shoal.proto.rpc import Connection
from shoal.proto.transport import peer_name

logger = logging.getLogger(__name__)

STATUS_DEADLINE = 2.0
"""Seconds; the next poll comes soon, so an unanswered one is dropped."""

FENCE_DEADLINE = 10.0
"""Seconds; a fence waits for the push under way."""

BEGIN_DEADLINE = 60.0
"""Seconds; a server fixes its rows between two pushes, and ends an older writing first."""

WRITE_DEADLINE = 3600.0
"""Seconds for a server's share of a checkpoint; a server that dies ends the call at once."""

COMPLETE_DEADLINE = 10.0
"""Seconds; a server has another one let go of its log."""

SHUTDOWN_DEADLINE = 2.0
"""Seconds; a server that does not answer gets a signal."""


class ServerConnections:
    """Connections by server, opened on first use; shared by threads. token: of the job."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: dict[ServerId, Connection] = {}

    def _connection(self, server: ServerId, address: str) -> Connection:
        with self._lock:
            connection = self._connections.get(server)
            if connection is None or connection.address != address:
                if connection is not None:
                    connection.close()
                connection = Connection(
                    address,
                    cancelled=self._closing,
                    peer=peer_name(self._token, server.role, server.index),
                )
                self._connections[server] = connection
            return connection

    def give_up_waiting(self) -> None:
        """Let calls that are being retried fail now."""
        self._closing.set()

    def close(self) -> None:
        """Close all connections."""
        self._closing.set()
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _call_once(
        self,
        server: ServerId,
        address: str,
        method: Method[Request, Reply],
        request: Request,
        deadline: float,
    ) -> Reply:
        """A call that is not tried again: whoever made it decides what then.

        Raises WireError, PeerUnavailableError.
        """
        connection = self._connection(server, address)
        return connection.call(method, request, deadline=deadline, patience=0.0)

    def statuses(
        self,
        addresses: Mapping[ServerId, str],
        journal: pb.JournalPosition,
        *,
        pushes: bool = False,
    ) -> Iterator[tuple[ServerId, pb.ServerStatus]]:
        """What servers say of themselves, of those that answer; all are asked at once.

        journal: how far it is, which they are told. pushes: they say also which they have.
        """
        asked = []
        for server, address in addresses.items():
            connection = self._connection(server, address)
            with contextlib.suppress(PeerUnavailableError):  # closed, as the job ends
                request = pb.ServerStatusRequest(journal=journal, pushes=pushes)
                answer = connection.start(methods.STATUS, request, STATUS_DEADLINE)
                asked.append((server, connection, answer))
        for server, connection, answer in asked:
            try:
                yield server, connection.result(methods.STATUS, answer)
            except (PeerUnavailableError, WireError) as error:
                logger.debug("no status of %s: %s", server, error)

    def fence(self, server: ServerId, address: str, fence: FenceWorker) -> AppliedPush | None:
        """Have a server refuse a worker; returns its last push there, None if unreachable."""
        request = pb.FenceRequest(
            worker=fence.worker.index, incarnation=fence.incarnation, kept=fence.kept
        )
        try:
            reply = self._call_once(server, address, methods.FENCE, request, FENCE_DEADLINE)
        except (PeerUnavailableError, WireError) as error:
            logger.warning("%s could not be told that %s is dead: %s", server, fence.worker, error)
            return None
        return AppliedPush(reply.sequence, reply.task, reply.records_done)

    def begin_checkpoint(self, server: ServerId, address: str, number: int, nonce: str) -> None:
        """Have a server fix what it holds. Raises WireError, PeerUnavailableError."""
        request = pb.BeginCheckpointRequest(number=number, nonce=nonce)
        self._call_once(server, address, methods.BEGIN_CHECKPOINT, request, BEGIN_DEADLINE)

    def write_share(
        self, server: ServerId, address: str, number: int, nonce: str, root: str
    ) -> str:
        """Have a server write what it fixed; returns JSON for the manifest.

        Raises WireError, PeerUnavailableError.
        """
        request = pb.WriteShareRequest(number=number, nonce=nonce, root=root)
        reply = self._call_once(server, address, methods.WRITE_SHARE, request, WRITE_DEADLINE)
        return reply.share

    def complete_checkpoint(self, server: ServerId, address: str, number: int, nonce: str) -> None:
        """Tell a server that a checkpoint is complete; the next one's word will do as well."""
        request = pb.CompleteCheckpointRequest(number=number, nonce=nonce)
        try:
            self._call_once(
                server, address, methods.COMPLETE_CHECKPOINT, request, COMPLETE_DEADLINE
            )
        except (PeerUnavailableError, WireError) as error:
            logger.debug("%s was not told of checkpoint %d: %s", server, number, error)

    def drop_checkpoint(self, server: ServerId, address: str, number: int, nonce: str) -> None:
        """Have a server give a checkpoint up; one that does not answer does so by itself."""
        request = pb.DropCheckpointRequest(number=number, nonce=nonce)
        try:
            self._call_once(server, address, methods.DROP_CHECKPOINT, request, SHUTDOWN_DEADLINE)
        except (PeerUnavailableError, WireError) as error:
            logger.debug("%s was not told to drop checkpoint %d: %s", server, number, error)

    def apply_update(self, addresses: Mapping[ServerId, str], update: Update) -> int:
        """Have every server apply an update of --sync; returns the highest version.

        Raises PeerUnavailableError or WireError if one cannot.
        """
        request = pb.ApplyUpdateRequest(
            update=update.number,
            gradients=map(_gradient_id, update.gradients),
            dropped=map(_gradient_id, update.dropped),
        )
        connections = [self._connection(*each) for each in addresses.items()]
        answers = [each.start(methods.APPLY_UPDATE, request) for each in connections]
        replies = [
            connection.finish(methods.APPLY_UPDATE, request, answer)
            for connection, answer in zip(connections, answers, strict=True)
        ]
        return max(reply.version for reply in replies)

    def shut_down(self, server: ServerId, address: str, reason: str) -> None:
        """Ask a server to end; one that does not answer is left to the launcher."""
        request = pb.ShutdownRequest(reason=reason)
        try:
            self._call_once(server, address, methods.SHUTDOWN, request, SHUTDOWN_DEADLINE)
        except (PeerUnavailableError, WireError) as error:
            logger.debug("%s did not answer the shutdown: %s", server, error)


def _gradient_id(gradient: Gradient) -> pb.GradientId:
    return pb.GradientId(
        worker=gradient.worker.index,
        incarnation=gradient.incarnation,
        number=gradient.number,
    )
