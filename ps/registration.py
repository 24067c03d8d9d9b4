"""The two ways a server gets its model: a worker registers it, or it is restored.

Owns the model, its first dense values, and the set of workers that have met this incarnation of
the server. Later pulls and pushes are service.py's; choosing a checkpoint is recovery.py's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shoal.files.patient_storage import PatientStorage
from shoal.files.storage import Storage, open_storage
from shoal.native.answering import Answerer
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel, given_tables
from shoal.ps.model.unpack import exactly
from shoal.ps.ownership import Ownership
from shoal.ps.saved.beginning import Beginning
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.recovery import RegisteredWorkers, Sources, newest_shard
from shoal.ps.update_log.log import UpdateLog

if TYPE_CHECKING:
    from shoal.ps.saved.saved_rows import FirstRows

logger = logging.getLogger(__name__)


class Registration:
    """The model of one server.

    ownership: of its ids. progress: is told what is restored, and how far that is.
    storage_patience: seconds, with the storage of what is restored. sources: where that is.
    log: that of its updates, once there is one. synchronous: the job is one of --sync.
    checkpoint: that was restored, by number; 0: none. replayed: pushes of the log that were done
    again. restarted: an earlier incarnation served in this course of the job.
    """

    def __init__(
        self,
        server: int,
        ownership: Ownership,
        pushes: PushRegister,
        progress: Progress,
        storage_patience: float,
        sources: Sources,
        answerer: Answerer,
        pending: PendingGradients,
    ) -> None:
        """answerer: of the server's pulls, gets the model and the workers that it may answer.

        pending: gradients that wait, with --sync.
        """
        self._server = server
        self._answerer = answerer
        self._sources = sources
        self._progress = progress
        self._opened = lambda location: PatientStorage(
            open_storage(location), storage_patience, progress
        )
        self._ownership = ownership
        self._pushes = pushes
        self._pending = pending
        self._lock = threading.Lock()
        self._model: ServerModel | None = None
        self._beginning: Beginning | None = None
        self.log: UpdateLog | None = None
        self.synchronous = False
        self.workers = RegisteredWorkers(answerer)
        self.checkpoint = self.replayed = 0
        self.restarted = self._whole = False

    @property
    def model(self) -> ServerModel:
        """Raises WireError(NOT_REGISTERED) before `register`."""
        if self._model is None:
            raise WireError(pb.NOT_REGISTERED, "no model is registered with this server yet")
        return self._model

    @property
    def model_if_any(self) -> ServerModel | None:
        """None before `register`."""
        return self._model

    def register(self, request: pb.RegisterRequest) -> pb.RegisterReply:
        """Take the model of the first caller; later callers must bring the same.

        A worker registers again with a server that was started again.
        """
        with self._lock:
            if self._model is None:
                if self._beginning is None and given_tables(request.model):
                    self._beginning = Beginning(self._first_rows())
                if self._beginning is not None:
                    model = self._beginning.model(request.model)
                    if self.log is not None and self._sources.beginning:
                        # Not from the model's beginning: it would be done again without its rows.
                        self.log.begin_with_rows()
                else:
                    model = self._new_model(request.model)
                self._model = model
                self._serve(model)
                logger.info(
                    "registered %d tables and %d of the dense elements",
                    len(request.model.tables),
                    self._model.dense.elements,
                )
            elif self._model.spec != request.model:
                raise WireError(
                    pb.SPEC_MISMATCH,
                    "the model differs from the one that another worker registered: "
                    + _difference(self._model.spec, request.model),
                )
        if request.HasField("caller"):
            # With --sync a version is an update, and a server that lacks one ends the job.
            if self.workers.again and not self.synchronous:
                self._model.continue_from(request.known_version, whole=self._whole)
            self.workers.meet(
                pb.LastPush(
                    identity=request.caller, task=request.task, records_done=request.records_done
                )
            )
        return pb.RegisterReply(
            server=self._server,
            dense_initialized=self._model.dense.initialized,
            version=self._model.version,
            routing_epoch=self._ownership.routing.epoch,
        )

    def initialize_dense(self, frame: bytes | memoryview) -> bytes:
        """First values of the dense slices; the first call wins."""
        _, arrays = frames.decode(frame, pb.InitializeDenseRequest)
        trainable, state = exactly(arrays, 2)
        log = self.log
        with self._lock:
            # Before they are in the log, which is done again from them.
            self.model.dense.check(trainable, state)
            begins = not self.model.dense.initialized
            if log is not None and begins:
                log.begin(self.model.spec, bytes(frame))
            taken = self.model.dense.initialize(trainable, state)
        return frames.encode(pb.InitializeDenseReply(initialized=taken), [])

    def join(self, spec: pb.ModelSpec) -> None:
        """Begin with an empty model, on a server that is new in a job that trains.

        It has no slices of the dense variables. Raises WireError(SPEC_MISMATCH) if it has another
        model already.
        """
        with self._lock:
            if self._model is not None:
                if self._model.spec != spec:
                    raise WireError(pb.SPEC_MISMATCH, _difference(self._model.spec, spec))
                return
            model = self._new_model(spec)
            nothing = np.zeros(0, np.float32)
            if self.log is not None:
                initial = frames.encode(pb.InitializeDenseRequest(), [nothing, nothing])
                self.log.begin(spec, initial)
            model.dense.initialize(nothing, nothing)
            self._model = model
            self._serve(model)

    def _new_model(self, spec: pb.ModelSpec) -> ServerModel:
        routing = self._ownership.routing
        return ServerModel(spec, self._server, routing.dense, routing.slots(self._server))

    def begin_empty(self) -> None:
        """The server is new in a job that trains: rows come from the others."""
        if self.log is not None:
            self.log.clear()

    def begin_anew(self) -> None:
        """The job starts here: what was logged before is not of it."""
        if self.log is not None:
            self.log.clear()
        self._begin_with_given()

    def _begin_with_given(self) -> None:
        """Begin with what the job was given, if anything. It is read when the model is known."""
        sources, ours = self._sources, self._ours
        if sources.continued:
            from shoal.ps.saved.continued import Continued  # late: it needs pyarrow

            self._beginning = Beginning(Continued(sources.continued, *ours))
        elif sources.saved:
            from shoal.ps.saved.saved_rows import SavedRows  # late: it needs pyarrow

            self._beginning = Beginning(SavedRows(sources.saved, *ours))

    @property
    def _ours(self) -> tuple[int, Routing, Progress, Callable[[str], Storage]]:
        """The arguments of `Given` after its location."""
        return self._server, self._ownership.routing, self._progress, self._opened

    def _fill(self, model: ServerModel) -> None:
        """Give a model without rows those that the user's model brings."""
        if model.given:
            self._first_rows().fill(model)

    def _first_rows(self) -> FirstRows:
        from shoal.ps.saved.saved_rows import FirstRows  # late: it needs pyarrow

        return FirstRows(self._sources.first_rows, *self._ours)

    @property
    def failure(self) -> Exception | None:
        """The reason why this server will never have a model; None while it has or may have one."""
        return None if self._beginning is None else self._beginning.failure

    def check_ready(self) -> None:
        """Raises WireError(NOT_READY) if `register` would because of what it reads."""
        if self._beginning is not None:
            self._beginning.check_ready()

    def restore(self, plan: pb.RestoreReply) -> str:
        """Go on where an earlier incarnation was; returns in words what was restored.

        Before calls are taken. Raises as `newest_shard`.
        """
        try:
            return self._restore(plan)
        finally:
            self._progress.end()

    def _restore(self, plan: pb.RestoreReply) -> str:
        self.workers.again = True
        self.restarted = plan.replay
        found = False
        done = ""

        def restored(dense: int | None) -> ServerModel | None:
            nonlocal found, done
            routing = self._ownership.routing
            model, self.checkpoint, done = newest_shard(
                plan,
                self._sources,
                self._server,
                routing,
                self._pushes,
                self._progress,
                self._opened,
                self._pending,
                dense=dense,
            )
            found = model is not None
            return model

        if self.log is not None and plan.replay:
            routing = self._ownership.routing
            self._model, self.replayed, self._whole, said = self.log.recover(
                restored, routing, self._progress, self._fill
            )
            if self._model is not None and not found:
                done = "it has restored its first values"
            done = f"{done}; {said}"
        else:
            self._model = restored(None)
        if self.log is not None and not plan.replay:
            self.begin_anew()
            self.log.resumed(self._model is not None)
        if self._model is None:
            self._begin_with_given()
        else:
            self._serve(self._model)
        return done

    def settle(self) -> None:
        """Sweep what an earlier incarnation owed, once all rows are this server's."""
        if self._model is not None:
            log = self.log if self.restarted else None
            self._model.settle(log.append_sweep if log else _no_record)

    def _serve(self, model: ServerModel) -> None:
        """Let the answerer answer pulls of the model without Python, too."""
        self._answerer.serve_model(
            [
                (store, bool(spec.vocabulary), spec.frozen)
                for store, spec in zip(model.tables, model.spec.tables, strict=True)
            ],
            model.moments,
            log=None if self.log is None else self.log.begins(model),
            between=None if model.lifecycle is None else model.lifecycle.between,
            sweep=partial(self._sweep, model),
        )

    def _sweep(self, model: ServerModel) -> bool:
        """Do a part of a sweep; returns False if this incarnation of the server is over.

        Raises MemoryError, after which the model may have a part of it.
        """
        assert model.lifecycle is not None
        try:
            model.lifecycle.do_part(_no_record if self.log is None else self.log.append_sweep)
        except WireError:
            return False
        return True


def _no_record(step: int, frame: bytes) -> None:
    """Do nothing, for a sweep that nobody logs."""


def _difference(ours: pb.ModelSpec, theirs: pb.ModelSpec) -> str:
    """The first part in which two model specs differ, in words."""
    for field in ("tables", "trainable", "non_trainable"):
        mine, other = getattr(ours, field), getattr(theirs, field)
        if len(mine) != len(other):
            return f"{len(other)} {field} instead of {len(mine)}"
        for left, right in zip(mine, other, strict=True):
            if left != right:
                return f"{field} {right.name!r} ({right}) instead of {left.name!r} ({left})"
    return f"optimizer {theirs.dense_optimizer} instead of {ours.dense_optimizer}"
