"""Rows and gradients that travel as servers hold them: half the bytes, and no bit of a row lost."""

import socket
import struct
import threading
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.wire import frames
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.pushing import Push
from tests.worker.servers.recorded import one_by_one, same_bytes

SGD = OptimizerSpec("sgd").to_json()
AUTO = pb.DATA_TYPE_UNSPECIFIED
HELD = {"a": "", "b": "bfloat16", "c": "float16", "d": "bfloat16"}
DIM = 4
NONE = np.zeros(0, np.float32)
BYTES_ACKED, BYTES_RECEIVED = 120, 128
"""Where tcp_info of linux/tcp.h has them, each uint64."""


def spec(names):
    """Tables of the dtypes of HELD; an id of "d" has no row before its second push."""
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(
                name=name,
                dim=DIM,
                initializer=InitializerSpec("constant" if name == "d" else "normal").to_json(),
                optimizer=SGD,
                seed=seed,
                value_dtype=HELD[name],
                admit_after=2 if name == "d" else 1,
            )
            for seed, name in enumerate(names)
        ],
        dense_optimizer=SGD,
    )


@pytest.fixture
def workers(cluster, connect):
    """A worker of a cluster by each of some types on the wire."""
    groups = []

    def of(names, *value_types):
        made = cluster(2)
        for worker, value_type in enumerate(value_types):
            group = ServerGroup(
                connect(made.master), worker, 0, threading.Event(), value_type=value_type
            )
            groups.append(group)
            group.register(spec(names), NONE, NONE)
        return groups[-len(value_types) :]

    yield of
    for group in groups:
        group.close()


def push(group, pulled, gradients):
    """A push of these gradients, one array a table, of all ids that were pulled."""
    tables = {
        table: (ids.unique, rows)
        for table, (ids, rows) in enumerate(zip(pulled.ids, gradients, strict=True))
    }
    group.push(Push(tables, (NONE, NONE), 1.0, pulled.versions, pulled.times, pulled.applied, 0, 0))


@pytest.fixture
def both(workers):
    """A worker that pulls and pushes as servers hold rows, and one that does so as float32."""
    return workers(HELD, AUTO, pb.FLOAT32)


some_ids = st.lists(st.integers(-40, 40), max_size=30).map(lambda each: np.array(each, np.int64))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_come_bit_for_bit_as_they_come_as_float32(both, data):
    """New ids and trained ones, from the tables with their own gradients and those without."""
    auto, exact = both
    ids = [[data.draw(some_ids)] for _ in HELD]
    scale = np.float32(data.draw(st.sampled_from([1.0, 1e-3, 1e-20, 1e3, 1e6])))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    pulled = auto.pull(ids, training=True)
    gradients = [scale * rng.standard_normal(rows.shape, np.float32) for rows in pulled.rows]
    push(auto, pulled, gradients)
    ids = [[data.draw(some_ids)] for _ in HELD]
    for training in (True, False):
        found = auto.pull(ids, training=training).rows
        assert same_bytes(found, exact.pull(ids, training=training).rows)
        with one_by_one():
            assert same_bytes(found, auto.pull(ids, training=training).rows)


def test_gradients_lose_what_the_tables_type_loses_and_no_more(workers):
    """By a learning rate of 1 from rows of zeros: what servers hold then is minus the gradient."""
    names = ("a", "b", "c")
    (group,) = workers(names, AUTO)
    ids = np.arange(200)
    pulled = group.pull([[ids]] * len(names), training=True)
    for table in range(len(names)):
        group.assign_rows(table, pulled.ids[table].unique, np.zeros((200, DIM), np.float32))
    gradients = np.random.default_rng(0).standard_normal((200, DIM), np.float32)
    push(group, pulled, [gradients] * len(names))
    kept = [-rows for rows in group.pull([[ids]] * len(names), training=True).rows]
    np.testing.assert_array_equal(kept[0], gradients)
    # Rounded to the nearest once; what the server then adds to zero its row has exactly.
    for rows, unit in ((kept[1], 2.0**-8), (kept[2], 2.0**-11)):
        assert (rows != gradients).any()
        np.testing.assert_allclose(rows, gradients, rtol=unit)


def travelled(group):
    """Bytes that a worker's connections to servers have sent and received."""
    sent = received = 0
    for circuit in group._calls._circuits:
        for pool in circuit._connection._pools:
            for link in pool._links:
                info = link.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent += struct.unpack_from("<Q", info, BYTES_ACKED)[0]
                received += struct.unpack_from("<Q", info, BYTES_RECEIVED)[0]
    return np.array([sent, received])


@pytest.mark.parametrize("in_c", [True, False])
def test_half_the_bytes_of_rows_and_gradients_are_on_the_wire(workers, in_c):
    """1. a worker by each type pulls and pushes the same; 2. its sockets tell their bytes; 3. rows
    and gradients of the table of 16 bits took two bytes a value less, and all else as many."""
    names = ("a", "b")
    took = []
    for value_type in (AUTO, pb.FLOAT32):
        (group,) = workers(names, value_type)
        ids = [[np.arange(1000)], [np.arange(3000)]]
        group.pull(ids, training=True)  # with the dense vectors, and connections that are new
        before = travelled(group)
        with nullcontext() if in_c else one_by_one():
            pulled = group.pull(ids, training=True)
            push(group, pulled, pulled.rows)
        took.append(travelled(group) - before)
    auto, exact = took
    saved = 2 * 3000 * DIM
    sent, received = exact - auto
    assert received == saved
    # The request of a pull says the type where it is not the table's: at most one alignment.
    assert saved <= sent <= saved + 2 * frames.ALIGNMENT
