"""The parameter server's calls: messages and frames in, messages and frames out.

Owns the conversion between the wire and `ServerModel`. One handler a call; how the server
comes by its model is registration.py's, which ids are its own ownership.py's, the arithmetic
is elsewhere.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from shoal.native import values
from shoal.proto import faults, frames, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.methods import Method
from shoal.proto.positions import Seen
from shoal.proto.routing import Routing
from shoal.proto.serving import Handlers
from shoal.ps.checks import check_push
from shoal.ps.finite import check_finite
from shoal.ps.gradients import Gradients, averaged
from shoal.ps.ownership import Ownership
from shoal.ps.pending import PendingGradients, ReadersOrWriter
from shoal.ps.progress import Progress
from shoal.ps.pushes import PushRegister
from shoal.ps.recovery import Sources
from shoal.ps.registration import Registration
from shoal.ps.shards import Shards
from shoal.ps.tables import ServerModel
from shoal.ps.unpack import check_ids, exactly, ids_of_tables, unpack
from shoal.ps.update_log.log import UpdateLog
from shoal.ps.update_log.peer_store import PeerLogs
from shoal.ps.update_log.sinks import Sink

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
FLOAT32 = np.dtype(np.float32)


NOTHING_SAVED = Sources()
"""Of a server that neither takes checkpoints nor restores."""

EXIT_HALF_APPLIED = 70
"""The exit code of a server that ended itself, as its model had a part of a push."""


def end_at_once() -> NoReturn:
    """End the process: nobody may read what it holds, or have it written, any more."""
    os._exit(EXIT_HALF_APPLIED)


class ParameterServer:
    """The state behind one server's calls."""

    def __init__(
        self,
        server: int,
        routing: Routing,
        *,
        finite_only: bool = True,
        synchronous: bool = False,
        storage_patience: float = 300.0,
        sources: Sources = NOTHING_SAVED,
        end: Callable[[], NoReturn] = end_at_once,
    ) -> None:
        """Serve nothing yet.

        finite_only: refuse pushes with a NaN or an infinity. synchronous: the job is one of
        --sync. storage_patience: seconds, with the storage of what is restored. sources: where
            that is, and where checkpoints are written. end: ends the process, at once.
        """
        self._check_finite = finite_only
        self._synchronous = synchronous
        self._end = end
        self.server = server
        self.ownership = Ownership(server, routing)
        self.stopped = threading.Event()
        # Set when it is told to end while it serves a job.
        self.draining = threading.Event()
        # Set by every call of the master, which asks for the status all the time.
        self.asked = threading.Event()
        self.seen = Seen()
        self._pushes = PushRegister()
        self.progress = Progress(self.stopped)
        self.registration = Registration(
            server, self.ownership, self._pushes, self.progress, storage_patience, sources
        )
        self._pending = PendingGradients()
        self._whole = ReadersOrWriter()
        self._pulls = 0
        # Set once the master knows of this server.
        self.ready = threading.Event()
        # Not set while calls are refused with NOT_READY: the port opens before anything is here.
        self.open = threading.Event()
        self.open.set()
        self._shards = Shards(
            server, lambda: self.model, self.ownership, self._pushes, sources.checkpoints
        )
        self._shards.seen = self.seen
        self._log: UpdateLog | None = None
        self.held_logs = PeerLogs()

    def keep_log(
        self, sink: Sink, incarnation: int, bound: int, stop: Callable[[], object]
    ) -> UpdateLog:
        """Have pushes logged, --durability=log. As `UpdateLog`; before anything is served."""
        log = UpdateLog(sink, self.server, incarnation, self._pushes, bound, stop)
        self._log = self._shards.log = self.registration.log = log
        log.seen = self.seen
        return log

    def look_after_log(self) -> None:
        """Have the log looked after, until the server is stopped."""
        if self._log is not None:
            threading.Thread(target=self._log.keep, args=(self.stopped,), daemon=True).start()

    def handlers(self) -> Handlers:
        """The table of calls for `serving.serve`."""
        of_the_model: dict[Method[Any, Any], Callable[[Any], Any]] = {
            methods.REGISTER: self.registration.register,
            methods.INITIALIZE_DENSE: self.registration.initialize_dense,
            methods.PULL: self.pull,
            methods.PUSH: self.push,
            methods.READ_TABLE: self.read_table,
            methods.ASSIGN_ROWS: self.assign_rows,
            methods.FENCE: self._of_master(self.fence),
            methods.APPLY_UPDATE: self._of_master(self.apply_update),
            methods.BEGIN_CHECKPOINT: self._of_master(self._shards.begin),
            methods.WRITE_SHARD: self._of_master(self._shards.write),
            methods.DROP_CHECKPOINT: self._of_master(self._shards.drop),
            methods.COMPLETE_CHECKPOINT: self._of_master(self._shards.complete),
            methods.SET_ROUTING: self._of_master(self.ownership.set_routing),
            methods.READY: self.ready_for,
        }
        return {method: self._when_open(handler) for method, handler in of_the_model.items()} | {
            # What it keeps for others, and of itself, it knows from its first moment on.
            methods.BEGIN_LOG: self.held_logs.begin,
            methods.APPEND_LOG: self.held_logs.append,
            methods.DROP_LOG: self.held_logs.drop,
            methods.TAKE_LOG: self.held_logs.take,
            methods.STATUS: self.status,
            methods.SHUTDOWN: self.shutdown,
        }

    @property
    def model(self) -> ServerModel:
        """Raises WireError(NOT_REGISTERED) before one is registered."""
        return self.registration.model

    def pull(self, frame: bytes) -> bytes:
        """Rows of each table's ids and, if newer than the caller's, the dense slices."""
        request, arrays = frames.decode(frame, pb.PullRequest)
        if request.HasField("caller"):
            self.registration.workers.require(request.caller)
        self.ownership.check(request.routing_epoch, arrays)
        ids = ids_of_tables(arrays, request)
        # Without it a pull waits for nobody: see ServerModel.
        with self._whole.reading() if request.whole_updates else nullcontext():
            return self._read(request, ids)

    def _read(self, request: pb.PullRequest, ids: list[Array]) -> bytes:
        model = self.model
        # Read before the rows: a push that lands in between makes the caller count
        # one push too many as missed, never one too few.
        caller = request.caller
        moment = model.moment(caller.worker, caller.incarnation, request.dense_version)
        dense = moment.dense
        dtype = _value_dtype(request.value_type)
        writer = frames.FrameWriter(
            pb.PullReply(
                version=moment.version,
                applied=moment.applied,
                has_dense=dense is not None,
                time=model.time(),
                update=self._pending.update,
            ),
            [
                (dtype, (each.size, model.dim(position)))
                for position, each in zip(request.tables, ids, strict=True)
            ]
            + [(FLOAT32, part.shape) for part in dense or ()],
        )
        targets = iter(writer.arrays)
        for position, each in zip(request.tables, ids, strict=True):
            target = next(targets)
            if dtype == FLOAT32:
                model.lookup(position, each, target, training=request.training)
            else:
                rows = np.empty(target.shape, np.float32)
                model.lookup(position, each, rows, training=request.training)
                values.encode(rows, target)
        for part in dense or ():
            np.copyto(next(targets), part)
        self._pulls += 1
        return writer.frame

    def push(self, frame: bytes) -> bytes:
        """Apply a push once, or hold it for the update that is to name it."""
        unpacked = unpack(frame)
        request, gradients = unpacked.request, unpacked.gradients
        self.registration.workers.require(request.identity)
        model = self.model
        self.ownership.check(request.routing_epoch, unpacked.ids)
        # Before the register knows of its worker: what is refused leaves no trace.
        check_push(unpacked, model, synchronous=self._synchronous)
        if self._check_finite:
            servers = self.ownership.routing.servers
            check_finite(gradients, request.identity, model.spec, self.server, servers)
        staleness = 0
        log = self._log
        faults.point("push-received")
        with (
            log.room(len(frame)) if log else nullcontext(),
            self._pushes.admit(request) as fresh,
        ):
            if fresh and request.hold:
                self._pending.hold(request, gradients)
            elif fresh:
                staleness = self._apply(model, gradients, frame)
        faults.point("push-applied")
        return frames.encode(
            pb.PushReply(version=model.version, applied=fresh, staleness=staleness), []
        )

    def _apply(self, model: ServerModel, gradients: Gradients, frame: bytes) -> int:
        """Apply a push that was checked, and have it logged meanwhile; returns its staleness."""
        ticket = model.ticket(gradients)
        log = self._log
        kept = log.append(ticket, frame) if log else _nothing
        faults.point("push-logged", first=kept)
        with self._whole_or_end():
            model.apply(gradients, ticket)
            kept()
        return ticket.staleness

    @contextmanager
    def _whole_or_end(self) -> Iterator[None]:
        """Have what changes the model in it done wholly, or end the process.

        A model that has a part of a push cannot be mended: done again, the push would be
        applied twice in part. The server's next incarnation starts from its checkpoint, and
        from its log, which has the push as a whole if it has it.
        """
        try:
            yield
        except WireError:
            raise  # of a log that another incarnation writes: this one takes no push any more
        except BaseException:
            logger.critical(
                "this server ends itself: a part of a push or of an update was applied, and not "
                "the whole of it. It is started again from what is saved",
                exc_info=True,
            )
            self._end()

    def read_table(self, request: pb.ReadTableRequest) -> Iterator[bytes]:
        """Every row of a table, in frames."""
        for ids, rows in self.model.read_table(request.table):
            yield frames.encode(pb.ReadTableReply(), [ids, rows])

    def assign_rows(self, frame: bytes) -> bytes:
        """Set rows of a table as they are."""
        request, arrays = frames.decode(frame, pb.AssignRowsRequest)
        ids, rows = exactly(arrays, 2)
        check_ids(ids)
        self.ownership.check(request.routing_epoch, [ids])
        self.model.assign(request.table, ids, rows)
        if self._log is not None:
            self._log.assigned()
        return frames.encode(pb.AssignRowsReply(), [])

    def fence(self, request: pb.FenceRequest) -> pb.FenceReply:
        """Refuse a worker's further pushes and tell what was applied last."""
        reply = self._pushes.fence(request.worker, request.incarnation)
        self._pending.keep_only(request.worker, request.incarnation, request.kept)
        return reply

    def apply_update(self, request: pb.ApplyUpdateRequest) -> pb.ApplyUpdateReply:
        """Apply the average of pending gradients, as one update, once."""
        with self._pushes.updating(), self._whole.writing():
            gradients = self._pending.named(request)
            if gradients is not None:
                update = averaged(gradients)
                with self._whole_or_end():
                    self.model.apply_update(update)
                self._pending.applied(request)
        return pb.ApplyUpdateReply(version=self.model.version)

    def status(self, request: pb.ServerStatusRequest) -> pb.ServerStatus:
        """Counters, sizes and how stale pushes were."""
        if not request.onlooker:
            self.asked.set()
        self.seen.note(request.journal)
        status = pb.ServerStatus(
            server=self.server,
            journal=self.seen.position,
            routing_epoch=self.ownership.routing.epoch,
            pulls=self._pulls,
            duplicate_pushes=self._pushes.duplicates,
            pending=len(self._pending),
            held_log_bytes=len(self.held_logs),
        )
        if request.pushes:
            # What is restored until now is not what it will have.
            self._require_open()
            status.has.extend(self.last_pushes())
        if self._log is not None:
            self._log.describe(status)
        if (model := self.registration.model_if_any) is not None:
            status.registered = True
            status.version = status.pushes = model.version
            status.dense_elements = model.dense.elements
            staleness, age = model.distributions()
            status.staleness.CopyFrom(staleness)
            status.age.CopyFrom(age)
            for spec, store, memory in zip(
                model.spec.tables, model.tables, model.memory, strict=True
            ):
                status.tables.add(name=spec.name, rows=len(store), memory_bytes=memory.value())
        return status

    def last_pushes(self) -> list[pb.LastPush]:
        """The last push applied of each worker."""
        return self._pushes.last()

    def shutdown(self, request: pb.ShutdownRequest) -> pb.ShutdownReply:
        """Ask the process to end; the answer is sent first."""
        logger.info("asked to shut down: %s", request.reason)
        self.stopped.set()
        return pb.ShutdownReply()

    def told_to_end(self) -> None:
        """Drain, if it serves a job; told again, or before, end at once.

        Safe in a signal handler.
        """
        serves = self.ready.is_set() and not self.draining.is_set()
        (self.draining if serves else self.stopped).set()

    def close(self) -> None:
        """Take no more pushes; their senders wait for the next incarnation."""
        self._pushes.close()

    def _of_master(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def heard(request: Any) -> Any:
            self.asked.set()
            return handler(request)

        return heard

    def _require_open(self) -> None:
        if not self.open.is_set():
            what = self.progress.now().what
            is_to = f", it is to {what} first" if what else ""
            raise WireError(pb.NOT_READY, f"the server is being started{is_to}")

    def _when_open(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def checked(request: Any) -> Any:
            self._require_open()
            return handler(request)

        return checked

    def ready_for(self, request: pb.ReadyRequest) -> pb.ReadyReply:
        """Whether a call would be taken now; refused with NOT_READY as that would be."""
        if request.method == methods.REGISTER.name:
            self.registration.check_ready()
        if request.method == methods.PUSH.name:
            self._pushes.check_open()
            if self._log is not None:
                self._log.check_room(request.bytes)
        return pb.ReadyReply()


def _nothing() -> None:
    """Of a push that nobody logs."""


def _value_dtype(value_type: pb.DataType) -> np.dtype[Any]:
    if value_type == pb.DATA_TYPE_UNSPECIFIED:
        return FLOAT32
    if value_type not in (pb.FLOAT32, pb.BFLOAT16, pb.FLOAT16):
        raise WireError(pb.BAD_REQUEST, f"rows cannot travel as type {value_type}")
    return frames.DTYPES[value_type]
