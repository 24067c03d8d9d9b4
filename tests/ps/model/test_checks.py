"""Pushes are applied whole or not at all: frames of workers, changed at random, over real gRPC."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.space import LogSpace
from tests.examples import examples
from tests.ps.logged import DiedError

DIMS = (3, 2)
SPEC = pb.ModelSpec(
    tables=[
        pb.TableSpec(
            name=f"table-{dim}",
            dim=dim,
            initializer=InitializerSpec("uniform").to_json(),
            optimizer=OptimizerSpec(kind).to_json(),
            seed=dim,
        )
        for dim, kind in zip(DIMS, ("adam", "ftrl"), strict=True)
    ],
    trainable=[pb.VariableSpec(name="w", shape=[5])],
    non_trainable=[pb.VariableSpec(name="mean", shape=[2])],
    dense_optimizer=OptimizerSpec("adagrad").to_json(),
)


def end():
    raise DiedError("the server ended itself")


class Server:
    """One server with two tables, whose log is a file."""

    def __init__(self, folder):
        self.server = ParameterServer(0, Routing.even(1), end=end)
        self.sink = FileSink(folder, 0, 0, sync=False)
        self.server.keep_log(self.sink, 0, LogSpace(1 << 30), self.server.stopped.set)
        self.server.registration.begin_anew()
        self.grpc, port = serving.serve(self.server.handlers(), "127.0.0.1:0", 4)
        self.connection = rpc.Connection(f"127.0.0.1:{port}")
        self.connection.call(methods.REGISTER, pb.RegisterRequest(model=SPEC))
        first = [np.full(5, 0.5, np.float32), np.zeros(2, np.float32)]
        frame = frames.encode(pb.InitializeDenseRequest(), first)
        self.connection.call(methods.INITIALIZE_DENSE, frame)
        self.workers = 0

    def close(self):
        self.connection.close()
        self.grpc.stop(None).wait()
        self.sink.close()

    def push(self, frame):
        answer = self.connection.call(methods.PUSH, frame, patience=0.0)
        return frames.decode(answer, pb.PushReply)[0]

    def all_there_is(self):
        """Rows with slots and headers, dense vectors, version, step, register and log."""
        model = self.server.model
        rows = [
            # As bytes: finite gradients of 1e38 make values that are no numbers.
            sorted(
                (row, values.tobytes(), count, last)
                for row, values, count, last in zip(
                    ids.tolist(), np.hstack([v, *s.values()]), n, u, strict=True
                )
            )
            for table in model.tables
            for ids, v, s, n, u in table.export()
        ]
        dense = [model.dense.block.values, *model.dense.block.slots.values(), model.dense.state]
        with self.server._pushes.paused() as applied:
            register = [dict(each) for each in applied]
        return (
            rows,
            [each.tobytes() for each in dense],
            (model.version, model.step),
            register,
            # It is only ever written at its end.
            [each.stat().st_size for each in self.sink._segments()],
            len(self.server._pending),
        )

    def original(self):
        """Header and arrays of a push that any server takes, of a worker of its own."""
        self.workers += 1
        while self.server.model.moment(self.workers, 0, -2).applied:
            self.workers += 1  # an earlier push was changed into one of this worker
        header = pb.PushRequest(
            identity=pb.PushIdentity(worker=self.workers, sequence=1),
            routing_epoch=1,
            tables=[0, 1],
            ids_of=[0, 0],
            has_dense=True,
            learning_rate=0.1,
            pulled_version=self.server.model.version,
            pulled_time=self.server.model.time(),
            task=3,
            records_done=64,
        )
        arrays = [np.array([7, 9973 * (self.workers % 9)], np.int64)]
        arrays += [np.full((2, dim), 0.25, np.float32) for dim in DIMS]
        return header, [*arrays, np.full(5, 0.5, np.float32), np.full(2, 0.125, np.float32)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("log"))
    yield made
    made.close()


NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1]),
    st.integers(-3, 5),
)
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e39]),
    st.floats(),
)
DTYPES = [np.int64, np.float32, np.float16, np.uint16, np.int32, np.float64]


def set_field(message, name, value):
    """Set a field, if its type can hold the value; a worker could not send it otherwise."""
    try:
        setattr(message, name, value)
    except (ValueError, TypeError, OverflowError):
        setattr(message, name, 0)


@st.composite
def mutations(draw):
    """A function that changes header and arrays, or the frame's bytes."""
    kinds = ["field", "float", "rates", "identity", "tables", "array", "spec", "bytes"]
    kind = draw(st.sampled_from(kinds))
    number, place = draw(NUMBERS), draw(st.integers(0, 400))
    match kind:
        case "field":
            names = ["routing_epoch", "pulled_version", "task", "records_done", "own_pushes"]
            name = draw(st.sampled_from([*names, "hold", "has_dense"]))
            return lambda header, _: set_field(header, name, number)
        case "float":
            name, value = draw(st.sampled_from(["learning_rate", "pulled_time"])), draw(FLOATS)
            return lambda header, _: set_field(header, name, value)
        case "rates":
            rates = draw(st.lists(FLOATS, max_size=3))
            return lambda header, _: header.table_rates.extend(rates)
        case "identity":
            name = draw(st.sampled_from(["incarnation", "sequence"]))
            return lambda header, _: set_field(header.identity, name, number)
        case "tables":
            tables = draw(st.lists(st.integers(0, 3), max_size=4))
            ids_of = draw(st.lists(st.integers(0, 3), max_size=4))

            def change(header, _):
                header.tables[:] = tables
                header.ids_of[:] = ids_of

            return change
        case "array":
            which, dtype = draw(st.integers(0, 4)), draw(st.sampled_from(DTYPES))
            shape = draw(st.lists(st.integers(0, 3), max_size=3))
            value = draw(st.one_of(FLOATS, st.just(None)))
            how = draw(st.sampled_from(["dtype", "shape", "value", "drop", "twice"]))

            def change(_, arrays):
                old = arrays[which]
                if how == "dtype":
                    arrays[which] = np.ones(old.shape, dtype)
                elif how == "shape":
                    arrays[which] = np.zeros(shape, old.dtype)
                elif how == "value" and old.dtype == np.float32 and value is not None:
                    with np.errstate(over="ignore"):
                        old.reshape(-1)[place % old.size] = value
                elif how == "drop":
                    del arrays[which]
                else:
                    arrays.insert(which, old)

            return change
        case "spec":
            # The header's own word of an array, whatever the array is.
            which, extents = draw(st.integers(0, 4)), draw(st.lists(NUMBERS, max_size=4))
            data_type = draw(st.integers(0, 9))

            def respec(header, _):
                spec = header.arrays[which]
                spec.shape[:] = [abs(extent) for extent in extents if abs(extent) < 2**64]
                if data_type < 8:
                    spec.data_type = data_type

            respec.late = True
            return respec
        case "bytes":
            size, flip = draw(st.integers(0, 400)), draw(st.integers(1, 255))
            cut = draw(st.booleans())

            def scramble(frame):
                if cut:
                    return frame[:size]
                changed = bytearray(frame)
                changed[place % len(frame)] ^= flip
                return bytes(changed)

            scramble.raw = True
            return scramble


def mutant(mutation, header, arrays):
    changed = pb.PushRequest.FromString(header.SerializeToString())
    copies = [array.copy() for array in arrays]
    if hasattr(mutation, "raw"):
        return mutation(frames.encode(changed, copies))
    if hasattr(mutation, "late"):
        frame = frames.encode(changed, copies)
        old = changed.SerializeToString()
        mutation(changed, copies)
        new = changed.SerializeToString()
        first, padding = -(-(8 + len(old)) // 8) * 8, bytes(-(8 + len(new)) % 8)
        return frame[:4] + len(new).to_bytes(4, "little") + new + padding + frame[first:]
    mutation(changed, copies)
    return frames.encode(changed, copies)


@settings(max_examples=examples(300))
@given(mutation=mutations())
def test_a_changed_push_is_applied_once_or_leaves_everything_as_it_was(server, mutation):
    header, arrays = server.original()
    frame = mutant(mutation, header, arrays)
    before = server.all_there_is()
    try:
        reply = server.push(frame)
    except WireError:  # anything else is a bug, which comes as a RuntimeError
        assert server.all_there_is() == before
        assert server.push(frames.encode(header, arrays)).applied
    else:
        after = server.all_there_is()
        if not reply.applied:
            assert after == before  # a byte changed into the number of an earlier worker
            return
        assert after[2][0] == before[2][0] + 1
        assert after[4][-1] > before[4][-1]
        assert not server.push(frame).applied
        assert server.all_there_is()[:5] == after[:5]


BAD = {
    "a time of minus infinity": lambda header, arrays: set_field(header, "pulled_time", -math.inf),
    "a time that is far too early": lambda header, arrays: set_field(header, "pulled_time", -1e308),
    "ids that are no integers": lambda header, arrays: arrays.__setitem__(
        0, arrays[0].astype(np.float64)
    ),
    "Ftrl at rate 0": lambda header, arrays: set_field(header, "learning_rate", 0.0),
    "a rate beyond float32": lambda header, arrays: set_field(header, "learning_rate", 1e39),
    "one dense array": lambda header, arrays: arrays.__delitem__(slice(0, 4)),
    "a dense gradient of float64": lambda header, arrays: arrays.__setitem__(
        3, arrays[3].astype(np.float64)
    ),
    "a second table that is malformed": lambda header, arrays: arrays.__setitem__(
        2, np.zeros((2, 9), np.float32)
    ),
    "a table that there is not": lambda header, arrays: header.tables.__setitem__(1, 9),
    "a table twice": lambda header, arrays: header.tables.__setitem__(1, 0),
    "a gradient to be held without --sync": lambda header, arrays: set_field(header, "hold", 1),
    "no sequence": lambda header, arrays: set_field(header.identity, "sequence", 0),
    "a negative version": lambda header, arrays: set_field(header, "pulled_version", -(2**63)),
    "one scale for two tables": lambda header, arrays: header.scales.append(1.0),
    "a scale that is no number": lambda header, arrays: header.scales.extend([1.0, math.nan]),
    "a scale of zero": lambda header, arrays: header.scales.extend([0.0, 1.0]),
    "more own pushes than it can have": lambda header, arrays: set_field(header, "own_pushes", 1),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_worker_sends_is_refused_and_leaves_everything_as_it_was(server, name):
    header, arrays = server.original()
    frame = mutant(BAD[name], header, arrays)
    if name == "one dense array":
        changed = pb.PushRequest.FromString(header.SerializeToString())
        del changed.tables[:], changed.ids_of[:]
        frame = frames.encode(changed, arrays[4:])
    before = server.all_there_is()
    with pytest.raises(WireError) as refused:
        server.push(frame)
    assert refused.value.kind == pb.BAD_REQUEST
    assert server.all_there_is() == before
    assert server.push(frames.encode(header, arrays)).applied


def test_a_shape_beyond_any_memory_is_a_bad_request():
    header = pb.PushRequest()
    header.arrays.add(data_type=pb.FLOAT32, shape=[2**63])
    packed = header.SerializeToString()
    frame = b"SHL1" + len(packed).to_bytes(4, "little") + packed + bytes(64)
    with pytest.raises(WireError, match="BAD_REQUEST"):
        frames.decode(frame, pb.PushRequest)


def test_first_dense_values_of_another_type_do_not_begin_a_log(tmp_path):
    sink = FileSink(tmp_path, 0, 0, sync=False)
    try:
        fresh = ParameterServer(0, Routing.even(1))
        fresh.keep_log(sink, 0, LogSpace(1 << 30), fresh.stopped.set)
        fresh.registration.register(pb.RegisterRequest(model=SPEC))
        for parts in ([np.zeros(5), np.zeros(2)], [np.zeros(4, np.float32)] * 2):
            frame = frames.encode(pb.InitializeDenseRequest(), parts)
            with pytest.raises(WireError, match="BAD_REQUEST"):
                fresh.registration.initialize_dense(frame)
        assert not fresh.model.dense.initialized
        assert not sink._segments()
    finally:
        sink.close()


class _Full:
    """A table for whose rows there is no memory; all else as the table."""

    def __init__(self, table):
        self._table = table

    def __getattr__(self, name):
        return getattr(self._table, name)

    def update(self, *_, **__):
        raise MemoryError("no memory for more rows")


def test_a_server_that_applied_a_part_of_a_push_ends_and_its_log_makes_it_whole(tmp_path):
    """What the process does there is to end; here it is told, and its successor is looked at."""
    made = Server(tmp_path)
    made.push(frames.encode(*made.original()))
    header, arrays = made.original()
    whole = made.server.model.tables[1]
    made.server.model.tables[1] = _Full(whole)
    with pytest.raises(RuntimeError, match="the server ended itself"):
        made.push(frames.encode(header, arrays))
    made.close()
    sink = FileSink(tmp_path, 0, 1, sync=False)
    successor = ParameterServer(0, Routing.even(1))
    successor.keep_log(sink, 1, LogSpace(1 << 30), successor.stopped.set)
    successor.registration.restore(pb.RestoreReply(again=True, replay=True))
    successor.registration.workers.again = False
    assert successor.model.version == 2
    assert [len(table) for table in successor.model.tables] == [3, 3]
    # The worker, which was not answered, sends it again.
    answer, _ = frames.decode(successor.push(frames.encode(header, arrays)), pb.PushReply)
    assert not answer.applied
    for table in successor.model.tables:
        uses = {}
        for ids, _, _, _, counts in table.export():
            uses.update(zip(ids.tolist(), counts.tolist(), strict=True))
        assert uses == {7: 2, 9973: 1, 2 * 9973: 1}
    sink.close()


def test_a_push_at_the_end_of_a_server_is_refused_and_waits_for_no_log(tmp_path):
    """Its log is closed, so that nobody would answer; a worker sends it to the successor."""
    made = Server(tmp_path)
    made.sink.close()
    refused = []

    def push():
        with pytest.raises(WireError, match="NOT_READY: this server ends"):
            made.push(frames.encode(*made.original()))
        refused.append(made.server.model.version)

    thread = threading.Thread(target=push, daemon=True)
    thread.start()
    thread.join(60)
    made.close()
    assert refused == [0]
