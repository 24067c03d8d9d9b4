"""The server's calls over real gRPC: what comes back, what is refused."""

import time

import numpy as np
import pytest

from shoal.native import ids as native_ids
from shoal.native.initializers import InitializerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.budget import Budget
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.service import ParameterServer
from tests.ps.caller import Caller, model_spec


@pytest.fixture
def caller(cluster, connect):
    """A caller of the only server, or of server `index` of several."""

    def make(servers=1, index=0):
        made = cluster(servers)
        return Caller(connect(made.addresses[index]))

    return make


@pytest.fixture
def ready(caller):
    """A caller of a server that holds the model of model_spec()."""
    made = caller()
    made.register()
    made.initialize(np.arange(5), [0.5, 0.25])
    return made


def test_a_pull_gives_rows_and_dense_values(ready):
    header, (rows, trainable, state) = ready.pull([4, -9, 4])
    assert header.has_dense
    assert header.version == 0
    np.testing.assert_array_equal(rows, np.ones((3, 3)))
    np.testing.assert_array_equal(trainable, np.arange(5))
    np.testing.assert_array_equal(state, [0.5, 0.25])


def test_a_push_changes_rows_dense_values_and_version(ready):
    reply = ready.push([4], [[1, 2, 3]], dense=([1] * 5, [0.5, 0]), rate=0.5)
    assert reply.applied
    assert reply.version == 1
    header, (rows, trainable, state) = ready.pull([4, 5])
    assert header.version == 1
    np.testing.assert_array_equal(rows, [[0.5, 0, -0.5], [1, 1, 1]])
    np.testing.assert_array_equal(trainable, np.arange(5) - 0.5)
    np.testing.assert_array_equal(state, [1.0, 0.25])


def test_statistics_never_go_beyond_what_the_batches_had(ready):
    # Eight workers in turn, each having pulled eight pushes ago; the batches have 0.1.
    seen = [np.float32(0.5)] * 8
    for step in range(60):
        change = 0.1 * (0.1 - seen[step])
        ready.push([], np.zeros((0, 3)), ([0] * 5, [change, 0]), step + 1, pulled=max(0, step - 7))
        seen.append(ready.pull([])[1][2][0])
        assert 0.1 <= seen[-1] <= seen[-2]


def test_pulling_creates_no_rows_and_pushing_does(ready):
    status = ready.connection.call(methods.STATUS, pb.ServerStatusRequest())
    ready.pull([1, 2, 3])
    assert status.tables[0].rows == 0
    ready.push([1, 2], np.zeros((2, 3)))
    status = ready.connection.call(methods.STATUS, pb.ServerStatusRequest())
    assert status.tables[0].rows == 2
    assert status.pulls == 1
    assert status.pushes == 1


def test_evaluation_sees_the_default_row_for_unseen_ids(caller):
    made = caller()
    spec = model_spec()
    spec.tables[0].initializer = InitializerSpec("uniform", {"minval": -1, "maxval": 1}).to_json()
    made.register(spec)
    made.initialize(np.zeros(5), np.zeros(2))
    _, (drawn, *_) = made.pull([5])
    assert np.abs(drawn).max() > 0
    _, (default, *_) = made.pull([5], training=False)
    np.testing.assert_array_equal(default, np.zeros((1, 3)))


def test_dense_values_are_sent_only_when_newer(ready):
    assert not ready.pull([1], dense_version=0)[0].has_dense
    ready.push([1], np.zeros((1, 3)))
    assert not ready.pull([1], dense_version=0)[0].has_dense  # the push had no dense part
    ready.push([1], np.zeros((1, 3)), dense=(np.zeros(5), np.zeros(2)), sequence=2)
    assert ready.pull([1], dense_version=0)[0].has_dense
    assert not ready.pull([1], dense_version=2)[0].has_dense
    assert not ready.pull([1], dense_version=-2)[0].has_dense


def test_a_retried_push_is_applied_once(ready):
    for _ in range(3):
        reply = ready.push([4], [[1, 1, 1]], dense=([1] * 5, [0, 0]))
    assert not reply.applied
    assert reply.version == 1
    _, (rows, trainable, _) = ready.pull([4])
    np.testing.assert_array_equal(rows, np.zeros((1, 3)))
    np.testing.assert_array_equal(trainable, np.arange(5) - 1)
    assert ready.connection.call(methods.STATUS, pb.ServerStatusRequest()).duplicate_pushes == 2


def test_a_fenced_worker_cannot_push(ready):
    ready.push([4], [[1, 1, 1]])
    reply = ready.connection.call(methods.FENCE, pb.FenceRequest(worker=0, incarnation=0))
    assert reply.sequence == 1
    with pytest.raises(WireError) as caught:
        ready.push([4], [[1, 1, 1]], sequence=2)
    assert caught.value.kind == pb.FENCED
    assert ready.push([4], [[1, 1, 1]], sequence=1, incarnation=1).applied


def test_staleness_counts_the_pushes_in_between(ready):
    ready.push([1], np.zeros((1, 3)), worker=1)
    ready.push([1], np.zeros((1, 3)), worker=2)
    assert ready.push([1], np.zeros((1, 3)), worker=3, pulled=0).staleness == 2
    status = ready.connection.call(methods.STATUS, pb.ServerStatusRequest())
    assert list(status.staleness.buckets) == [1, 1, 1]  # 0, 1, and 2 to 3
    assert (status.staleness.count, status.staleness.sum) == (3, 3.0)


def test_a_modulated_rate_is_divided_by_the_staleness_and_never_raised(ready):
    """Pushes of gradient 12 that were all pulled at version 0, to a row that begins at 1."""
    ready.initialize(np.zeros(5), [0, 0])
    values = []
    for worker in range(4):
        dense = (np.full(5, 12.0), np.zeros(2))
        ready.push([1], [[12.0] * 3], dense, worker=worker, modulate_rate=True)
        _, (rows, trainable, _) = ready.pull([1])
        values.append((float(rows[0, 0]), float(trainable[1])))
    steps = -np.cumsum([12.0, 12.0, 6.0, 4.0])  # staleness 0, 1, 2, 3
    assert values == [(1 + step, 1 + step) for step in steps]


def test_a_table_has_the_rate_that_is_its_own(ready):
    """Pushes of gradient 12 at version 0, to a row and dense values that begin at 1."""
    ready.initialize(np.zeros(5), [0, 0])
    for worker in range(3):
        dense = (np.full(5, 12.0), np.zeros(2))
        ready.push([1], [[12.0] * 3], dense, worker=worker, modulate_rate=True, table_rates=[0.25])
    _, (rows, trainable, _) = ready.pull([1])
    assert trainable[1] == 1 - 12 - 12 - 6
    assert rows[0, 0] == 1 - 3 - 3 - 1.5


def test_a_worker_s_own_pushes_divide_neither_the_rate_nor_its_moves(ready):
    """Three pushes that were pulled at version 0: the last two of one worker."""
    dense = np.full(5, 12.0), np.full(2, 6.0)
    for worker, sequence, own in ((3, 1, 0), (1, 1, 0), (1, 2, 1)):
        identity = {"worker": worker, "sequence": sequence}
        reply = ready.push([1], [[12.0] * 3], dense, modulate_rate=True, own=own, **identity)
    assert reply.staleness == 2  # as it is reported, they count
    _, (rows, trainable, state) = ready.pull([1])
    assert rows[0, 0] == trainable[1] == 1 - 12 - 12 - 12  # the last by 1, not by 2
    assert state[0] == 0.5 + 6 + 3 + 3  # by 1, then by 2 twice


def test_a_pull_says_which_of_the_caller_s_pushes_it_has(ready):
    ready.push([1], np.zeros((1, 3)), worker=1, incarnation=2, sequence=4)
    ready.push([1], np.zeros((1, 3)), worker=3, sequence=9)
    for worker, incarnation, applied in ((1, 2, 4), (1, 3, 0), (3, 0, 9), (4, 0, 0)):
        caller = pb.PushIdentity(worker=worker, incarnation=incarnation)
        assert ready.pull([1], caller=caller)[0].applied == applied


def test_without_modulation_staleness_leaves_the_rate_alone(ready):
    for worker in range(4):
        ready.push([1], [[12.0] * 3], worker=worker)
    _, (rows, *_) = ready.pull([1])
    assert rows[0, 0] == 1 - 4 * 12


def test_the_age_of_what_a_push_was_computed_from_is_the_time_since_its_pull(ready, monkeypatch):
    before = time.monotonic()
    header, _ = ready.pull([1])
    assert before <= header.time <= time.monotonic()  # the server's clock, in this process
    times, now = (100.0, 100.25), 100.5
    monkeypatch.setattr("shoal.ps.model.tables.time.monotonic", lambda: now)
    for worker, pulled in zip((1, 2), times, strict=True):
        ready.push([1], np.zeros((1, 3)), worker=worker, pulled_time=pulled)
    age = ready.connection.call(methods.STATUS, pb.ServerStatusRequest()).age
    assert (age.count, age.sum, age.maximum) == (2, 0.75, 0.5)
    assert list(age.buckets) == [0] * 8 + [1, 1]  # 250 and 500 milliseconds


def test_a_status_tells_processor_time_with_the_process_s_own_clock(ready):
    first = ready.connection.call(methods.STATUS, pb.ServerStatusRequest())
    again = ready.connection.call(methods.STATUS, pb.ServerStatusRequest())
    assert 0 < first.seconds < again.seconds
    assert 0 < first.cpu_seconds < again.cpu_seconds


def test_the_first_dense_values_count(ready):
    assert not ready.initialize(np.zeros(5), np.zeros(2))
    np.testing.assert_array_equal(ready.pull([1])[1][1], np.arange(5))


def test_calls_before_registration_are_refused(caller):
    made = caller()
    with pytest.raises(WireError) as caught:
        made.pull([1])
    assert caught.value.kind == pb.NOT_REGISTERED
    made.register()
    with pytest.raises(WireError) as caught:
        made.pull([1])
    assert caught.value.kind == pb.DENSE_NOT_INITIALIZED


def test_registering_again_must_bring_the_same_model(ready):
    assert ready.register().dense_initialized
    with pytest.raises(WireError, match="tables 'items'") as caught:
        ready.register(model_spec(dim=4))
    assert caught.value.kind == pb.SPEC_MISMATCH
    with pytest.raises(WireError, match="2 tables instead of 1"):
        ready.register(model_spec(tables=("items", "users")))


def test_a_spec_that_native_does_not_know_is_refused(caller):
    spec = model_spec()
    spec.dense_optimizer = '{"kind": "magic", "hyperparameters": {}}'
    with pytest.raises(WireError, match="magic") as caught:
        caller().register(spec)
    assert caught.value.kind == pb.BAD_REQUEST


def test_a_stale_epoch_is_refused(ready):
    ready.epoch = 0
    for call in (lambda: ready.pull([1]), lambda: ready.push([1], [[0, 0, 0]])):
        with pytest.raises(WireError) as caught:
            call()
        assert caught.value.kind == pb.STALE_ROUTING


def test_ids_of_another_server_are_refused(caller):
    made = caller(servers=2, index=1)
    made.register()
    made.initialize(np.zeros(3), np.zeros(1))
    ids = np.arange(100)
    mine = ids[Routing.even(2).owners[native_ids.slot_of(ids)] == 1]
    made.pull(mine)
    with pytest.raises(WireError, match="belongs to server 0, this is 1") as caught:
        made.pull(ids)
    assert caught.value.kind == pb.NOT_OWNER
    header = pb.PullRequest(routing_epoch=1, tables=[0], ids_of=[0])
    frame = frames.encode(header, [mine.astype(np.float32)])
    with pytest.raises(WireError, match=r"ids are int64 \[n\], not float32") as caught:
        made.connection.call(methods.PULL, frame)
    assert caught.value.kind == pb.BAD_REQUEST


@pytest.mark.parametrize(
    ("ids", "gradients", "dense", "words"),
    [
        ([1], [[1, 2]], None, "gradients of shape"),
        ([1, 2], [[1, 2, 3]], None, "gradients of shape"),
        ([1], [[1, 2, 3]], ([1] * 4, [0, 0]), "dense slices of"),
    ],
)
def test_a_push_of_wrong_shape_changes_nothing(ready, ids, gradients, dense, words):
    with pytest.raises(WireError, match=words) as caught:
        ready.push(ids, gradients, dense)
    assert caught.value.kind == pb.BAD_REQUEST
    assert ready.pull([1])[0].version == 0


def test_an_unknown_table_is_refused(ready):
    with pytest.raises(WireError, match="there is no table 4") as caught:
        ready.pull([1], tables=[4])
    assert caught.value.kind == pb.BAD_REQUEST


def test_routing_only_moves_forward(cluster, connect):
    made = cluster(1)
    connection = connect(made.addresses[0])
    connection.call(methods.SET_ROUTING, Routing.even(1, epoch=3).to_message())
    with pytest.raises(WireError, match="older") as caught:
        connection.call(methods.SET_ROUTING, Routing.even(1, epoch=2).to_message())
    assert caught.value.kind == pb.STALE_ROUTING
    table = Routing.even(2, epoch=4).to_message()
    table.servers = 1
    with pytest.raises(WireError, match="owners below 1, not 16384 up to 1"):
        connection.call(methods.SET_ROUTING, table)
    # Another server has come.
    connection.call(methods.SET_ROUTING, Routing.even(2, epoch=4).to_message())
    assert made.servers[0].ownership.routing.servers == 2


def test_a_table_is_read_whole_and_rows_are_assigned(ready):
    ids = np.array([5, -3, 2**62])
    rows = np.arange(9, dtype=np.float32).reshape(3, 3)
    header = pb.AssignRowsRequest(routing_epoch=1, table=0)
    ready.connection.call(methods.ASSIGN_ROWS, frames.encode(header, [ids, rows]))
    read = {}
    for frame in ready.connection.stream(methods.READ_TABLE, pb.ReadTableRequest(table=0)):
        _, (found, values) = frames.decode(frame, pb.ReadTableReply)
        read |= {int(i): value.tolist() for i, value in zip(found, values, strict=True)}
    assert read == {int(i): row.tolist() for i, row in zip(ids, rows, strict=True)}


def test_dense_values_come_to_a_caller_from_before_a_restart(ready):
    """Whose last pull was of a higher version than a server that went back to a checkpoint."""
    reply, _ = ready.pull([1], dense_version=100)
    assert reply.has_dense
    reply, _ = ready.pull([1], dense_version=reply.version)
    assert not reply.has_dense


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_push_that_is_not_finite_changes_nothing_and_is_named(ready, bad):
    ones, dense = np.ones((2, 3)), (np.ones(5), np.zeros(2))
    broken = np.ones((2, 3))
    broken[1, 2] = bad
    before = ready.pull([4, 9])
    for rows, parts, words in (
        (broken, dense, ["the gradient of table", "is not finite at id 9"]),
        (ones, (np.array([1, 1, bad, 1, 1]), np.zeros(2)), ["the gradient of variable", str(bad)]),
        (ones, (np.ones(5), np.array([0, bad])), ["the change of variable", str(bad)]),
    ):
        with pytest.raises(WireError) as caught:
            ready.push([4, 9], rows, dense=parts)
        assert caught.value.kind == pb.NOT_FINITE
        assert "push 1 of worker 0, incarnation 0, was refused by server 0" in caught.value.message
        for word in words:
            assert word in caught.value.message
    np.testing.assert_array_equal(ready.pull([4, 9])[1][0], before[1][0])
    # The number is still free: nothing of it was applied.
    assert ready.push([4, 9], ones, dense=dense).applied


def test_an_onlooker_is_no_sign_of_a_master():
    server = ParameterServer(0, Routing.even(1))
    server.status(pb.ServerStatusRequest(onlooker=True))
    assert not server.asked.is_set()
    server.status(pb.ServerStatusRequest())
    assert server.asked.is_set()


def test_any_call_of_the_master_says_that_there_is_one():
    server = ParameterServer(0, Routing.even(1))
    handlers = server.handlers()
    for method, request in (
        (methods.FENCE, pb.FenceRequest()),
        (methods.DROP_CHECKPOINT, pb.DropCheckpointRequest()),
        (methods.COMPLETE_CHECKPOINT, pb.CompleteCheckpointRequest()),
        (methods.SET_ROUTING, Routing.even(1, epoch=2).to_message()),
    ):
        assert not server.asked.is_set()
        handlers[method](request)
        assert server.asked.is_set()
        server.asked.clear()


def test_whole_answers_that_nobody_takes_are_bounded(cluster, connect):
    """Of --sync. 1. two answers are made and not taken; 2. the next pull is to come again; 3. once
    one is taken, and the other's reader is gone, there is room."""
    made = cluster(1)
    caller = Caller(connect(made.addresses[0]))
    caller.register()
    caller.initialize(np.zeros(5), np.zeros(2))
    (server,) = made.servers
    server.pulls._answers = Budget("whole answers that nobody has taken yet", 10_000)
    header = pb.PullRequest(
        routing_epoch=1, tables=[0], ids_of=[0], dense_version=1 << 40, whole_updates=True
    )
    frame = frames.encode(header, [np.arange(500)])
    unread = [iter(server.pulls.answer(frame).buffers) for _ in range(2)]
    for each in unread:
        assert len(next(each)) > 500 * 3 * 4
    with pytest.raises(WireError, match="nobody has taken yet") as error:
        server.pulls.answer(frame)
    assert error.value.kind == pb.NOT_READY
    assert next(unread.pop(0), None) is None
    unread.clear()
    assert len(server.pulls.answer(frame).joined()) > 500 * 3 * 4


def test_a_push_of_a_worker_that_is_not_behind_is_refused_before_it_is_received():
    server = ParameterServer(0, Routing.even(1))
    server._pushes.freeze([pb.PushIdentity(worker=3, sequence=1)])
    server.admit(methods.PUSH, 1 << 20, "worker-3 of job a")
    server.admit(methods.PUSH, 1 << 20, "a caller")
    for name in ("worker-1", "worker-33 of job a"):
        with pytest.raises(WireError, match="NOT_READY: rows are being moved"):
            server.admit(methods.PUSH, 1 << 20, name)
    server.admit(methods.PULL, 1 << 10, "worker-1")
    server.ready_for(pb.ReadyRequest(method="Push", caller=pb.PushIdentity(worker=3)))
    with pytest.raises(WireError, match="NOT_READY: rows are being moved"):
        server.ready_for(pb.ReadyRequest(method="Push", caller=pb.PushIdentity(worker=1)))
