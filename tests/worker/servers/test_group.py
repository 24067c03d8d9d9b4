"""Pull and push over several servers, and following a routing table that changes."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.native import values
from shoal.native.ids import slot_of
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.saved.recovery import RegisteredWorkers
from shoal.ps.service import ParameterServer
from shoal.worker.servers import calls
from shoal.worker.servers.ids import group_ids, group_tables
from shoal.worker.servers.pull_requests import PullHead, PullPlan
from shoal.worker.servers.pushing import Push

SGD = OptimizerSpec("sgd").to_json()
IDS = np.arange(-50, 50)


def spec(dim=2):
    table = pb.TableSpec(
        name="items",
        dim=dim,
        initializer=InitializerSpec("zeros").to_json(),
        optimizer=SGD,
    )
    return pb.ModelSpec(
        tables=[table],
        trainable=[pb.VariableSpec(name="w", shape=[7])],
        dense_optimizer=SGD,
    )


@pytest.fixture
def registered(cluster, server_group):
    """A cluster of three servers and a worker that has registered `spec`."""
    made = cluster(3)
    group = server_group(made)
    group.register(spec(), np.zeros(7, np.float32), np.zeros(0, np.float32))
    return made, group


def push_of(pulled, value, dense=0.0):
    ids = pulled.ids[0].unique
    gradients = np.full((ids.size, 2), value, np.float32)
    return Push(
        tables={0: (ids, gradients)},
        dense=(np.full(7, dense, np.float32), np.zeros(0, np.float32)),
        learning_rate=1.0,
        versions=pulled.versions,
        times=pulled.times,
        applied=pulled.applied,
        task=1,
        records_done=0,
    )


@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_grouped_ids_are_unique_and_every_call_finds_its_own(calls, servers):
    arrays = [np.array(call, np.int64) for call in calls]
    routing = Routing.even(servers)
    grouped = group_ids(arrays, routing)
    assert np.unique(grouped.unique).size == grouped.unique.size
    assert grouped.offsets[-1] == grouped.unique.size
    for call, inverse in zip(arrays, grouped.inverses, strict=True):
        np.testing.assert_array_equal(grouped.unique[inverse], call)


def test_every_id_gets_its_own_gradient(registered):
    _, group = registered
    pulled = group.pull([[IDS]], training=True)
    ids = pulled.ids[0].unique
    gradients = np.stack([ids, 2 * ids], axis=1).astype(np.float32)
    push = push_of(pulled, 0.0)
    group.push(replace(push, tables={0: (ids, gradients)}))
    pulled = group.pull([[IDS]], training=True)
    np.testing.assert_array_equal(
        pulled.rows[0][pulled.ids[0].inverses[0]], np.stack([-IDS, -2 * IDS], axis=1)
    )


def test_a_worker_follows_a_new_routing_table_when_it_pulls(registered):
    made, group = registered
    group.pull([[IDS]], training=True)
    made.reroute(Routing(2, 3, Routing.even(3).owners[::-1].copy()))
    pulled = group.pull([[IDS]], training=True)
    assert group.routing.epoch == 2
    assert pulled.rows[0].shape == (100, 2)


def test_a_push_routed_by_an_old_table_arrives_once_by_the_new_one(registered):
    """1. pull by epoch 1; 2. slots move; 3. the push is refused everywhere and goes out
    again by epoch 2: each row gets its gradient from one server only, once."""
    made, group = registered
    pulled = group.pull([[IDS]], training=True)
    made.reroute(Routing(2, 3, Routing.even(3).owners[::-1].copy()))
    group.push(push_of(pulled, 1.0, dense=1.0))
    pulled = group.pull([[IDS]], training=True)
    np.testing.assert_array_equal(pulled.rows[0], -np.ones((100, 2)))
    np.testing.assert_array_equal(pulled.trainable, -np.ones(7))


def test_workers_pass_over_a_server_that_is_absent_and_find_it_when_it_is_back(
    cluster, server_group
):
    """1. server 1 gives away what it has, and ends; 2. a worker that knew it, and a new one, pull,
    push and read without it; 3. it comes again elsewhere, and gets its part of a push, once."""
    made = cluster(3)
    made.reroute(Routing(1, 3, Routing.even(3).owners, dense=1))
    group = server_group(made)
    dense = np.zeros(7, np.float32), np.zeros(0, np.float32)
    group.register(spec(), *dense)
    group.pull([[IDS]], training=True)
    without = np.where(Routing.even(3).owners == 1, 2, Routing.even(3).owners).astype(np.uint16)
    made.reroute(Routing(2, 3, without, dense=1, absent=(1,)))
    made.stop(1)
    made.addresses[1] = ""
    late = server_group(made, worker=1)
    late.register(spec(), *dense)
    for each in (group, late):
        pulled = each.pull([[IDS]], training=True)
        assert (each.routing.epoch, len(pulled.versions)) == (2, 3)
        each.push(push_of(pulled, 1.0))
        assert not each.away
        read = {int(each) for ids, _ in each.read_table(0) for each in ids}
        assert read >= set(IDS[without[slot_of(IDS)] == 2].tolist())
    group.assign_rows(0, IDS, np.full((100, 2), 5.0, np.float32))

    pulled = group.pull([[IDS]], training=True)
    np.testing.assert_array_equal(pulled.rows[0], np.full((100, 2), 5.0))
    back = Routing(3, 3, Routing.even(3).owners, dense=1)
    made.servers[1] = ParameterServer(1, back)
    made.start(1)
    made.servers[1].registration.join(spec())
    made.reroute(back)
    for each in (group, late):
        each.push(push_of(pulled, 1.0))
    assert made.servers[1].model.version == 2


def test_a_server_that_lost_all_gets_first_values_as_the_new_table_divides_them(registered):
    """It was started again after a move of which the worker has not heard."""
    made, group = registered
    made.routing = Routing(2, 3, Routing.even(3).owners, dense=1)
    for index in range(3):
        made.stop(index)
        made.servers[index] = ParameterServer(index, made.routing)
        made.servers[index].registration.workers.again = True
        made.start(index)
    pulled = group.pull([[IDS]], training=True)
    assert [server.model.dense.elements for server in made.servers] == [7, 0, 0]
    assert (pulled.trainable.size, pulled.routing.epoch) == (7, 2)


def test_only_what_was_refused_goes_out_again(registered):
    """1. only server 2 has the new table; 2. it alone refuses the push; 3. the worker
    fetches the table, and 0 and 1 get it later than the worker; 4. what server 2 refused
    is applied there, and no other server applies anything twice."""
    made, group = registered
    pulled = group.pull([[IDS]], training=True)
    made.routing = Routing.even(3, epoch=2)
    made.servers[2].ownership.set_routing(made.routing.to_message())
    group.push(push_of(pulled, 1.0, dense=1.0))
    assert [server.model.version for server in made.servers] == [1, 1, 1]
    late = threading.Thread(target=made.reroute, args=(made.routing,))
    late.start()
    pulled = group.pull([[IDS]], training=True)  # waits for the servers that lag
    late.join(30)
    np.testing.assert_array_equal(pulled.rows[0], -np.ones((100, 2)))
    np.testing.assert_array_equal(pulled.trainable, -np.ones(7))


def test_assigned_rows_are_read_back(registered):
    _, group = registered
    rows = np.stack([IDS, IDS + 1000], axis=1).astype(np.float32)
    group.assign_rows(0, IDS, rows)
    found = {}
    for ids, read in group.read_table(0):
        found |= dict(zip(ids.tolist(), read.tolist(), strict=True))
    assert found == dict(zip(IDS.tolist(), rows.tolist(), strict=True))


def test_a_refusal_that_is_not_about_routing_is_raised(registered):
    made, group = registered
    pulled = group.pull([[IDS]], training=True)
    for server in made.servers:
        server.fence(pb.FenceRequest(worker=0, incarnation=0))
    with pytest.raises(WireError, match="FENCED"):
        group.push(push_of(pulled, 1.0))


def test_a_push_waits_for_a_server_that_comes_back_at_another_address(registered):
    """1. pull; 2. server 1 goes away; 3. the push has reached the others and waits;
    4. it comes back at another port; 5. each server has applied the push once."""
    made, group = registered
    pulled = group.pull([[IDS]], training=True)
    made.stop(1)
    pusher = threading.Thread(target=lambda: group.push(push_of(pulled, 1.0, dense=1.0)))
    pusher.start()
    made.start(1)
    pusher.join(60)
    assert [server.model.version for server in made.servers] == [1, 1, 1]
    pulled = group.pull([[IDS]], training=True)
    np.testing.assert_array_equal(pulled.rows[0], -np.ones((100, 2)))


class Received:
    """As frames.Body: the bytes of an answer that has come."""

    def __init__(self, data):
        self._data = memoryview(data)
        self.size = self.left = len(data)

    def read(self, size):
        found = self._data[self.size - self.left :][:size]
        self.left -= size
        return found

    def into(self, target):
        target[:] = self.read(len(target))


@given(
    st.lists(st.lists(st.integers(-30, 30), max_size=40), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from([pb.FLOAT32, pb.BFLOAT16, pb.FLOAT16]),
)
def test_a_pull_of_several_servers_gives_every_row_once(tables, servers, value_type):
    """Rows that tell their table and id, which 16 bits hold; answers made as a server would."""
    dims = [1 + i % 3 for i in range(len(tables))]
    calls = [[np.array(ids, np.int64)] for ids in tables]
    ids = group_tables(calls, Routing.even(servers))
    plan = PullPlan(ids, dims, value_type)
    head = PullHead(1, [7] * servers, True)
    for server in range(servers):
        request, arrays = frames.decode(plan.frame(head, server), pb.PullRequest)
        assert request.dense_version == 7
        answer = []
        for table, place in zip(request.tables, request.ids_of, strict=True):
            rows = np.repeat(arrays[place][:, None] + 64 * table, dims[table], axis=1)
            exact = rows.astype(np.float32)
            coded = np.empty(exact.shape, frames.DTYPES[value_type])
            values.encode(exact, coded)
            answer.append(coded)
        reply = frames.pieces(pb.PullReply(version=server), answer).joined()
        assert plan.take(server, Received(reply)).reply.version == server
    for table, (grouped, rows) in enumerate(zip(ids, plan.rows, strict=True)):
        np.testing.assert_array_equal(rows[:, 0], grouped.unique + 64 * table)
        assert rows.shape == (grouped.unique.size, dims[table])


def test_an_answer_of_other_rows_than_were_asked_for_is_refused():
    ids = group_tables([[np.arange(5)]], Routing.even(1))
    plan = PullPlan(ids, [3])
    for shape, dense in (((4, 3), False), ((5, 2), False), ((5, 3), True)):
        header = pb.PullReply(has_dense=dense)
        reply = frames.pieces(header, [np.zeros(shape, np.float32)]).joined()
        with pytest.raises(WireError, match="BAD_REQUEST"):
            plan.take(0, Received(reply))


def test_tables_with_the_same_ids_share_them():
    routing = Routing.even(2)
    ids, others = np.arange(100), np.arange(100)
    other = np.arange(100)
    other[99] = 5
    grouped = group_tables([[ids], [others], [other], [ids[:50], ids[50:]]], routing)
    assert grouped[0] is grouped[1]
    assert len({id(each) for each in grouped}) == 3
    first, second = group_tables([[ids, others], [ids, others]], routing)
    assert first is second


@pytest.mark.parametrize("value_type", [pb.BFLOAT16, pb.FLOAT16])
def test_16_bit_rows_are_the_nearest_and_gradients_are_rounded_once(cluster, connect, value_type):
    """1. rows are assigned as float32; 2. pulled, they are the nearest 16-bit values;
    3. a gradient arrives as its nearest 16-bit value; 4. the servers' rows stay float32."""
    from shoal.worker.servers.group import ServerGroup

    made = cluster(2)
    group = ServerGroup(connect(made.master), 0, 0, threading.Event(), value_type=value_type)
    group.register(spec(), np.zeros(7, np.float32), np.zeros(0, np.float32))
    rows = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    rows[0] = [1e30, -70000.0]

    def nearest(values):
        if value_type == pb.FLOAT16:
            return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float32)
        bits = values.view(np.uint32).astype(np.uint64)
        bits += 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
        return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)

    group.assign_rows(0, IDS, rows)
    pulled = group.pull([[IDS]], training=True)
    found = pulled.rows[0][pulled.ids[0].inverses[0]]
    np.testing.assert_array_equal(found, nearest(rows))
    exact = group.pull([[IDS]], training=False, exact=True)
    np.testing.assert_array_equal(exact.rows[0][exact.ids[0].inverses[0]], rows)
    gradients = np.random.default_rng(1).normal(size=(100, 2)).astype(np.float32)
    group.push(replace(push_of(pulled, 0.0), tables={0: (pulled.ids[0].unique, gradients)}))
    after = {}
    for ids, read in group.read_table(0):
        after |= dict(zip(ids.tolist(), read, strict=True))
    expected = dict(zip(IDS.tolist(), rows, strict=True))
    for i, gradient in zip(pulled.ids[0].unique.tolist(), nearest(gradients), strict=True):
        np.testing.assert_array_equal(after[i], expected[i] - gradient)
    group.close()


@pytest.mark.parametrize("value_type", [pb.FLOAT32, pb.BFLOAT16, pb.FLOAT16])
def test_rows_converge_whatever_type_travels(cluster, connect, value_type):
    """Rows that follow the gradient of a squared distance come to their aims, as near as
    the type can tell."""
    from shoal.worker.servers.group import ServerGroup

    made = cluster(1)
    group = ServerGroup(connect(made.master), 0, 0, threading.Event(), value_type=value_type)
    group.register(spec(), np.zeros(7, np.float32), np.zeros(0, np.float32))
    aims = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    for _ in range(40):
        pulled = group.pull([[IDS]], training=True)
        gradients = 0.5 * (pulled.rows[0] - aims)
        group.push(replace(push_of(pulled, 0.0), tables={0: (pulled.ids[0].unique, gradients)}))
    unit = {pb.FLOAT32: 2**-20, pb.BFLOAT16: 2**-7, pb.FLOAT16: 2**-10}[value_type]
    rows = group.pull([[IDS]], training=True).rows[0]
    np.testing.assert_allclose(rows, aims, rtol=unit, atol=unit / 10)
    group.close()


def test_float16_gradients_do_not_vanish(cluster, connect):
    """L15: of a large minibatch's mean they are below the least that float16 has, 6e-8."""
    from shoal.worker.servers.group import ServerGroup

    made = cluster(2)
    group = ServerGroup(connect(made.master), 0, 0, threading.Event(), value_type=pb.FLOAT16)
    group.register(spec(), np.zeros(7, np.float32), np.zeros(0, np.float32))
    pulled = group.pull([[IDS]], training=True)
    ids = pulled.ids[0].unique
    size = np.float32(10.0) ** np.linspace(-12, -4, ids.size, dtype=np.float32)
    for factor in (1.0, 1e12, 0.0, 1e-36):  # with the second, above the largest that it has
        gradients = np.stack([size, -size], axis=1) * np.float32(factor)
        group.push(replace(push_of(pulled, 0.0), tables={0: (ids, gradients)}))
        if factor == 1.0:
            for some, rows in group.read_table(0):
                for i, row in zip(some.tolist(), rows, strict=True):
                    given = gradients[ids.tolist().index(i)]
                    np.testing.assert_allclose(row, -given, rtol=2**-10)
        assert all(np.isfinite(rows).all() for _, rows in group.read_table(0))
    group.close()


def test_what_a_server_answered_is_told_when_it_is_met_again_while_another_is_waited_for(
    registered,
):
    """L5: or the master counts one push less as lost than was acknowledged."""
    made, group = registered
    pulled = group.pull([[IDS]], training=True)
    first = made.servers[0].registration.workers
    second = RegisteredWorkers(made.servers[1].answerer)
    go_on, told = threading.Event(), []
    require = first.require

    def slow(caller):
        if caller.sequence:
            assert go_on.wait(120)
        require(caller)

    first.require = slow
    push = threading.Thread(target=group.push, args=(push_of(pulled, 1.0),))
    push.start()
    try:
        while made.servers[1].model.version < 1:
            time.sleep(0.01)
        # As if it was another one, that was started again.
        second.again, second.tell = True, told.append
        made.servers[1].registration.workers = second
        group.pull([[IDS]], training=True)
    finally:
        go_on.set()
        push.join()
    assert [each.identity.sequence for each in told] == [1]
    assert [each.task for each in told] == [1]


def test_dense_variables_too_large_for_a_message_are_refused_with_what_to_do(
    registered, monkeypatch
):
    _, group = registered
    monkeypatch.setattr(calls, "LARGEST_SLICE_BYTES", 8)
    with pytest.raises(UserError, match=r"7 elements.*--servers 4 or more"):
        group.register(spec(), np.zeros(7, np.float32), np.zeros(0, np.float32))
