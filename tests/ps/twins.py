"""Two servers alike, of which one leaves every push to Python; and pushes of all kinds for them."""

import math
from itertools import zip_longest

import numpy as np
from hypothesis import strategies as st

from shoal.native import ids as native_ids
from shoal.native import values
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.space import LogSpace

DIMS = (3, 8)
EVERY = np.arange(400)
OWN = EVERY[native_ids.slot_of(EVERY) < 8192]
OTHERS = np.setdiff1d(EVERY, OWN)
"""Ids of the second server."""

OPTIMIZERS = {
    "sgd": OptimizerSpec("sgd"),
    "adagrad": OptimizerSpec("adagrad"),
    "adam": OptimizerSpec("adam", {"weight_decay": 0.01}),
    "ftrl": OptimizerSpec("ftrl"),
    "clipped": OptimizerSpec("sgd", {"clipnorm": 0.5}),
    "rows": OptimizerSpec("rowwise_adagrad"),
}


def model_spec(optimizers=("adagrad", "adam", "adam"), value_dtype="float32", admit_after=1):
    """Two tables and dense values. optimizers: of the tables and of the dense values."""
    of = [OPTIMIZERS[name].to_json() for name in optimizers]
    start = InitializerSpec("uniform").to_json()
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(name="a", dim=DIMS[0], initializer=start, optimizer=of[0], seed=1),
            pb.TableSpec(
                name="b",
                dim=DIMS[1],
                initializer=start,
                optimizer=of[1],
                seed=2,
                value_dtype=value_dtype,
                admit_after=admit_after,
            ),
        ],
        trainable=[pb.VariableSpec(name="w", shape=[10])],
        non_trainable=[pb.VariableSpec(name="mean", shape=[4])],
        dense_optimizer=of[2],
    )


def aligned(frame):
    """The same bytes, where a message of a connection would begin."""
    buffer = np.empty(len(frame) + 64, np.uint8)
    skipped = -buffer.ctypes.data % 64
    view = buffer[skipped : skipped + len(frame)]
    view[:] = np.frombuffer(frame, np.uint8)
    return memoryview(view)


class Server:
    """The first server of two, called without a connection."""

    def __init__(self, spec, *, native, initialized=True, logs=None, bound=1 << 30):
        """logs: a folder; pushes are logged below it, `bound` bytes of them."""
        self.server = ParameterServer(0, Routing.even(2))
        self.sink = None
        if logs is not None:
            self.sink = FileSink(logs / f"native-{native}", 0, 0, sync=False)
            self.server.keep_log(self.sink, 0, LogSpace(bound), self.server.stopped.set)
        self.server.registration.begin_anew()
        self.handlers = self.server.handlers()
        self.handlers[methods.REGISTER](pb.RegisterRequest(model=spec))
        if initialized:
            dense = self.server.model.dense
            first = [np.arange(dense.elements), np.ones(dense.state_elements)]
            self.handlers[methods.INITIALIZE_DENSE](
                frames.encode(pb.InitializeDenseRequest(), [each.astype("f4") for each in first])
            )
        if not native:
            self.server.answerer.leave_from(-math.inf)

    def push(self, frame):
        """The reply, or kind and message of a refusal; and whether Python had no part in it."""
        frame = aligned(frame)
        native = self.server.answerer.push(frame)
        if native is not None:
            return native, True
        try:
            return bytes(self.handlers[methods.PUSH](frame)), False
        except WireError as error:
            return (error.kind, error.message), False

    def logged(self):
        """Step, staleness and frame of each push in the log; closes it."""
        self.sink.close()
        return [
            (entry.step, entry.staleness, bytes(frame))
            for entry, frame in FileSink(self.sink._folder, 0, 1, sync=False).take().entries
            if isinstance(entry, pb.LogEntry)
        ]

    def content(self):
        """All that a push may change, but for ages, which are the clock's."""
        model = self.server.model
        tables = []
        for table in model.tables:
            rows = {}
            for ids, own, slots, versions, uses in table.export():
                whole = np.hstack([own, *slots.values()])
                for i, key in enumerate(ids.tolist()):
                    rows[key] = whole[i].tobytes(), int(versions[i]), int(uses[i])
            tables.append((rows, table.counting))
        dense = model.dense
        vectors = [dense.state]
        if dense.initialized:
            vectors += [dense.block.values, *dense.block.slots.values()]
        register = self.server._pushes
        with register.paused() as applied:
            pushes = sorted(map(str, applied))
        staleness, age = model.distributions()
        senders = [model.moment(each, 0, -2).applied for each in (0, 1, 2, 70_000)]
        numbers = model.version, model.step, register.duplicates, senders, age.count
        return tables, [each.tobytes() for each in vectors], pushes, numbers, str(staleness)


class Twins:
    """A server whose pushes are applied without Python where they can be, and one without."""

    def __init__(self, spec, **options):
        self.native = Server(spec, native=True, **options)
        self.python = Server(spec, native=False, **options)
        self.applied_natively = 0

    def each(self, call):
        for server in (self.native, self.python):
            call(server.server)

    def push(self, frame):
        found, native = self.native.push(frame)
        expected, by_native = self.python.push(frame)
        assert not by_native
        assert found == expected
        self.applied_natively += native
        return found

    def check(self, frame):
        """As `push`; raises WireError if it is refused."""
        found = self.push(frame)
        if isinstance(found, tuple):
            raise WireError(*found)

    def same(self):
        assert self.native.content() == self.python.content()


def push_frame(
    tables,
    dense=None,
    *,
    value_types=(),
    scales=(),
    worker=0,
    incarnation=0,
    sequence=1,
    **header,
):
    """A push.

    tables: of each its position, ids and gradients, float32 [n, dim]. value_types: of each, how
    its gradients travel; float32 where they are not said.
    """
    request = pb.PushRequest(
        identity=pb.PushIdentity(worker=worker, incarnation=incarnation, sequence=sequence),
        tables=[position for position, _, _ in tables],
        ids_of=range(len(tables)),
        has_dense=dense is not None,
        scales=scales,
        **{"routing_epoch": 1, "learning_rate": 0.5} | header,
    )
    arrays = [np.asarray(ids, np.int64) for _, ids, _ in tables]
    for (_, _, gradients), travels in zip_longest(tables, value_types, fillvalue=pb.FLOAT32):
        wire = np.empty(np.shape(gradients), frames.DTYPES[travels])
        with np.errstate(over="ignore", invalid="ignore"):
            values.encode(np.asarray(gradients, np.float32), wire)
        arrays.append(wire)
    return frames.encode(request, [*arrays, *(np.asarray(d, np.float32) for d in dense or ())])


def seeds():
    """Pushes that C applies: with all fields that it reads, with few of them, and of 16 bits.

    Of a worker whose first push was applied.
    """
    rows = [(k, OWN[: 3 + k], np.full((3 + k, DIMS[k]), 0.25)) for k in (1, 0)]
    dense = np.full(5, 0.5), np.full(2, 0.125)
    many = {"modulate_rate": True, "own_pushes": 1, "task": 3, "records_done": 64}
    full = push_frame(
        rows, dense, sequence=2, pulled_version=1, pulled_time=2.0, table_rates=[0.5, 0.25], **many
    )
    halves = push_frame(rows, sequence=2, value_types=[pb.FLOAT16, pb.FLOAT16], scales=[0.5, 4.0])
    return [full, push_frame(rows[:1], sequence=2), halves]


def begun():
    """Twins with a push of worker 0."""
    twins = Twins(model_spec())
    twins.push(push_frame([(0, OWN[:1], np.ones((1, DIMS[0])))]))
    return twins


usual = st.sampled_from


@st.composite
def pushes(draw, sequence):
    """Mostly what a worker sends, and much that none does. sequence: of the next one."""

    def seldom():
        return draw(st.integers(0, 25)) == 7

    def numbers(*shape):
        kind = draw(st.integers(0, 30))
        seed = np.random.default_rng(draw(st.integers(0, 1000)))
        made = seed.normal(size=shape).astype(np.float32)
        if kind == 0 and made.size:
            made.flat[-1] = draw(usual([np.nan, np.inf, -np.inf]))
        return made * np.float32(1e30 if kind == 1 else 1)

    tables = []
    for position in draw(usual([[0], [1], [0, 1], [1, 0], [], [0, 0], [2]] + [[0, 1]] * 5)):
        from_ = OTHERS if seldom() else OWN
        ids = [int(from_[i]) for i in draw(st.lists(st.integers(0, 9), max_size=6))]
        dim = DIMS[position % 2] + seldom()
        tables.append((position, ids, numbers(len(ids) + seldom(), dim)))
    dense = None
    if draw(st.booleans()):
        dense = numbers(5 + seldom()), numbers(2 + seldom())
    each = [pb.FLOAT32] * 3 + [pb.BFLOAT16, pb.FLOAT16]
    value_types = [draw(usual(each)) for _ in tables]
    scales = []
    if pb.FLOAT16 in value_types and draw(st.booleans()):
        scales = [2.0**-4 if each == pb.FLOAT16 else 1.0 for each in value_types]
    rate = st.sampled_from([0.5, 0.25, 1e-3] * 8 + [0.0, -0.5, math.nan, math.inf, 1e39])
    number = st.sampled_from([0] * 20 + [1, 2, 3, -1, 2**62])
    header = {
        "worker": draw(usual([0, 1, 2, 70_000])),
        "incarnation": draw(usual([0] * 6 + [1, 2])),
        "sequence": draw(usual([sequence] * 8 + [sequence - 1, 1, 0, 2**63])),
        "learning_rate": draw(rate),
        "modulate_rate": draw(st.booleans()),
        "pulled_version": draw(number),
        "own_pushes": draw(usual([0, 0, 0, 1, 2, -1, 50])),
        "pulled_time": draw(usual([0.0, 1.5] * 9 + [-1.0, math.nan, math.inf])),
        "task": draw(number),
        "records_done": draw(number),
        "routing_epoch": draw(usual([1] * 25 + [0, 2, -1])),
    }
    if draw(st.booleans()):
        header["table_rates"] = [draw(rate) for _ in range(1 if seldom() else 2)]
    if seldom():
        header["hold"] = 1
    if seldom():
        header["event_time"] = 5
    if seldom():
        scales = [draw(usual([0.5, 0.0, -1.0, math.nan]))] * len(tables)
    return push_frame(tables, dense, value_types=value_types, scales=scales, **header)
