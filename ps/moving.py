"""Moves of routing slots, at one server: their rows go to other servers while the job trains.

A move makes the table of the next epoch. Its rounds send the rows that changed since the round
before; then no server takes pushes for a moment, all are made equal, and a last round makes the
rows that came complete. Pulls and the pushes before are not held up. Rows that came lie in the
server's own tables, where nobody asks for them before the table is that of the new epoch; what is
another server's goes at the end, whichever table holds then. Owns these calls. The order of the
calls is the master's (master/calls/move_slots.py), rows are moved_rows.py's.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing, to_bits
from shoal.proto.wire import frames
from shoal.ps import moved_dense, moved_rows
from shoal.ps.forgetting.compaction import Compactor
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.moved_rows import Flags
from shoal.ps.ownership import Ownership
from shoal.ps.registration import Registration
from shoal.ps.update_log.log import UpdateLog

logger = logging.getLogger(__name__)

IN_FLIGHT = 3
"""Frames that were sent to a server and are not in its tables yet."""

Connect = Callable[[int, str], Connection]
"""Opens a connection to a server: its index, its address."""


def _nobody(server: int, address: str) -> Connection:
    raise WireError(pb.BAD_REQUEST, f"this server cannot call server {server} at {address}")


class Moves:
    """The moves of one server. log: of its updates, once there is one."""

    def __init__(
        self,
        server: int,
        registration: Registration,
        ownership: Ownership,
        pushes: PushRegister,
        pending: PendingGradients,
    ) -> None:
        """pending: with --sync, the gradients that wait."""
        self.log: UpdateLog | None = None
        self.connect: Connect = _nobody
        self._server = server
        self._registration = registration
        self._ownership = ownership
        self._pushes = pushes
        self._pending = pending
        self._calls = threading.Lock()  # one of the master's at a time
        self._taking = threading.Lock()  # rows come, or the move begins or ends
        self._table: Routing | None = None
        self._attempt = 0
        self._over = -1  # the last attempt that has ended
        self._coming: Flags = np.zeros(0, np.bool_)
        self._slices: moved_dense.ComingSlices | None = None  # where the new table has others
        self._compactor = Compactor()

    @property
    def under_way(self) -> bool:
        """True if a move has begun and not ended."""
        return self._table is not None

    # ------------------------------------------------------------ the master's calls

    def begin(self, request: pb.BeginMoveRequest) -> pb.BeginMoveReply:
        """A move begins. A second call changes nothing."""
        table = _routing(request.table)
        with self._calls, self._taking:
            now = self._ownership.routing
            if table.epoch != now.epoch + 1:
                raise WireError(
                    pb.STALE_ROUTING, f"a move to epoch {table.epoch} from epoch {now.epoch}"
                )
            if request.attempt < self._attempt or request.attempt <= self._over:
                raise WireError(pb.BAD_REQUEST, f"attempt {request.attempt} of a move is over")
            if self._table is not None and request.attempt == self._attempt:
                # Rows may have come by now, which nobody would send again.
                model = self._registration.model
                return pb.BeginMoveReply(model=model.spec, step=model.step)
            if request.HasField("model"):
                self._registration.join(request.model)
                # Rows that come have steps near this one.
                self._registration.model.moments.reach(request.step)
            model = self._registration.model
            model.suspend_sweeps(True)
            self._slices = None
            if table.dense != now.dense:
                self._slices = moved_dense.ComingSlices(model, table.dense, table.epoch)
            self._coming = (table.owners == self._server) & (now.owners != self._server)
            if self._coming.any():
                # What an earlier attempt left.
                self._empty(model, self._coming, table.epoch)
            self._table, self._attempt = table, request.attempt
        return pb.BeginMoveReply(model=model.spec, step=model.step)

    def send(self, request: pb.SendRowsRequest) -> pb.SendRowsReply:
        """Send a round of rows; the answer comes when they are at their new servers."""
        began = time.monotonic()
        with self._calls:
            table = self._of_move(request.table.epoch, request.attempt)
            model = self._registration.model
            with self._pushes.paused():
                # What is applied by now has a step up to this one, and is in its tables.
                step = model.step
            mine = self._ownership.routing.owners == self._server
            targets = [
                each for each in np.unique(table.owners[mine]).tolist() if each != self._server
            ]
            slots = [mine & (table.owners == target) for target in targets]
            rows = size = 0
            head = pb.TakeRowsRequest(epoch=table.epoch, attempt=request.attempt)
            of_dense = [each for each in range(table.dense) if each != self._server]
            of_dense = of_dense if request.dense else []
            with _Senders(self.connect, {*targets, *of_dense}, request.addresses) as senders:
                for target in of_dense:
                    for frame in moved_dense.moving(model, head, target, table.dense):
                        senders.send(target, frame)
                        size += len(frame)
                if targets:
                    for part, count, frame in moved_rows.moving(
                        model, head, slots, request.since, int(mine.sum())
                    ):
                        senders.send(targets[part], frame)
                        rows, size = rows + count, size + len(frame)
                        faults.point("rows-sent")
        seconds = time.monotonic() - began
        return pb.SendRowsReply(next=step + 1, rows=rows, bytes=size, seconds=seconds)

    def freeze(self, request: pb.FreezeRequest) -> pb.FreezeReply:
        """Take no more pushes but those up to `until`, until the move ends."""
        with self._calls:
            self._of_move(request.epoch, request.attempt)
            has = self._pushes.freeze(request.until)
            faults.point("pushes-frozen")
            model = self._registration.model
            lifecycle = model.lifecycle
            clock = "" if lifecycle is None else json.dumps(lifecycle.clock.state())
            return pb.FreezeReply(
                has=has,
                step=model.step,
                version=model.version,
                clock=clock,
                update=self._pending.update,
                held=self._pending.names(),
            )

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Be where the others are, of a server that is new; all are frozen."""
        with self._calls:
            self._of_move(request.epoch, request.attempt)
            model = self._registration.model
            if self.log is not None:
                frame = request.SerializeToString()
                self.log.append_move(model.step, frame, request.epoch, pb.JOINED)()
            moved_rows.join(model, self._pushes, request)
            self._pending.begin(request.update)
            for each in request.fences:
                self._pushes.fence(each.worker, each.incarnation)
        return pb.JoinReply()

    def set_routing(self, request: pb.RoutingTable) -> pb.SetRoutingReply:
        """Take a newer table, and the pushes that are routed by it."""
        with self._taking:
            self._take_table(request)
        return pb.SetRoutingReply()

    def _take_table(self, request: pb.RoutingTable) -> None:
        before = self._ownership.routing.epoch
        if request.epoch > before:
            # First: whoever asks by the new table is to find the new slices.
            self._hold_slices(request.epoch)
        self._ownership.set_routing(request)
        if request.epoch > before:
            if self.log is not None:
                self.log.moved(request.epoch)
            # What came late would take the place of what is pushed from now on.
            self._table = None
            self._owns()
            self._pushes.thaw()

    def _hold_slices(self, epoch: int) -> None:
        slices = self._slices
        if slices is None or slices.epoch != epoch:
            return
        if not slices.complete:
            # The move was decided when all had come to a server of another incarnation.
            raise WireError(pb.BAD_REQUEST, f"dense slices of epoch {epoch} have not come here")
        if self.log is not None:
            step = self._registration.model.step
            self.log.append_slices(step, epoch, slices.servers)()
        slices.hold()
        self._slices = None

    def end(self, request: pb.EndMoveRequest) -> pb.EndMoveReply:
        """The move is over: the table given holds, and rows of others' slots go."""
        with self._calls:
            with self._taking:
                if request.attempt < self._attempt:
                    return pb.EndMoveReply()
                self._table, self._over = None, max(self._over, request.attempt)
                self._take_table(request.table)
                self._slices = None
            self._pushes.thaw()
            faults.point("before-rows-removed")
            self.settle()
        return pb.EndMoveReply()

    def settle(self) -> int:
        """Remove the rows of slots that are not this server's; returns how many there were."""
        self._owns()
        routing = self._ownership.routing
        if self.log is not None:
            self.log.holds(routing.epoch)
        model = self._registration.model_if_any
        if model is None:
            return 0
        others = routing.owners != self._server
        removed = self._empty(model, others, routing.epoch) if others.any() else 0
        model.suspend_sweeps(False)
        if removed:
            logger.info("removed %d rows that are other servers' now", removed)
            for table in model.tables:
                self._compactor.consider(table)
        return removed

    def _owns(self) -> None:
        model = self._registration.model_if_any
        if model is not None and model.lifecycle is not None:
            model.lifecycle.own(self._ownership.routing.slots(self._server))

    # ------------------------------------------------------------ another server's

    def take(self, frame: bytes | memoryview) -> bytes:
        """Set rows that move here."""
        header = frames.header_of(frame, pb.TakeRowsRequest)
        with self._taking:
            self._of_move(header.epoch, header.attempt)
            model = self._registration.model
            of_dense = header.HasField("dense")
            if of_dense:
                self._take_slices(frame)  # to lie beside those that hold
            else:
                header, arrays = moved_rows.rows_in(model, frame, self._coming)
            log = self.log
            # No update of --sync is applied in between: done again, it has the same place.
            with self._pushes.updating():
                step = model.step
                wait = log.append_move(step, frame, header.epoch, pb.ROWS_CAME) if log else None
                if not of_dense:
                    moved_rows.take(model, header, arrays, step)
            if wait is not None:
                wait()
        faults.point("rows-taken")
        return frames.encode(pb.TakeRowsReply(), [])

    def _take_slices(self, frame: bytes | memoryview) -> None:
        header, elements = moved_dense.elements_in(frame)
        if self._slices is None:
            raise WireError(pb.BAD_REQUEST, f"no dense slices move to epoch {header.epoch}")
        self._slices.take(header.dense, elements)

    # ------------------------------------------------------------ parts

    def _of_move(self, epoch: int, attempt: int) -> Routing:
        """The table of the move under way. Raises WireError(BAD_REQUEST) for another one."""
        table = self._table
        if table is None or (table.epoch, self._attempt) != (epoch, attempt):
            raise WireError(pb.BAD_REQUEST, f"no move to epoch {epoch} is under way here")
        return table

    def _empty(self, model: ServerModel, slots: Flags, epoch: int) -> int:
        """Remove rows; returns how many there were."""
        removed = moved_rows.remove(model, slots)
        # A log that is done again from its beginning has rows there which the user's model brings.
        if self.log is not None and (removed or model.given):
            self.log.append_move(model.step, to_bits(slots), epoch, pb.SLOTS_EMPTIED)()
        return removed


def _routing(message: pb.RoutingTable) -> Routing:
    try:
        return Routing.from_message(message)
    except ValueError as error:
        raise WireError(pb.BAD_REQUEST, str(error)) from error


class _Senders:
    """Connections to the servers that rows go to, with the frames under way on each."""

    def __init__(self, connect: Connect, targets: Iterable[int], addresses: Sequence[str]) -> None:
        self._connections = {target: connect(target, addresses[target]) for target in targets}
        self._under_way: dict[int, deque[object]] = {each: deque() for each in self._connections}

    def __enter__(self) -> _Senders:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                for target in self._connections:
                    while self._under_way[target]:
                        self._finish(target)
        finally:
            for connection in self._connections.values():
                connection.close()

    def send(self, target: int, frame: frames.Pieces) -> None:
        """Send a frame, once there is room for one more under way."""
        if len(self._under_way[target]) == IN_FLIGHT:
            self._finish(target)
        answer = self._connections[target].start(methods.TAKE_ROWS, frame)
        self._under_way[target].append(answer)

    def _finish(self, target: int) -> None:
        answer = self._under_way[target].popleft()
        self._connections[target].result(methods.TAKE_ROWS, answer)  # type: ignore[arg-type]
