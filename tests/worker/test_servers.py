"""Pull and push over several servers, and following a routing table that changes."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.routing import Routing
from shoal.worker.lookups import group_ids
from shoal.worker.servers import Push

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


def test_only_what_was_refused_goes_out_again(registered):
    """1. only server 2 has the new table; 2. it alone refuses the push; 3. the worker
    fetches the table, and 0 and 1 get it later than the worker; 4. what server 2 refused
    is applied there, and no other server applies anything twice."""
    made, group = registered
    pulled = group.pull([[IDS]], training=True)
    made.routing = Routing.even(3, epoch=2)
    made.servers[2].set_routing(made.routing.to_message())
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
    for ids, values in group.read_table(0):
        found |= dict(zip(ids.tolist(), values.tolist(), strict=True))
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
