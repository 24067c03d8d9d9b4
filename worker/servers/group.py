"""The worker's view of the parameter servers: register, pull, push, read, assign.

Owns putting these together, and whole tables. Pulls are pulling.py's, pushes pushing.py's,
connections and the routing calls.py's; the sequence of a step is model/model.py's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import DEFAULT_PATIENCE, Connection
from shoal.proto.errors import WireError
from shoal.proto.identity import Identity
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.worker.servers.calls import ServerCalls
from shoal.worker.servers.in_flight import InFlightPushes
from shoal.worker.servers.pull_requests import VALUE_TYPES
from shoal.worker.servers.pulling import Pulled, Puller
from shoal.worker.servers.push_requests import split_by_owner
from shoal.worker.servers.pushing import Push, Pusher

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


class ServerGroup:
    """All parameter servers of the job, as one worker sees them.

    One thread may pull while another one pushes.

    pulls: the parts of `pull`, which benchmarks measure one by one. in_flight: the pushes that a
        pull may not have yet.
    """

    def __init__(
        self,
        master: Connection,
        worker: int,
        incarnation: int,
        cancelled: threading.Event,
        *,
        token: str = "",
        patience: float = DEFAULT_PATIENCE,
        identity: Identity | None = None,
        value_type: pb.DataType = pb.FLOAT32,
        cache_bytes: int = 0,
        cache_staleness: int = 0,
        whole_updates: bool = False,
    ) -> None:
        """token: of the job. patience: seconds that a server may be away until calls fail.

        identity: of this worker.

        value_type: how rows and their gradients travel; unspecified: those of each table as servers
        hold its rows. cache_bytes, cache_staleness: as
        `RowCache` takes them; no bytes, no cache.
        whole_updates: pulls are of one update on all servers (--sync).
        """
        self._calls = ServerCalls(
            master,
            worker,
            incarnation,
            cancelled,
            token=token,
            patience=patience,
            identity=identity,
        )
        self._cache_size = cache_bytes, cache_staleness
        self.pulls = Puller(self._calls, cancelled, value_type, whole_updates=whole_updates)
        self.in_flight = InFlightPushes()
        self._pushes = Pusher(self._calls, self.in_flight, value_type)

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def away(self) -> bool:
        """True if calls wait for a server."""
        return bool(self._calls.away)

    @property
    def data_known(self) -> bool:
        """True if the job had read its data when this worker began."""
        return self._calls.data_known

    @property
    def version(self) -> int:
        """The highest version seen of any server."""
        return self._calls.version

    @property
    def acknowledged(self) -> int:
        """The last push that all servers have acknowledged, by sequence; 0 for none."""
        return self._pushes.acknowledged

    @property
    def routing(self) -> Routing:
        """The routing table, as last fetched."""
        return self._calls.routing

    def close(self) -> None:
        """Close the connections to the servers."""
        self._calls.close()

    def register(self, spec: pb.ModelSpec, trainable: Float32, state: Float32) -> None:
        """Register the model with all servers; the first worker's dense values count."""
        held = [VALUE_TYPES[table.value_dtype or "float32"] for table in spec.tables]
        self.pulls.register([table.dim for table in spec.tables], held, *self._cache_size)
        self._pushes.register(held)
        self._calls.register(spec, trainable, state)

    def pull(
        self, calls: Sequence[Sequence[Int64]], *, training: bool, exact: bool = False
    ) -> Pulled:
        """Rows for the ids of a batch, and the dense vectors if they changed.

        calls: for each table, the ids of each call of its layers, int64 [n].
        training: unseen ids get their initial value; otherwise the table's default
            row, the one that the export gives them too.
        exact: as float32, whatever the type in which rows travel otherwise.
        """
        return self.pulls.pull(calls, training=training, exact=exact)

    def hold(self, push: Push) -> int:
        """Send a step's gradients to all servers, to be held; returns the gradient's number.

        Returns when every server holds them. What becomes of them is the master's to say.
        """
        return self._pushes.hold(push)

    def push(self, push: Push) -> int:
        """Send a step's gradients to all servers; returns the highest staleness.

        Returns when every server has applied them, each once.
        """
        return self._pushes.push(push)

    def read_table(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Every row of a table, in pieces: ids int64 [n], rows float32 [n, dim]."""
        for frame in self._calls.read_table(table):
            _, (ids, rows) = frames.decode(frame, pb.ReadTableReply)
            yield ids, rows

    def assign_rows(self, table: int, ids: Int64, rows: Float32) -> None:
        """Set rows of a table: ids int64 [n] without repeats, rows float32 [n, dim]."""
        while True:
            routing = self.routing
            parts = split_by_owner({table: (ids, rows)}, routing)
            header = pb.AssignRowsRequest(routing_epoch=routing.epoch, table=table)
            requests = {
                server: frames.pieces(header, parts.of(server)[table]) for server in routing.present
            }
            try:
                self._calls.all(methods.ASSIGN_ROWS, requests)
            except WireError as error:
                self._calls.follow_routing(error, routing)
            else:
                return
