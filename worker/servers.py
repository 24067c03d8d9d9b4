"""The worker's view of the parameter servers: register, pull, push, read, assign.

Owns splitting a batch over servers and putting the answers together, the identity
of pushes, and following the routing table. Waiting for a server that is away is
proto/circuit.py's; the sequence of a step is model.py's.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from shoal.native import ids as native_ids
from shoal.proto import faults, frames, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.circuit import Attempt, Circuit
from shoal.proto.errors import WireError
from shoal.proto.routing import Routing, slice_of
from shoal.proto.rpc import DEFAULT_PATIENCE, Connection
from shoal.proto.transport import peer_name
from shoal.worker.cache import RowCache
from shoal.worker.ids import TableIds, group_tables
from shoal.worker.requests import PullPlan, push_frame

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

UPDATE_PAUSE = 0.001
"""Seconds before a pull that saw two updates of --sync is done again."""

ROUTING_ERRORS = (pb.STALE_ROUTING, pb.NOT_OWNER)


@dataclass(frozen=True)
class Pulled:
    """Rows and dense values for one batch.

    ids: one a table, as grouped for the pull.
    rows: one a table, float32 [unique, dim].
    trainable, state: the flat dense vectors, float32; not to be written to.
    versions, times: one a server; PullReply's.
    updates: one an answer; PullReply's.
    """

    ids: list[TableIds]
    rows: list[Float32]
    trainable: Float32
    state: Float32
    versions: list[int]
    times: list[float]
    updates: list[int]


@dataclass(frozen=True)
class Push:
    """One step's gradients.

    tables: position -> (ids int64 [u], gradients float32 [u, dim]).
    dense: gradient of the flat trainable vector and change of the flat
        non-trainable one.
    hold: as PushRequest's; ServerGroup.hold gives it.
    left_out: why it is to go to no server at all, in words; "" if it is to.
    """

    tables: dict[int, tuple[Int64, Float32]]
    dense: tuple[Float32, Float32]
    learning_rate: float
    versions: list[int]
    times: list[float]
    task: int
    records_done: int
    modulate_rate: bool = False
    hold: int = 0
    left_out: str = ""


class ServerGroup:
    """All parameter servers of the job, as one worker sees them.

    One thread may pull while another one pushes.
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
        value_type: pb.DataType = pb.FLOAT32,
        cache_bytes: int = 0,
        cache_staleness: int = 0,
        whole_updates: bool = False,
    ) -> None:
        """token: of the job. patience: seconds that a server may be away until calls fail.

        value_type: how rows and their gradients travel. cache_bytes, cache_staleness: as
        `RowCache` takes them; no bytes, no cache.
        whole_updates: pulls are of one update on all servers (--sync).
        """
        self._whole_updates = whole_updates
        self._cancelled = cancelled
        self._value_type = value_type
        self._cache_size = cache_bytes, cache_staleness
        self.cache: RowCache | None = None
        self._master = master
        self._worker = worker
        self._incarnation = incarnation
        self._sequence = 0
        reply = master.call(
            methods.REGISTER_WORKER,
            pb.RegisterWorkerRequest(worker=worker, incarnation=incarnation),
        )
        self.routing = Routing.from_message(reply.routing)
        self._circuits = [
            Circuit(
                f"parameter server {server}",
                partial(self._locate, server),
                address,
                peer=peer_name(token, "ps", server),
                patience=patience,
                cancelled=cancelled,
                flag="--server-patience-seconds",
            )
            for server, address in enumerate(reply.servers)
        ]
        self._spec = pb.ModelSpec()
        self._dims: list[int] = []
        # As last pulled; a pull that brings newer values replaces them, as the arrays
        # of earlier ones may still be in use.
        self._trainable: Float32 = np.zeros(0, np.float32)
        self._state: Float32 = np.zeros(0, np.float32)
        self._routing_lock = threading.Lock()
        self._dense_versions = [-1] * len(self._circuits)
        self._caller = pb.PushIdentity(worker=worker, incarnation=incarnation)
        self._acknowledged = [0] * len(self._circuits)
        self._known_versions = [0] * len(self._circuits)
        self.version = 0

    def __len__(self) -> int:
        return len(self._circuits)

    def close(self) -> None:
        """Close the connections to the servers."""
        for circuit in self._circuits:
            circuit.close()

    def _locate(self, server: int) -> str:
        """Where a server is now. Without a retry: who waits for the server asks again."""
        reply = self._master.call(methods.GET_ROUTING, pb.GetRoutingRequest(), patience=0.0)
        return reply.servers[server]

    # ------------------------------------------------------------ set-up

    def register(self, spec: pb.ModelSpec, trainable: Float32, state: Float32) -> None:
        """Register the model with all servers; the first worker's dense values count."""
        self._spec = spec
        self._dims = [table.dim for table in spec.tables]
        if self._cache_size[0]:
            self.cache = RowCache(*self._cache_size, self._dims, len(self))
        self._trainable, self._state = trainable, state
        for server in range(len(self)):
            self._join(server)

    def _join(self, server: int) -> None:
        """Register with one server; again if it was started again, which then knows nobody."""
        caller = pb.PushIdentity(sequence=self._acknowledged[server])
        caller.MergeFrom(self._caller)
        request = pb.RegisterRequest(
            model=self._spec, caller=caller, known_version=self._known_versions[server]
        )
        reply = self._circuits[server].call(methods.REGISTER, request)
        self._see(server, reply.version)
        if not reply.dense_initialized:
            self._initialize_dense(server, self._trainable, self._state)

    def _see(self, server: int, version: int) -> None:
        self._known_versions[server] = max(self._known_versions[server], version)
        self.version = max(self.version, version)

    def _finish(
        self,
        server: int,
        method: methods.Method[bytes, bytes],
        frame: bytes,
        answer: Attempt[bytes],
    ) -> bytes:
        """Wait for a call's answer; meet the server again where it was started again."""
        while True:
            try:
                return self._circuits[server].finish(method, frame, answer)
            except WireError as error:
                if error.kind not in (pb.NOT_REGISTERED, pb.DENSE_NOT_INITIALIZED):
                    raise
                self._join(server)
            answer = self._circuits[server].start(method, frame)

    def _initialize_dense(self, server: int, trainable: Float32, state: Float32) -> None:
        arrays = [
            trainable[slice_of(trainable.size, server, len(self))],
            state[slice_of(state.size, server, len(self))],
        ]
        frame = frames.encode(pb.InitializeDenseRequest(), arrays)
        self._circuits[server].call(methods.INITIALIZE_DENSE, frame)

    # ------------------------------------------------------------ pull

    def pull(
        self, calls: Sequence[Sequence[Int64]], *, training: bool, exact: bool = False
    ) -> Pulled:
        """Rows for the ids of a batch, and the dense vectors if they changed.

        calls: for each table, the ids of each call of its layers, int64 [n].
        training: unseen ids get their initial value; otherwise the table's default
            row, the one that the export gives them too.
        exact: as float32, whatever the type in which rows travel otherwise.
        """
        while True:
            routing = self.routing
            try:
                ids = group_tables(calls, routing)
                pulled = self.fetch(ids, routing, training=training, exact=exact)
            except WireError as error:
                self._follow_routing(error, routing)
                continue
            # An update reaches servers one after another, within moments.
            if not self._whole_updates or len(set(pulled.updates)) == 1:
                return pulled
            if self._cancelled.wait(UPDATE_PAUSE):
                return pulled  # for nothing: the job ends

    def fetch(
        self, ids: list[TableIds], routing: Routing, *, training: bool, exact: bool = False
    ) -> Pulled:
        """As `pull`, of ids that were grouped by `routing`.

        Raises WireError (`ROUTING_ERRORS`) if that is old.
        """
        # Evaluation and prediction see the servers' own values.
        cached = self.cache.look_up(ids) if self.cache is not None and training else None
        wanted = ids if cached is None else cached.missing
        value_type = pb.FLOAT32 if exact else self._value_type
        plan = PullPlan(
            wanted, self._dims, len(self), value_type, whole_updates=self._whole_updates
        )
        requests = [
            (
                part.server,
                plan.request(
                    part,
                    routing.epoch,
                    self._dense_versions[part.server],
                    training,
                    self._caller,
                ),
            )
            for part in plan.parts
        ]
        dense: dict[int, tuple[Float32, Float32]] = {}
        # Parts of one server may be of different moments: what they are counted as is
        # the oldest.
        versions = [2**62] * len(self)
        times = [math.inf] * len(self)
        updates = []
        for part, frame in zip(plan.parts, self._call_all(methods.PULL, requests), strict=True):
            reply, arrays = frames.decode(frame, pb.PullReply)
            plan.take(part, arrays)
            if reply.has_dense:
                dense[part.server] = arrays[-2], arrays[-1]
                self._dense_versions[part.server] = reply.version
            versions[part.server] = min(versions[part.server], reply.version)
            self._see(part.server, reply.version)
            times[part.server] = min(times[part.server], reply.time)
            updates.append(reply.update)
        rows = plan.rows()
        if cached is not None:
            rows = cached.join(rows, versions)
            # The gradients are as stale as the oldest row that they come from.
            versions = [
                version if oldest is None else min(version, oldest)
                for version, oldest in zip(versions, cached.oldest, strict=True)
            ]
        if dense:
            slices = {server: pair[0] for server, pair in dense.items()}
            self._trainable = self._merged(self._trainable, slices)
            slices = {server: pair[1] for server, pair in dense.items()}
            self._state = self._merged(self._state, slices)
        return Pulled(ids, rows, self._trainable, self._state, versions, times, updates)

    def _merged(self, flat: Float32, slices: dict[int, Float32]) -> Float32:
        """A new flat vector: `flat` with the slices of some servers in place of its own."""
        return np.concatenate(
            [
                slices.get(server, flat[slice_of(flat.size, server, len(self))])
                for server in range(len(self))
            ]
        )

    # ------------------------------------------------------------ push

    def hold(self, push: Push) -> int:
        """Send a step's gradients to all servers, to be held; returns the gradient's number.

        Returns when every server holds them. What becomes of them is the master's to say.
        """
        number = self._sequence + 1
        self.push(replace(push, hold=number))
        return number

    def push(self, push: Push) -> int:
        """Send a step's gradients to all servers; returns the highest staleness.

        Returns when every server has applied them, each once.
        """
        dense: dict[int, tuple[Float32, Float32]] = {
            server: (
                push.dense[0][slice_of(push.dense[0].size, server, len(self))],
                push.dense[1][slice_of(push.dense[1].size, server, len(self))],
            )
            for server in range(len(self))
        }
        tables = push.tables
        staleness = 0
        while True:
            routing = self.routing
            parts, owners = self._split(tables, routing)
            self._sequence += 1
            requests = {
                server: self._push_frame(
                    push, server, routing.epoch, parts[server], dense.get(server)
                )
                for server in range(len(self))
                if server in dense or any(ids.size for ids, _ in parts[server].values())
            }
            faults.point("before-push")
            answers = {
                server: self._circuits[server].start(methods.PUSH, request)
                for server, request in requests.items()
            }
            refusals: dict[int, WireError] = {}
            for server, answer in answers.items():
                try:
                    frame = self._finish(server, methods.PUSH, requests[server], answer)
                except WireError as error:
                    if error.kind not in ROUTING_ERRORS:
                        raise
                    refusals[server] = error
                    continue
                reply, _ = frames.decode(frame, pb.PushReply)
                staleness = max(staleness, reply.staleness)
                self._acknowledged[server] = self._sequence
                self._see(server, reply.version)
                if server != max(answers):
                    faults.point("between-acknowledgements")
            if not refusals:
                return staleness
            # A refusal changes nothing on that server: what it was to get goes out
            # again under a new number, routed by the new table.
            self._follow_routing(next(iter(refusals.values())), routing)
            dense = {server: dense[server] for server in refusals if server in dense}
            refused = {table: np.isin(owners[table], list(refusals)) for table in tables}
            tables = {
                table: (ids[refused[table]], gradients[refused[table]])
                for table, (ids, gradients) in tables.items()
            }

    def _split(
        self, tables: dict[int, tuple[Int64, Float32]], routing: Routing
    ) -> tuple[list[dict[int, tuple[Int64, Float32]]], dict[int, Int64]]:
        """The parts of each server, and the owner of each id of each table."""
        if len(self) == 1:
            return [tables], {
                table: np.zeros(ids.size, np.int64) for table, (ids, _) in tables.items()
            }
        parts: list[dict[int, tuple[Int64, Float32]]] = [{} for _ in range(len(self))]
        owners: dict[int, Int64] = {}
        places: list[slice | Int64] = []
        cut: list[Int64] = []
        last: Int64 | None = None
        for table, (ids, gradients) in tables.items():
            if ids is not last:  # tables that share ids share their parts, too
                last = ids
                owner = routing.owners[native_ids.slot_of(ids)].astype(np.int64)
                places = self._places(owner)
                cut = [ids[place] for place in places]
            owners[table] = owner
            for server, place in enumerate(places):
                parts[server][table] = cut[server], gradients[place]
        return parts, owners

    def _places(self, owner: Int64) -> list[slice | Int64]:
        """Where the ids of each server are, of which `owner` says whose they are."""
        # Ids of a pull are grouped by server already: then each part is a view.
        if (np.diff(owner) >= 0).all():
            ends = np.searchsorted(owner, np.arange(len(self) + 1))
            return [slice(ends[server], ends[server + 1]) for server in range(len(self))]
        return [np.flatnonzero(owner == server) for server in range(len(self))]

    def _push_frame(
        self,
        push: Push,
        server: int,
        epoch: int,
        part: dict[int, tuple[Int64, Float32]],
        dense: tuple[Float32, Float32] | None,
    ) -> bytes:
        header = pb.PushRequest(
            identity=pb.PushIdentity(
                worker=self._worker, incarnation=self._incarnation, sequence=self._sequence
            ),
            routing_epoch=epoch,
            learning_rate=push.learning_rate,
            pulled_version=push.versions[server],
            pulled_time=push.times[server],
            modulate_rate=push.modulate_rate,
            hold=push.hold,
            task=push.task,
            records_done=push.records_done,
        )
        return push_frame(header, part, dense, self._value_type)

    # ------------------------------------------------------------ whole tables

    def read_table(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Every row of a table, in pieces: ids int64 [n], rows float32 [n, dim]."""
        for circuit in self._circuits:
            for frame in circuit.stream(methods.READ_TABLE, pb.ReadTableRequest(table=table)):
                _, (ids, rows) = frames.decode(frame, pb.ReadTableReply)
                yield ids, rows

    def assign_rows(self, table: int, ids: Int64, rows: Float32) -> None:
        """Set rows of a table: ids int64 [n] without repeats, rows float32 [n, dim]."""
        while True:
            routing = self.routing
            parts, _ = self._split({table: (ids, rows)}, routing)
            header = pb.AssignRowsRequest(routing_epoch=routing.epoch, table=table)
            requests = [
                (server, frames.encode(header, part[table])) for server, part in enumerate(parts)
            ]
            try:
                list(self._call_all(methods.ASSIGN_ROWS, requests))
            except WireError as error:
                self._follow_routing(error, routing)
            else:
                return

    # ------------------------------------------------------------ calls

    def _call_all(
        self, method: methods.Method[bytes, bytes], requests: Sequence[tuple[int, bytes]]
    ) -> Iterator[bytes]:
        """Make calls, each (server, frame), at the same time; the answers in their order."""
        answers = [self._circuits[server].start(method, frame) for server, frame in requests]
        for (server, frame), answer in zip(requests, answers, strict=True):
            yield self._finish(server, method, frame, answer)

    def _follow_routing(self, error: WireError, used: Routing) -> None:
        """Fetch the routing table if `error` says that `used` is old; else raise it."""
        if error.kind not in ROUTING_ERRORS:
            raise error
        with self._routing_lock:
            if self.routing is not used:
                return  # the other thread has fetched it
            reply = self._master.call(methods.GET_ROUTING, pb.GetRoutingRequest())
            routing = Routing.from_message(reply.routing)
            if routing.epoch <= used.epoch:
                raise error
            self.routing = routing
