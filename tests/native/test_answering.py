"""Pulls answered without Python, on a socket of their own: consistent beside whatever changes."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native.answering import FLAGS, Answerer
from shoal.native.dense import DenseBlock
from shoal.native.moments import Moments
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.plane.link import Link
from shoal.proto.plane.message import ANSWER, prefix
from shoal.proto.wire import frames
from tests.fuzz.mutations import mutated
from tests.native.pull_reader import PullReader, seeds
from tests.native.strategies import store
from tests.native.test_concurrency import ones, together

KIND, PUSH, DIM, PATIENCE = 2, 3, 64, 60.0
BEGIN, SIZE = 48, 48 + 16 + (32 << 10)


class Served:
    """An answerer with one table, and dense values."""

    def __init__(self, size=3, state=5, table=None, vocabulary=False):
        self.table = table or store(DIM, "sgd", "zeros")
        self.moments = Moments([self.table])
        self.state = np.zeros(state, np.float32)
        self.block = DenseBlock(np.zeros(size, np.float32), OptimizerSpec("sgd", {}))
        self.moments.begin(self.block, self.state)
        self.answerer = Answerer(KIND, PUSH, [1e-5, 1.0])
        self.answerer.serve_model([(self.table, vocabulary, False)], self.moments)
        self.answerer.route(1, None)
        self.answerer.open()

    def connected(self):
        return Connection(self.answerer)


class Connection:
    """A connection whose requests a thread answers; it ends with what is for Python."""

    def __init__(self, answerer, part_seconds=PATIENCE):
        self.near, far = socket.socketpair()
        self.link, self.far = Link(self.near), far
        self.flags, self.ended = bytearray(FLAGS), []
        self.buffer = memoryview(bytearray(SIZE + 64))
        skipped = -np.frombuffer(self.buffer, np.uint8).ctypes.data % 64
        self.buffer = self.buffer[skipped : skipped + SIZE]

        def serve():
            try:
                self.ended.append(
                    answerer.serve(
                        far.fileno(), self.buffer, BEGIN, BEGIN, BEGIN, self.flags, part_seconds
                    )
                )
            except OSError as error:
                self.ended.append(error)

        self.thread = threading.Thread(target=serve)
        self.thread.start()

    def send(self, frame, kind=KIND):
        data = prefix(kind, len(frame)) + bytes(frame)
        self.link.send([data], len(data), PATIENCE)

    def pull(self, ids, **header):
        self.send(request(ids, **header))
        return self.receive()

    def receive(self, reply=pb.PullReply):
        end = time.monotonic() + PATIENCE
        kind, size = self.link.next_prefix(end)
        assert kind == ANSWER
        whole = memoryview(bytearray(size))
        self.link.into(whole, end)
        return frames.decode(whole, reply)

    def result(self):
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        return self.ended[0]

    def close(self):
        self.link.close()
        self.result()
        self.far.close()


def request(ids, **header):
    header = {"routing_epoch": 1, "dense_version": -1, "tables": [0], "ids_of": [0]} | header
    return frames.encode(pb.PullRequest(**header), [np.asarray(ids, np.int64)])


@pytest.fixture
def served():
    return Served()


@pytest.fixture
def connection(served):
    made = served.connected()
    yield made
    made.close()


def test_rows_and_dense_values_are_those_of_one_moment_beside_updates(served):
    """The state is set to its version: both agree in every answer, and no row is torn."""
    ids, steps = np.arange(40), 300

    def update():
        for step in range(1, steps + 1):
            served.table.update(ids, ones(40), learning_rate=-1.0, step=step)
            served.block.values[:] = step
            served.moments.count(change=np.ones(5, np.float32), sender=(3, 1, step))

    def pull():
        made, last = served.connected(), 0
        caller = pb.PushIdentity(worker=3, incarnation=1)
        try:
            for _ in range(200):
                header, (rows, _, state) = made.pull(ids, caller=caller)
                assert (rows == rows[:, :1]).all()
                assert (state == header.version).all()
                assert header.applied == header.version >= last
                assert (rows >= header.version).all()  # never a push too few
                last = header.version
        finally:
            made.close()

    together(update, pull, pull, pull)
    assert sum(served.answerer.durations(KIND)[0]) == 600


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("vocabulary", [True, False])
def test_with_admission_an_id_without_a_row_reads_the_same_everywhere(vocabulary, training):
    """The default row, counted or never seen, as training must read what serving reads."""
    table = store(DIM, "sgd", "uniform", admit_after=2)
    for step, ids in ((1, [1, 2]), (2, [2])):
        table.update(np.array(ids), ones(len(ids)), learning_rate=-1.0, step=step)
    made = Served(table=table, vocabulary=vocabulary).connected()
    try:
        _, (rows, *_) = made.pull([0, 1, 2], training=training)
    finally:
        made.close()
    assert (rows[:2] == 0).all()
    np.testing.assert_array_equal(rows[2], table.lookup(np.array([2]))[0])
    assert (rows[2] != 0).all()


def test_growth_of_what_is_known_of_workers_beside_pulls(served):
    """Thousands of workers push and register while others are answered."""
    served.answerer.forget_workers(True)
    served.answerer.meet(0, 0)

    def grow():
        for worker in range(5000):
            served.answerer.meet(worker, 0)
            served.moments.count(sender=(worker, 0, worker + 1))

    def reroute():
        for number in range(500):
            own = np.ones(16384, np.bool_) if number % 2 else None
            served.answerer.route(1, own)

    def pull():
        made = served.connected()
        try:
            for _ in range(300):
                made.pull([1, 2], caller=pb.PushIdentity(worker=0), dense_version=-2)
        finally:
            made.close()

    together(grow, reroute, pull, pull)
    made = served.connected()
    for worker in (0, 17, 4999):
        header, _ = made.pull([1], caller=pb.PushIdentity(worker=worker))
        assert header.applied == worker + 1
    made.close()


def of_header(header):
    """A frame without arrays."""
    return frames.MAGIC + len(header).to_bytes(4, "little") + header


def long_number(value, size):
    """A varint of more bytes than it needs."""
    return bytes([value | 0x80]) + b"\x80" * (size - 2) + b"\0"


OTHERS = {
    "a tag of six bytes": of_header(long_number(2 << 3, 6) + b"\1"),
    "a length of six bytes": of_header(b"\x10\1\x1a" + long_number(0, 6)),
    "another epoch": request([1], routing_epoch=2),
    "no such table": request([1], tables=[1]),
    "no such array": request([1], ids_of=[1]),
    "updates as a whole": request([1], whole_updates=True),
    "rows of another type": request([1], value_type=pb.INT32),
    "too many rows": request(np.arange(4000)),
    "bytes too many": request([1]) + b"12345678",
    "bytes too few": request([1])[:-8],
    "no frame": b"",
    "a worker with a large number": request([1], caller=pb.PushIdentity(worker=1 << 31)),
}


@pytest.mark.parametrize("frame", OTHERS.values(), ids=OTHERS)
def test_what_is_no_plain_pull_is_returned_as_it_came(connection, frame):
    connection.pull([1])
    connection.send(frame)
    for_python, start, end = connection.result()
    assert for_python
    assert connection.flags[0] == 1
    assert bytes(connection.buffer[start:end]) == prefix(KIND, len(frame)) + frame


@pytest.fixture(scope="module")
def reader():
    return PullReader()


@pytest.mark.parametrize("frame", seeds())
def test_the_whole_pulls_that_mutations_begin_with_are_answered(reader, frame):
    assert reader.check(frame)


@settings(deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_what_is_answered_of_mutated_pulls_python_reads_alike(reader, chance):
    """The rest comes back as it came, which the reader checks."""
    with contextlib.suppress(WireError):
        reader.check(mutated(seeds(), chance))


@pytest.mark.parametrize("size", range(2, 11))
def test_numbers_of_more_bytes_than_they_need_are_read_as_python_reads_them(reader, size):
    one = b"\x10\1"
    headers = (
        long_number(2 << 3, size) + b"\1",
        b"\x10" + long_number(1, size),
        one + b"\x1a" + long_number(0, size),
        one + b"\x0a" + bytes([size + 1]) + b"\x08" + long_number(3, size),
    )
    for header in headers:
        with contextlib.suppress(WireError):
            reader.check(of_header(header))


def test_only_own_ids_of_known_workers_are_answered_and_only_while_it_is_open(served):
    def answered(ids=(1,), worker=0, incarnation=0, **header):
        made = served.connected()
        caller = pb.PushIdentity(worker=worker, incarnation=incarnation)
        made.send(request(ids, caller=caller, **header))
        made.far.shutdown(socket.SHUT_RD)  # so that it ends after this one
        result = made.result()
        done = not isinstance(result, tuple)
        if done:
            made.receive()
        made.close()
        return done

    assert answered()
    served.answerer.open(False)
    assert not answered()
    served.answerer.open()
    served.answerer.forget_workers(True)
    assert not answered(worker=3)
    served.answerer.meet(3, 2)
    assert answered(worker=3, incarnation=2)
    assert not answered(worker=3, incarnation=3)
    served.answerer.route(1, np.zeros(16384, np.bool_))
    assert not answered(worker=3)
    assert answered(ids=(), worker=3)


def test_slices_of_a_later_table_are_for_those_who_ask_by_it(served, connection):
    """Who asks by the table of before is left to Python, also where the server has it still."""
    header, arrays = connection.pull([1])
    assert (header.has_dense, arrays[-2].size, arrays[-1].size) == (True, 3, 5)
    block = DenseBlock(np.ones(7, np.float32), OptimizerSpec("sgd", {}))
    served.moments.replace(block, np.full(2, 3, np.float32), 2)
    assert served.moments.dense_epoch == 2
    np.testing.assert_array_equal(served.moments.state(), [3, 3])
    connection.pull([1], dense_version=-2)
    served.answerer.route(2, None)
    header, arrays = connection.pull([1], routing_epoch=2)
    np.testing.assert_array_equal(arrays[-2], np.ones(7))
    np.testing.assert_array_equal(arrays[-1], [3, 3])
    served.answerer.route(1, None)
    connection.send(request([1]))
    assert isinstance(connection.result(), tuple)


def test_one_that_is_to_end_ends_before_its_next_request_or_after_it(connection):
    connection.pull([1])
    connection.flags[1] = 1
    connection.send(request([1]))
    assert connection.result()[0] is False
    assert connection.flags[0] == 0


def test_what_is_not_whole_in_time_is_given_up(served):
    made = Connection(served.answerer, 0.05)
    data = prefix(KIND, 100) + bytes(40)
    made.link.send([data], len(data), PATIENCE)
    assert isinstance(made.result(), TimeoutError)
    made.close()


def test_a_request_may_come_in_any_pieces(connection):
    frame = request(np.arange(100), dense_version=-2)
    data = prefix(KIND, len(frame)) + frame
    for cut in (1, 15, 16, 17, len(data) - 1):
        for part in (data[:cut], data[cut:]):
            connection.link.send([part], len(part), PATIENCE)
        assert connection.receive()[1][0].shape == (100, DIM)


def test_a_connection_that_ends_says_so(connection):
    connection.near.shutdown(socket.SHUT_RDWR)
    assert isinstance(connection.result(), ConnectionError)


def test_places_beyond_the_buffer_are_refused(served):
    near, far = socket.socketpair()
    with near, far:
        for begin, start, end in ((100, 0, 0), (0, 5, 4), (0, 0, 101)):
            with pytest.raises(ValueError, match="no places"):
                served.answerer.serve(
                    far.fileno(), memoryview(bytearray(100)), begin, start, end, bytearray(2), 1.0
                )
        with pytest.raises(ValueError, match="2 flags"):
            served.answerer.serve(
                far.fileno(), memoryview(bytearray(100)), 0, 0, 0, bytearray(1), 1.0
            )
