"""A job whose servers log their updates, and die where it is told to; its twin never does.

Servers live in this process. One that dies is one whose calls have ended and whose memory
nobody looks at any more; points of proto/faults.py say where in the code that is.
"""

import contextlib
import json
import math
import random

import numpy as np

from shoal.checkpoints.folders import begin, complete
from shoal.files.storage import LocalStorage
from shoal.native import ids as native_ids
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.values.routing import Routing, holder_index, slice_of
from shoal.proto.wire import frames
from shoal.ps.saved.recovery import Sources
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.peer_sink import PeerSink
from shoal.ps.update_log.space import LogSpace
from tests.ps.caller import model_spec

SIZE, STATE, DIM = 7, 4, 3
POINTS = ["push-received", "push-logged", "push-half-applied", "push-applied", "log-replaying"]
POINTS_OF_UPDATES = [*POINTS, "update-logged", "update-applied"]
SPEC = model_spec(
    DIM,
    size=SIZE,
    state=STATE,
    optimizer=OptimizerSpec("adam").to_json(),
    initial=InitializerSpec("uniform"),
    seed=1,
)


class DiedError(Exception):
    """Raised where a process would have been killed."""


class Faults:
    """Named points: the server that comes to one dies there.

    folder: has a file for the one that is armed, which servers look for; None: nobody dies.
    """

    def __init__(self, folder=None):
        self._folder = folder
        self._armed = ""

    @property
    def armed(self):
        return self._armed

    @armed.setter
    def armed(self, name):
        for each in self.files_of(self._armed):
            each.unlink(missing_ok=True)
        self._armed = name
        for each in self.files_of(name):
            each.touch()

    def files_of(self, *names):
        """As faults.files_of."""
        return [self._folder / each for each in names if each and self._folder]

    @contextlib.contextmanager
    def off(self):
        armed, self.armed = self.armed, ""
        yield
        self.armed = armed

    def point(self, name, first=lambda: None):
        if name == self.armed:
            self.armed = ""
            first()
            raise DiedError(name)


def end():
    """In place of the end of this process, which has all servers."""
    raise DiedError("a part of a push was applied")


class World:
    """The servers of a job, and what its master and its workers do with them.

    twin: servers that never die, without logs, and get each push once, which Python applies.
    unsaved: as the master's Moves has it. spec: of the model.
    synchronous: pushes wait for the update that names them. first_rows: as in `Sources`.
    publish: folder for deltas.
    """

    publish = ""

    def __init__(
        self,
        count,
        folder,
        faults,
        *,
        bound=1 << 30,
        grows=False,
        spec=SPEC,
        synchronous=False,
        first_rows="",
    ):
        self.synchronous = synchronous
        self.first_rows = first_rows
        self.spec = spec
        self.routing = Routing.even(count)
        self.folder = folder
        self.root = LocalStorage(folder / "checkpoints")
        self.faults = faults
        self.bound, self.grows = bound, grows
        self.incarnations = [-1] * count
        self.servers = [None] * count
        self.logs = [None] * count
        self.grpc = [None] * count
        self.connections = [None] * count
        self.addresses = [""] * count
        self.sequences = {}
        self.kept = []
        self.number = 0
        self.unsaved = False
        self.event_time = None
        self.master, port = serving.serve({methods.GET_ROUTING: self._located}, "127.0.0.1:0", 4)
        self.to_master = rpc.Connection(f"127.0.0.1:{port}")
        for index in range(count):
            self.start(index)
        self.twin = [
            ParameterServer(
                index,
                self.routing,
                synchronous=synchronous,
                sources=Sources(first_rows=first_rows),
            )
            for index in range(count)
        ]
        for index in range(count):
            self.twin[index].answerer.leave_from(-math.inf)
            self.register(self.twin[index].registration.register)
            self.initialize(index, self.twin[index].registration.initialize_dense)
            self.meet(index)
            self.initialize(index, self.caller(index, methods.INITIALIZE_DENSE))

    def close(self):
        for index in range(len(self.servers)):
            self.kill(index)
        self.to_master.close()
        self.master.stop(None).wait()

    # ------------------------------------------------------------ the master

    def _located(self, _):
        if not all(self.addresses):
            raise WireError(pb.NOT_READY, "not all are there")
        return pb.RegisterWorkerReply(routing=self.routing.to_message(), servers=self.addresses)

    def _sink(self, index):
        if len(self.servers) == 1:
            return FileSink(self.folder / "log", 0, self.incarnations[0], sync=True)
        return self.at_peer(index)

    def at_peer(self, index):
        """The place of a server's log at another one."""

        def keeper():
            return holder_index(index, self.routing.dense)

        return PeerSink(
            index,
            self.incarnations[index],
            keeper,
            lambda _: "",
            self._locate,
            lambda: "" if self.unsaved else self.addresses[keeper()],
            retry_seconds=10.0,
            server_timeout_seconds=60.0,
        )

    def _locate(self, keeper):
        request = pb.GetRoutingRequest()
        return self.to_master.call(methods.GET_ROUTING, request, patience=0.0).servers[keeper]

    def start(self, index, *, replay=True):
        """Start a server, as often as it takes."""
        while self.addresses[index] == "":
            self.incarnations[index] += 1
            server = ParameterServer(
                index,
                self.routing,
                synchronous=self.synchronous,
                sources=Sources(str(self.root.location), first_rows=self.first_rows),
                publish=self.publish,
                end=end,
            )
            space = LogSpace(self.bound, grows=self.grows)
            log = server.keep_log(
                self._sink(index), self.incarnations[index], space, server.stopped.set
            )
            if self.incarnations[index]:
                plan = pb.RestoreReply(
                    again=True,
                    checkpoints=self.kept[::-1],
                    nonces=["" for _ in self.kept],
                )
                plan.replay = replay
                try:
                    server.registration.restore(plan)
                except DiedError:
                    continue
            else:
                server.registration.begin_anew()
            server.moves.settle()  # as the process does, once it has registered
            server.registration.settle()
            server.had, server.told = server.last_pushes(), []
            if self.incarnations[index]:
                server.registration.workers.tell = server.told.append
            server.ready.set()
            self.servers[index], self.logs[index] = server, log
            self.grpc[index], port = serving.serve(server.handlers(), "127.0.0.1:0", 8)
            self.addresses[index] = f"127.0.0.1:{port}"
            self.connections[index] = rpc.Connection(self.addresses[index])

    def kill(self, index):
        self.addresses[index] = ""
        if self.grpc[index] is not None:
            self.grpc[index].stop(None).wait()
            self.connections[index].close()
            self.logs[index]._sink.close()
            self.grpc[index] = None

    def checkpoint(self, until="told"):
        """Take a checkpoint; `until`: the step of it after which nothing more comes."""
        self.number += 1
        attempt = begin(self.root, self.number, "job")
        shards = []
        self.attempt = of = {"number": attempt.number, "nonce": attempt.nonce}
        for index in range(len(self.servers)):
            self.call(index, methods.BEGIN_CHECKPOINT, pb.BeginCheckpointRequest(**of))
        if until == "begun":
            return
        for index in range(len(self.servers)):
            request = pb.WriteShardRequest(**of)
            shards.append(json.loads(self.call(index, methods.WRITE_SHARD, request).shard))
        if until == "written":
            return
        complete(attempt, shards, {})
        self.kept.append(self.number)
        self.unsaved = False
        if until == "told":
            self.told()

    def told(self):
        """Servers hear that the last checkpoint is complete."""
        for index in range(len(self.servers)):
            request = pb.CompleteCheckpointRequest(**self.attempt)
            self.call(index, methods.COMPLETE_CHECKPOINT, request)

    def look_after(self):
        for log in self.logs:
            log.look_after()

    def look_after_one(self, index):
        self.logs[index].look_after()

    def status(self, index):
        return self.call(index, methods.STATUS, pb.ServerStatusRequest())

    # ------------------------------------------------------------ the workers

    def call(self, index, method, request):
        return self.connections[index].call(method, request, patience=0.0)

    def caller(self, index, method):
        return lambda frame: self.call(index, method, frame)

    def register(self, call, worker=None, index=0):
        # As if the version was not known: or else it would rise, so that the worker takes notice.
        request = pb.RegisterRequest(model=self.spec, known_version=-1)
        if worker is not None:
            request.caller.worker = worker
            request.caller.sequence = self.sequences.get((worker, index), 0)
        while True:
            try:
                call(request)
            except WireError as error:
                if not self.first_rows or error.kind != pb.NOT_READY:
                    raise
            else:
                return

    def meet(self, index):
        for worker in range(3):
            self.register(self.caller(index, methods.REGISTER), worker, index)

    def initialize(self, index, call):
        """The first dense values; a restarted server that wants them again has lost them."""
        parts = []
        for size, value in ((SIZE, 0.5), (STATE, 1.0)):
            own = slice_of(size, index, len(self.servers))
            parts.append(np.full(own.stop - own.start, value, np.float32))
        call(frames.encode(pb.InitializeDenseRequest(), parts))

    def push(self, worker, ids, draw):
        """A push to all servers, each once as a worker would: again after a death."""
        versions = [twin.model.version for twin in self.twin]
        owner = self.routing.owners[native_ids.slot_of(ids)]
        sequence = 1 + max(self.sequences.get((worker, i), 0) for i in range(len(self.servers)))
        for index in range(len(self.servers)):
            frame = self._frame(index, worker, sequence, ids[owner == index], versions[index], draw)
            self._deliver(index, methods.PUSH, frame)
            with self.faults.off():
                self.twin[index].push(frame)
            self.sequences[worker, index] = sequence
        return sequence

    def update(self, number, after, gradients):
        """Have all servers apply an update, each once. gradients: (worker, number of its push)."""
        named = [pb.GradientId(worker=worker, number=each) for worker, each in gradients]
        request = pb.ApplyUpdateRequest(update=number, after=after, gradients=named)
        for index in range(len(self.servers)):
            self._deliver(index, methods.APPLY_UPDATE, request)
            with self.faults.off():
                self.twin[index].apply_update(request)

    def _frame(self, index, worker, sequence, ids, version, draw):
        def drawn(*shape):
            return np.array([draw.gauss(0, 1) for _ in range(np.prod(shape))], np.float32)

        size = self.twin[index].model.dense.elements
        state = self.twin[index].model.dense.state_elements
        tables = range(len(self.spec.tables))
        header = pb.PushRequest(
            identity=pb.PushIdentity(worker=worker, sequence=sequence),
            routing_epoch=1,
            tables=tables,
            ids_of=[0 for _ in tables],
            has_dense=True,
            learning_rate=0.1,
            pulled_version=max(0, version - draw.randrange(4)),
            modulate_rate=draw.random() < 0.5,
            own_pushes=draw.randrange(min(3, sequence)),
            table_rates=[draw.choice([0.01, 0.2]) for _ in tables] if draw.random() < 0.5 else [],
            event_time=self.event_time,
            hold=sequence if self.synchronous else 0,
        )
        gradients = [drawn(ids.size, DIM).reshape(ids.size, DIM) for _ in tables]
        return frames.encode(header, [ids, *gradients, drawn(size), drawn(state)])

    def _deliver(self, index, method, request):
        while True:
            try:
                self.call(index, method, request)
            except (RuntimeError, WireError, PeerUnavailableError) as error:
                if isinstance(error, WireError):
                    raise
                self.start_again(index)
            else:
                return

    def start_again(self, index):
        self.kill(index)
        self.start(index)
        self.meet(index)

    # ------------------------------------------------------------ what came of it

    def same(self):
        for server, twin in zip(self.servers, self.twin, strict=True):
            assert content(server.model) == content(twin.model)


def lost(server):
    """Pushes that workers were told of and that the server was started again without."""
    had = {push.identity.worker: push.identity.sequence for push in server.had}
    told = {push.identity.worker: push.identity.sequence for push in server.told}
    return sum(max(0, upto - had.get(worker, 0)) for worker, upto in told.items())


def content(model):
    """Of each table its rows (`rows_of`); then the dense vectors, version and step."""
    vectors = [model.dense.block.values, *model.dense.block.slots.values(), model.dense.state]
    rows = map(rows_of, model.tables)
    return *rows, [each.tolist() for each in vectors], model.version, model.step


def rows_of(table):
    """Rows with slots and headers, and counted ids, by id."""
    rows = {}
    for columns in table.export_counting():
        rows.update(
            (each[0], each[1:]) for each in zip(*map(np.ndarray.tolist, columns), strict=True)
        )
    for ids, values, slots, versions, uses in table.export():
        parts = [values, *slots.values(), versions[:, None], uses[:, None]]
        joined = np.concatenate(parts, axis=1)
        rows.update(zip(ids.tolist(), map(tuple, joined.tolist()), strict=True))
    return rows


def numbers(count, seed=0):
    """Ids of so many pushes, each with four."""
    draw = random.Random(seed)
    return [np.array(draw.sample(range(40), 4), np.int64) * 9973 for _ in range(count)]
