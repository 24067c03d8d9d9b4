"""The worker's calls to the parameter servers, whoever makes them and whatever they carry.

Owns the connections, registering (again with a server that was started again), and
following the routing table. Waiting for a server that is away is proto/channels/circuit.py's; what
is called is pulling.py's, pushing.py's and group.py's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.circuit import Attempt, Circuit
from shoal.proto.channels.rpc import Connection, Lent
from shoal.proto.errors import WireError
from shoal.proto.identity import Identity
from shoal.proto.plane.client import Take
from shoal.proto.protocol import own_protocol
from shoal.proto.values.routing import Routing, slice_of
from shoal.proto.wire import frames
from shoal.proto.wire.frames import Pieces
from shoal.proto.wire.transport import LARGEST_SLICE_BYTES, peer_name

Float32 = npt.NDArray[np.float32]

ROUTING_ERRORS = (pb.STALE_ROUTING, pb.NOT_OWNER)

Frame = bytes | Pieces

NOWHERE = "127.0.0.1:1"
"""Where a server is that was absent when a worker began, until it is asked for: nobody answers."""


class DenseValues:
    """The flat dense vectors as a worker has them, of which servers own slices.

    trainable, state: the vectors, float32 [n], as last set or pulled; not to be written to.

    A pull that brings newer values replaces them, as the arrays of earlier ones may still
    be in use. versions: of each server's slice, -1 where it was never pulled.
    """

    def __init__(self) -> None:
        self.trainable: Float32 = np.zeros(0, np.float32)
        self.state: Float32 = np.zeros(0, np.float32)
        self.versions: list[int] = []

    def known(self, routing: Routing) -> list[int]:
        """`versions`, of all servers: -2 of those that have no slice.

        Other servers than before have the slices: what was pulled says nothing of theirs.
        """
        if len(self.versions) != routing.dense:
            self.versions = [-1] * routing.dense
        return [*self.versions, *[-2] * (routing.servers - routing.dense)]

    def set(self, trainable: Float32, state: Float32) -> None:
        """The values to begin with."""
        self.trainable, self.state = trainable, state

    def unfilled(self) -> tuple[Float32, Float32]:
        """Places for a newer pair of vectors."""
        return np.empty_like(self.trainable), np.empty_like(self.state)

    def take(
        self,
        newer: Mapping[int, tuple[Float32, Float32]],
        whole: tuple[Float32, Float32] | None = None,
    ) -> None:
        """Take newer slices, by server, of those of which `known` told the versions.

        whole: both vectors, if all slices are newer ones and in their places there.
        """
        if whole is not None:
            self.trainable, self.state = whole
        elif newer:
            servers = len(self.versions)
            pairs = [
                newer.get(server) or slices(self.trainable, self.state, server, servers)
                for server in range(servers)
            ]
            self.trainable = np.concatenate([pair[0] for pair in pairs])
            self.state = np.concatenate([pair[1] for pair in pairs])


def slices(first: Float32, second: Float32, server: int, servers: int) -> tuple[Float32, Float32]:
    """A server's slices of the two flat vectors, if `servers` servers have slices of them."""
    return first[slice_of(first.size, server, servers)], second[
        slice_of(second.size, server, servers)
    ]


class ServerCalls:
    """Calls to all parameter servers of the job, for several threads.

    dense: the values as pulled last. routing: as last fetched. version:
    the highest seen of any server. caller: who calls. data_known: whether the job had read its
    data when this worker registered.
    """

    def __init__(
        self,
        master: Connection,
        worker: int,
        incarnation: int,
        cancelled: threading.Event,
        *,
        token: str,
        patience: float,
        identity: Identity | None = None,
    ) -> None:
        """Register with the master.

        cancelled: ends the waiting for a server that is away. token: of the job. patience: seconds
        that a server may be away until calls fail. identity: of this worker.
        """
        self._master = master
        reply = master.call(
            methods.REGISTER_WORKER,
            pb.RegisterWorkerRequest(
                worker=worker, incarnation=incarnation, protocol=own_protocol()
            ),
        )
        self.routing = Routing.from_message(reply.routing)
        self.data_known = reply.data_known
        self._routing_lock = threading.Lock()
        self.caller = pb.PushIdentity(worker=worker, incarnation=incarnation)
        self._circuit = partial(
            Circuit,
            caller=self.caller,
            identity=identity,
            patience=patience,
            cancelled=cancelled,
            flag="four times --timeout-seconds",
        )
        self._token = token
        # Of servers by index, also of those that have left since.
        self._circuits: list[Circuit] = []
        self._acknowledged: list[pb.LastPush] = []
        # The push that was sent last to each server, which may be answered and not noted yet.
        self._sent: list[tuple[pb.LastPush, Callable[[int], bool]] | None] = []
        self._known_versions: list[int] = []
        self._have(reply.servers)
        self._spec = pb.ModelSpec()
        self.dense = DenseValues()
        self._first = self.dense.trainable, self.dense.state
        self._noting = threading.Lock()
        self.version = 0

    def _have(self, addresses: Sequence[str]) -> None:
        """Connect to these servers, beside those already connected."""
        for server, address in list(enumerate(addresses))[len(self._circuits) :]:
            self._acknowledged.append(pb.LastPush())
            self._sent.append(None)
            self._known_versions.append(0)
            circuit = self._circuit(
                f"parameter server {server}",
                partial(self._locate, server),
                address or NOWHERE,
                peer=peer_name(self._token, "ps", server),
                server=server,
            )
            self._circuits.append(circuit)

    def __len__(self) -> int:
        return self.routing.servers

    @property
    def away(self) -> list[int]:
        """The servers, by index, for which calls wait."""
        return [server for server in self.routing.present if self._circuits[server].away]

    def close(self) -> None:
        """Close the connections."""
        for circuit in self._circuits:
            circuit.close()

    def _locate(self, server: int) -> str:
        """Ask the master for a server's address, without a retry: the caller asks again."""
        request = pb.GetRoutingRequest(addresses_only=True)
        addresses = self._master.call(methods.GET_ROUTING, request, patience=0.0).servers
        if server >= len(addresses) or not addresses[server]:
            raise WireError(pb.STALE_ROUTING, f"parameter server {server} has left the job")
        return addresses[server]

    # ------------------------------------------------------------ registering

    def register(
        self,
        spec: pb.ModelSpec,
        trainable: Float32,
        state: Float32,
    ) -> None:
        """Register the model with all servers; those without dense values get these.

        A server that is without any later on gets these too, not newer ones: its pushes count
        as lost, in its dense values as in its rows.

        Raises UserError for dense variables too large for these servers.
        """
        _check_slices(trainable.size, state.size, self.routing.dense)
        self._spec = spec
        self.dense.set(trainable, state)
        self._first = trainable, state
        # All at once: each begins to read its shard of --restore-from when it is asked.
        requests = {server: self._registration(server) for server in self.routing.present}
        begun = {
            server: self._circuits[server].start(methods.REGISTER, request)
            for server, request in requests.items()
        }
        for server, request in requests.items():
            reply = self._circuits[server].finish(methods.REGISTER, request, begun[server])
            self._registered(server, reply)

    def _join(self, server: int) -> None:
        """Register with one server again, which was started again and knows nobody."""
        reply = self._circuits[server].call(methods.REGISTER, self._registration(server))
        self._registered(server, reply)

    def _registration(self, server: int) -> pb.RegisterRequest:
        sent = self._sent[server]
        if sent is not None and sent[1](server):
            # While its sender still waits for another server: what is not told now, the master
            # would not miss.
            self.acknowledged([server], sent[0])
        last = self._acknowledged[server]
        caller = pb.PushIdentity(sequence=last.identity.sequence)
        caller.MergeFrom(self.caller)
        return pb.RegisterRequest(
            model=self._spec,
            caller=caller,
            known_version=self._known_versions[server],
            task=last.task,
            records_done=last.records_done,
        )

    def _registered(self, server: int, reply: pb.RegisterReply) -> None:
        self.see({server: reply.version})
        if not reply.dense_initialized:
            if reply.routing_epoch > self.routing.epoch:
                with self._routing_lock:
                    self._fetch_routing()
            own = slices(*self._first, server, self.routing.dense)
            frame = frames.encode(pb.InitializeDenseRequest(), own)
            self._circuits[server].call(methods.INITIALIZE_DENSE, frame)

    def see(self, versions: Mapping[int, int]) -> None:
        """Servers, by index, said that they are at these versions."""
        known = self._known_versions
        for server, version in versions.items():
            if version > known[server]:
                known[server] = version
                self.version = max(self.version, version)

    def acknowledged(self, servers: Iterable[int], push: pb.LastPush) -> None:
        """Servers have applied this push, and all before."""
        sequence = push.identity.sequence
        with self._noting:
            for server in servers:
                if sequence > self._acknowledged[server].identity.sequence:
                    self._acknowledged[server] = push

    def sent(
        self, servers: Iterable[int], push: pb.LastPush, was_answered: Callable[[int], bool]
    ) -> None:
        """A push is on its way to servers; each once.

        was_answered: waits for a server; True if it answered, and did not refuse.
        """
        sent = push, was_answered
        for server in servers:
            self._sent[server] = sent

    # ------------------------------------------------------------ calling

    def lend(self, servers: Iterable[int], method: methods.Method[Any, Any]) -> dict[int, Lent]:
        """Connections to those of the servers that have one for now, as Circuit.lend."""
        found = {}
        for server in servers:
            if (lent := self._circuits[server].lend(method)) is not None:
                found[server] = lent
        return found

    def start(
        self, server: int, method: methods.Method[Any, bytes], frame: Frame
    ) -> Attempt[bytes]:
        """Begin a call, for `finish` to wait for."""
        return self._circuits[server].start(method, frame)

    def finish(
        self,
        server: int,
        method: methods.Method[Any, bytes],
        frame: Frame,
        answer: Attempt[bytes],
        take: Take | None = None,
    ) -> Any:
        """Wait for a call's answer; meet the server again where it was started again.

        take: reads the answer, whose result is returned; None: its bytes are.
        """
        while True:
            try:
                return self._circuits[server].finish(method, frame, answer, take)
            except WireError as error:
                if error.kind not in (pb.NOT_REGISTERED, pb.DENSE_NOT_INITIALIZED):
                    raise
                self._join(server)
            answer = self._circuits[server].start(method, frame)

    def all(self, method: methods.Method[Any, bytes], requests: Mapping[int, Frame]) -> None:
        """Make calls to servers, by index, at the same time."""
        begun = {server: self.start(server, method, frame) for server, frame in requests.items()}
        for server, frame in requests.items():
            self.finish(server, method, frame, begun[server])

    def read_table(self, table: int) -> Iterator[bytes]:
        """The frames of a table's rows, server after server."""
        request = pb.ReadTableRequest(table=table)
        for server in self.routing.present:
            yield from self._circuits[server].stream(methods.READ_TABLE, request)

    def follow_routing(self, error: WireError, used: Routing) -> None:
        """Fetch the routing table if `error` says that `used` is old; else raise it."""
        if error.kind not in ROUTING_ERRORS:
            raise error
        with self._routing_lock:
            if self.routing is not used:
                return  # another thread has fetched it
            self._fetch_routing()
            if self.routing.epoch <= used.epoch:
                raise error

    def _fetch_routing(self) -> None:
        """Fetch the routing table that the master has now. Call under the lock."""
        reply = self._master.call(methods.GET_ROUTING, pb.GetRoutingRequest())
        routing = Routing.from_message(reply.routing)
        if routing.epoch > self.routing.epoch:
            self._have(reply.servers)
            self.routing = routing


def _check_slices(trainable: int, state: int, servers: int) -> None:
    """Raises UserError if a server's slices of so many elements do not fit into a message."""
    size = 4 * (trainable + state)
    if -(-size // servers) > LARGEST_SLICE_BYTES:
        raise UserError(
            f"the model's dense variables have {trainable + state:,} elements ({size / 1e9:.1f} GB)"
            f"; one server holds {LARGEST_SLICE_BYTES / 1e9:.1f} GB of them at most. Use --servers "
            f"{-(-size // LARGEST_SLICE_BYTES)} or more, or shoal.layers.Embedding for large tables"
        )
