"""The parameter server's calls: messages and frames in, messages and frames out.

Owns the conversion between the wire and `ServerModel`. One handler a call; answers to pulls are
pulls.py's, how the server comes by its model registration.py's, which ids are its own
ownership.py's, the arithmetic is elsewhere.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

from shoal.base.modules.stacks import process_stacks
from shoal.base.process_memory import memory_limit, resident_bytes
from shoal.metrics.durations import BOUNDS
from shoal.native.answering import Answerer
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.serving import Handlers
from shoal.proto.errors import WireError
from shoal.proto.methods import Method
from shoal.proto.plane.direct import WithDirect
from shoal.proto.plane.link import kept
from shoal.proto.values.positions import Seen
from shoal.proto.values.routing import Routing, holder_index
from shoal.proto.wire import frames
from shoal.ps.found_ids import find_id
from shoal.ps.model.checks import check_push
from shoal.ps.model.finite import check_finite
from shoal.ps.model.gradients import Gradients, averaged
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.model.unbroken import Unbroken, end_at_once
from shoal.ps.model.unpack import check_ids, exactly, unpack
from shoal.ps.moving import Moves
from shoal.ps.ownership import Ownership
from shoal.ps.publishing import Publishing
from shoal.ps.pulls import Pulls
from shoal.ps.registration import Registration
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.recovery import Sources
from shoal.ps.shards import Shards
from shoal.ps.update_log.log import UpdateLog
from shoal.ps.update_log.peer_store import PeerLogs
from shoal.ps.update_log.sinks import Sink
from shoal.ps.update_log.space import LogSpace

logger = logging.getLogger(__name__)


NOTHING_SAVED = Sources()
"""Of a server that neither takes checkpoints nor restores."""


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
        publish: str = "",
        end: Callable[[], NoReturn] = end_at_once,
    ) -> None:
        """Serve nothing yet.

        finite_only: refuse pushes with a NaN or an infinity. synchronous: the job is one of
        --sync. storage_patience: seconds, with the storage of what is restored. sources: where
            that is, and where checkpoints are written. publish: the folder of the job's deltas,
            "" for none. end: ends the process, at once.
        """
        self._check_finite = finite_only
        self._synchronous = synchronous
        self._unbroken = Unbroken(end)
        self._memory_limit = memory_limit()
        # Why calls with certificates go through Python's ssl; empty: they do not.
        self.slow_tls = ""
        self.server = server
        self._pending = PendingGradients()
        # Without Python; with --sync only pulls.
        self.answerer = Answerer(
            methods.PULL.kind,
            methods.PUSH.kind,
            BOUNDS,
            finite_only=finite_only,
            watched=faults.files_of(
                "push-received", "push-logged", "push-half-applied", "push-applied"
            ),
            broken=self._unbroken.end,
            updates=self._pending.whole if synchronous else None,
        )
        self.ownership = Ownership(server, routing, self.answerer)
        self.stopped = threading.Event()
        # Set when it is told to end while it serves a job.
        self.draining = threading.Event()
        # Set by every call of the master, which asks for the status all the time.
        self.asked = threading.Event()
        self.seen = Seen()
        self._pushes = PushRegister(self.answerer)
        self.progress = Progress(self.stopped)
        self.registration = Registration(
            server,
            self.ownership,
            self._pushes,
            self.progress,
            storage_patience,
            sources,
            self.answerer,
            self._pending,
        )
        self.registration.synchronous = synchronous
        self._whole = self._pending.whole
        self.pulls = Pulls(self.registration, self.ownership, self._pending, self.answerer)
        # Set once the master knows of this server.
        self.ready = threading.Event()
        # Not set while calls are refused with NOT_READY: the port opens before anything is here.
        self.open = threading.Event()
        self.take_calls()
        self._shards = Shards(
            server,
            lambda: self.model,
            self.ownership,
            self._pushes,
            sources.checkpoints,
            lambda: self._pending.update,
        )
        self._shards.seen = self.seen
        self._publishing = Publishing(
            server, lambda: self.model, self.ownership, self._pushes, publish
        )
        self.moves = Moves(server, self.registration, self.ownership, self._pushes, self._pending)
        self._log: UpdateLog | None = None
        self.held_logs = PeerLogs()

    def take_calls(self, taken: bool = True) -> None:
        """Take calls of workers from now on, or refuse them with NOT_READY."""
        (self.open.set if taken else self.open.clear)()
        self.answerer.open(taken)

    def keep_log(
        self, sink: Sink, incarnation: int, space: LogSpace, stop: Callable[[], object]
    ) -> UpdateLog:
        """Log pushes, --durability=log. Arguments as of `UpdateLog`; before anything is served."""
        pending = self._pending if self._synchronous else None
        log = UpdateLog(sink, self.server, incarnation, self._pushes, space, stop, pending)
        self._log = self._shards.log = self.registration.log = self.moves.log = log
        log.seen = self.seen
        routing = self.ownership.routing
        log.division = routing.dense, routing.epoch
        return log

    def look_after_log(self) -> None:
        """Look after the log on a thread of its own, until the server is stopped."""
        if self._log is not None:
            threading.Thread(target=self._log.keep, args=(self.stopped,), daemon=True).start()

    def handlers(self) -> Handlers:
        """The table of calls for `serving.serve`."""
        of_the_model: dict[Method[Any, Any], Callable[[Any], Any]] = {
            methods.REGISTER: self.registration.register,
            methods.INITIALIZE_DENSE: self.registration.initialize_dense,
            methods.PULL: self.pulls.answer,
            methods.PUSH: self.push,
            methods.READ_TABLE: self.read_table,
            methods.ASSIGN_ROWS: self.assign_rows,
            methods.FENCE: self._of_master(self.fence),
            methods.APPLY_UPDATE: self._of_master(self.apply_update),
            methods.BEGIN_CHECKPOINT: self._of_master(self._shards.begin),
            methods.WRITE_SHARD: self._of_master(self._shards.write),
            methods.DROP_CHECKPOINT: self._of_master(self._shards.drop),
            methods.COMPLETE_CHECKPOINT: self._of_master(self._shards.complete),
            methods.PUBLISH: self._of_master(self._publishing.publish),
            methods.SET_ROUTING: self._of_master(self._routing(self.moves.set_routing)),
            methods.BEGIN_MOVE: self._of_master(self.moves.begin),
            methods.SEND_ROWS: self._of_master(self.moves.send),
            methods.TAKE_ROWS: self.moves.take,
            methods.FREEZE: self._of_master(self.moves.freeze),
            methods.JOIN: self._of_master(self.moves.join),
            methods.END_MOVE: self._of_master(self._routing(self._end_move)),
            methods.READY: self.ready_for,
            methods.FIND_ID: self.find_id,
        }
        checked = {method: self._when_open(each) for method, each in of_the_model.items()}
        for method in (methods.PULL, methods.PUSH):
            checked[method] = WithDirect(checked[method], self.answerer, method.kind)
        return checked | {
            # What it keeps for others, and of itself, it knows from its first moment on.
            methods.BEGIN_LOG: self.held_logs.begin,
            methods.APPEND_LOG: self.held_logs.append,
            methods.DROP_LOG: self.held_logs.drop,
            methods.TAKE_LOG: self.held_logs.take,
            methods.STATUS: self.status,
            methods.GET_STACKS: self.stacks,
            methods.SHUTDOWN: self.shutdown,
        }

    @property
    def model(self) -> ServerModel:
        """Raises WireError(NOT_REGISTERED) before one is registered."""
        return self.registration.model

    def push(self, frame: bytes | memoryview) -> bytes:
        """Apply a push once, or hold it for the update that is to name it."""
        if self._synchronous:
            frame = kept(memoryview(frame))  # it is held beyond the call
        # One that came here for its size, or with TLS.
        elif (answer := self.answerer.push(frame)) is not None:
            return answer
        unpacked = unpack(frame)
        request, gradients = unpacked.request, unpacked.gradients
        self.registration.workers.require(request.identity)
        model = self.model
        moved = request.routing_epoch != self.ownership.routing.epoch
        if moved and self._pushes.has(request.identity):
            # Its rows have moved since: sent again by another table, it would be applied twice.
            return frames.encode(pb.PushReply(version=model.version), [])
        self.ownership.check(request.routing_epoch, unpacked.ids)
        # Before the register knows of its worker: what is refused leaves no trace.
        check_push(unpacked, model, synchronous=self._synchronous)
        if self._check_finite:
            servers = model.dense.servers  # of its own slices, whichever table comes
            check_finite(gradients, request.identity, model.spec, self.server, servers)
        staleness = 0
        log = self._log
        faults.point("push-received")
        with (
            log.room(len(frame)) if log else nullcontext(),
            self._pushes.admit(request) as fresh,
        ):
            if fresh:
                # Rows may have moved since they were looked at.
                self.ownership.check(request.routing_epoch, ())
            if fresh and request.hold:
                wait = log.append_held(frame) if log else _nothing
                faults.point("push-logged", first=wait)
                self._pending.hold(request, gradients, frame)
                wait()
            elif fresh:
                staleness = self._apply(model, gradients, frame)
        faults.point("push-applied")
        return frames.encode(
            pb.PushReply(version=model.version, applied=fresh, staleness=staleness), []
        )

    def _apply(self, model: ServerModel, gradients: Gradients, frame: bytes | memoryview) -> int:
        """Apply a push that was checked, and have it logged meanwhile; returns its staleness."""
        ticket = model.ticket(gradients)
        log = self._log
        record = None
        try:
            kept = log.append(ticket, frame) if log else _nothing
            faults.point("push-logged", first=kept)
            with self._unbroken.changing():
                model.apply(gradients, ticket)
                kept()
            record = log.append_sweep if log else _no_record
        finally:
            with self._unbroken.changing():
                model.leave(record)
        return ticket.staleness

    def read_table(self, request: pb.ReadTableRequest) -> Iterator[frames.Pieces]:
        """Every row of a table, in frames."""
        for ids, rows in self.model.read_table(request.table):
            yield frames.pieces(pb.ReadTableReply(), [ids, rows])
            faults.point("table-half-read")

    def assign_rows(self, frame: bytes | memoryview) -> bytes:
        """Set rows of a table as they are."""
        request, arrays = frames.decode(frame, pb.AssignRowsRequest)
        ids, rows = exactly(arrays, 2)
        check_ids(ids)
        self._check_still(request.routing_epoch, [ids])
        self.model.assign(request.table, ids, rows)
        self._publishing.assigned()
        if self._log is not None:
            self._log.assigned()
        # A round of a move that began meanwhile may have passed by the rows: they come again.
        self._check_still(request.routing_epoch, ())
        return frames.encode(pb.AssignRowsReply(), [])

    def _check_still(self, epoch: int, arrays: Sequence[Any]) -> None:
        """Check as `Ownership.check` does. Raises WireError(NOT_READY) while rows move, too."""
        if self.moves.under_way:
            raise WireError(pb.NOT_READY, "rows are being moved to another server")
        self.ownership.check(epoch, arrays)

    def _end_move(self, request: pb.EndMoveRequest) -> pb.EndMoveReply:
        """End a move, and make the sweep of a cap that was exceeded meanwhile.

        There may be no push any more behind which it would be made.
        """
        reply = self.moves.end(request)
        model = self.registration.model_if_any
        if model is not None:
            # None that entered has its part of a sweep before it, and no pull of --sync a part.
            with self._pushes.paused(), self._whole.writing(), self._unbroken.changing():
                model.settle(self._log.append_sweep if self._log else _no_record)
        return reply

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
                wait = self._log.append_update(request) if self._log else _nothing
                faults.point("update-logged", first=wait)
                with self._unbroken.changing():
                    record = self._log.append_sweep if self._log else _no_record
                    self.model.apply_update(update, record)
                    # Before any pull sees it.
                    wait()
                self._pending.applied(request)
                faults.point("update-applied")
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
            pulls=self.pulls.answered,
            duplicate_pushes=self._pushes.duplicates,
            pending=len(self._pending),
            held_log_bytes=len(self.held_logs),
            seconds=time.monotonic(),
            cpu_seconds=time.process_time(),
            memory_bytes=resident_bytes(),
            memory_limit=self._memory_limit,
            slow_tls=self.slow_tls,
        )
        if request.loads:
            self.ownership.describe_loads(status)
        if request.pushes:
            # What is restored until now is not what it will have.
            self._require_open()
            # One of the few threads of questions: these are asked again, a push may wait for long.
            status.has.extend(self._pushes.last(wait=False))
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
                status.tables.add(
                    name=spec.name,
                    rows=len(store),
                    memory_bytes=memory.value(),
                    counting=store.counting,
                )
            if (lifecycle := model.lifecycle) is not None:
                lifecycle.describe(status)
        if self._log is not None:
            self._log.describe(status)
        return status

    def held(self) -> tuple[int, list[pb.GradientId]]:
        """With --sync, the last update applied, and the gradients that wait."""
        return self._pending.update, self._pending.names()

    def last_pushes(self) -> list[pb.LastPush]:
        """The last push applied of each worker."""
        return self._pushes.last()

    def stacks(self, request: pb.StacksRequest) -> pb.ProcessStacks:
        """The stacks of the threads, but for the one that answers."""
        del request  # it has no fields
        return process_stacks(f"ps-{self.server}")

    def find_id(self, request: pb.FindIdRequest) -> pb.FoundId:
        """The state of one id on this server."""
        routing = self.ownership.routing
        found = find_id(self.model, request, self.server, routing)
        if self.ownership.routing is not routing:
            raise WireError(pb.NOT_READY, "rows were moved meanwhile: ask again")
        return found

    def shutdown(self, request: pb.ShutdownRequest) -> pb.ShutdownReply:
        """Ask the process to end; the answer is sent first."""
        logger.info("asked to shut down: %s", request.reason)
        self.stopped.set()
        return pb.ShutdownReply()

    def told_to_end(self) -> None:
        """Drain, if it serves a job; told again, or before, end at once."""
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

    def _routing(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap a handler that may bring another routing table: servers may have left by it."""

        def called(request: Any) -> Any:
            before = self.ownership.routing.epoch
            reply = handler(request)
            if self.ownership.routing.epoch > before:
                table = self.ownership.routing
                keepers = [holder_index(each, table.dense) for each in range(table.servers)]
                self.held_logs.keep_only([i for i, at in enumerate(keepers) if at == self.server])
            return reply

        return called

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
        """Reply if a call would be taken now; refuse with NOT_READY as the call would be."""
        if request.method == methods.REGISTER.name:
            self.registration.check_ready()
        if request.method == methods.PUSH.name:
            self._check_push(request.bytes, request.caller)
        return pb.ReadyReply()

    def admit(self, method: Method[Any, Any], size: int, who: str) -> None:
        """Raises WireError(NOT_READY) if a call with a request of `size` bytes is not taken now.

        Of the data plane, before the request is received. who: calls, as a hello says it.
        """
        if method in _OF_LOGS:
            return
        self._require_open()
        if method is methods.PUSH:
            worker = _WORKER.match(who)
            self._check_push(size, pb.PushIdentity(worker=int(worker[1])) if worker else None)

    def _check_push(self, size: int, caller: pb.PushIdentity | None) -> None:
        self._pushes.check_open(caller)
        if self._log is not None:
            self._log.check_room(size)


_WORKER = re.compile(r"worker-(\d{1,9})\b")

_OF_LOGS = (methods.APPEND_LOG, methods.TAKE_LOG)
"""Of what it keeps for others, it knows from its first moment on."""


def _nothing() -> None:
    """Do nothing, for a push that nobody logs."""


def _no_record(step: int, frame: bytes) -> None:
    """Do nothing, for a sweep that nobody logs."""
