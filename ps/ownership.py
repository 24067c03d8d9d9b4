"""Which ids are a server's: the routing table, and the calls that were routed by another one.

Owns the table of the moment. What it says is proto/values/routing.py's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import ids as native_ids
from shoal.native.answering import Answerer
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing


class Ownership:
    """The ids that this server owns. routing: the table, by which calls are checked."""

    def __init__(self, server: int, routing: Routing, answerer: Answerer | None = None) -> None:
        """answerer: of the server's pulls, is told of each table."""
        self._server = server
        self._answerer = answerer
        self._changing = threading.Lock()
        self.routing = routing

    @property
    def routing(self) -> Routing:
        """The table by which calls are checked."""
        return self._routing

    @routing.setter
    def routing(self, routing: Routing) -> None:
        with self._changing:
            self._routing = routing
            if self._answerer is not None:
                own = None if self._alone(routing) else routing.owners == self._server
                self._answerer.route(routing.epoch, own)
                # What was asked for by another table says nothing of this one.
                self._answerer.forget_loads()
            self._since = time.monotonic()

    def describe_loads(self, status: pb.ServerStatus) -> None:
        """Put into a status for how many ids pulls have asked, of each slot."""
        if self._answerer is not None:
            status.loads.extend(self._answerer.loads().tolist())
            status.load_seconds = time.monotonic() - self._since

    def _alone(self, routing: Routing) -> bool:
        """True if all ids are this server's."""
        return routing.servers == 1 and self._server == 0

    def check(self, epoch: int, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Check a call that was routed by a table of this epoch, and the ids that it names.

        Raises WireError: NOT_READY or STALE_ROUTING for another epoch, NOT_OWNER for an id
        that belongs to another server.
        """
        routing = self.routing
        if epoch > routing.epoch:
            # A new table reaches servers one after another: the caller had it first.
            raise WireError(pb.NOT_READY, f"routing epoch {epoch} has not reached this server yet")
        if epoch != routing.epoch:
            raise WireError(
                pb.STALE_ROUTING,
                f"the call was routed by epoch {epoch}, this server has {routing.epoch}",
            )
        if self._alone(routing):
            return
        for ids in arrays:
            owners = routing.owners[native_ids.slot_of(ids)]
            if (owners != self._server).any():
                position = int(np.argmax(owners != self._server))
                raise WireError(
                    pb.NOT_OWNER,
                    f"id {int(ids[position])} belongs to server {int(owners[position])}, "
                    f"this is {self._server}",
                )

    def set_routing(self, request: pb.RoutingTable) -> pb.SetRoutingReply:
        """Take a newer routing table; an older one is refused. Raises WireError."""
        if request.epoch < self.routing.epoch:
            raise WireError(
                pb.STALE_ROUTING, f"epoch {request.epoch} is older than {self.routing.epoch}"
            )
        try:
            self.routing = Routing.from_message(request)
        except ValueError as error:
            raise WireError(pb.BAD_REQUEST, str(error)) from error
        return pb.SetRoutingReply()
