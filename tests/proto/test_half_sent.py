"""Requests of which only a part comes, answers that nobody reads: nobody else waits for them."""

import itertools
import threading
import time

import grpc
import numpy as np
import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.budget import Budget
from shoal.proto.channels import serving
from shoal.proto.errors import STATUS_CODES, WireError
from shoal.proto.plane import server as plane
from shoal.proto.plane.client import Pool
from shoal.proto.plane.link import BrokenError, LateError
from shoal.proto.plane.message import REFUSAL, prefix
from shoal.proto.watch import Watch
from shoal.proto.wire import receiving
from shoal.proto.wire.frames import Pieces
from shoal.proto.wire.transport import CHANNEL_OPTIONS, PEER_METADATA
from shoal.tools.chaos.half_sent import HalfSent

NAME = "job/ps-0"
THREADS = 8
PATIENCE = 60.0


class HalfSentCalls:
    """Calls of gRPC that send nothing."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.go_on = threading.Event()
        self.calls = []

    def send(self, path, name=NAME):
        def requests():
            self.go_on.wait(PATIENCE)
            yield from ()

        metadata = ((PEER_METADATA, name),) if name else ()
        call = self.channel.stream_unary(path).future(
            requests(), metadata=metadata, wait_for_ready=True
        )
        self.calls.append(call)
        return call

    def close(self):
        self.go_on.set()
        for call in self.calls:
            call.cancel()
        self.channel.close()


@pytest.fixture
def server():
    """A server; the pushes that came whole."""
    came = []

    def push(frame):
        came.append(bytes(frame))
        return b"pushed"

    handlers = {
        methods.PUSH: push,
        methods.STATUS: lambda request: pb.ServerStatus(version=3),
        methods.FENCE: lambda request: pb.FenceReply(sequence=4),
    }
    server, port = serving.serve(handlers, "127.0.0.1:0", THREADS, NAME)
    server.address, server.came = f"127.0.0.1:{port}", came
    yield server
    server.stop(None).wait()


@pytest.fixture
def half(server):
    made = HalfSentCalls(server.address)
    yield made
    made.close()


@pytest.fixture
def links(server):
    """Make connections of the data plane to the server."""
    pool = Pool(server.address, NAME, None)
    made = []

    def link():
        made.append(pool.connected())
        return made[-1]

    yield link
    for each in made:
        each.close()
    pool.close()


def send(link, *buffers):
    link.send(buffers, sum(map(len, buffers)), PATIENCE)


def ended(link):
    """Wait until the server has ended a connection; what it said before."""
    end, detail = time.monotonic() + PATIENCE, None

    def following():
        kind, size = link.next_prefix(end)
        assert kind == REFUSAL
        return pb.ErrorDetail.FromString(bytes(link.read(size, end)))

    while True:
        try:
            detail = following()
        except LateError:
            raise
        except BrokenError:
            return detail


def test_half_sent_pushes_keep_neither_the_master_nor_a_push_waiting(server, connect):
    """Of a worker that was stopped in the middle, say."""
    sent = HalfSent(server.address, NAME, 20)
    try:
        connection = connect(server.address, peer=NAME, patience=0.0)
        assert connection.call(methods.STATUS, pb.ServerStatusRequest()).version == 3
        assert connection.call(methods.FENCE, pb.FenceRequest()).sequence == 4
        assert connection.call(methods.PUSH, b"small") == b"pushed"
        assert server.came == [b"small"]
    finally:
        sent.close()


SIZE = 100_000
HALVES = {
    "a part of the prefix": prefix(methods.PUSH.kind, SIZE)[:9],
    "the prefix": prefix(methods.PUSH.kind, SIZE),
    "the prefix of a small one": prefix(methods.PUSH.kind, 100),
    "a part of a small one": prefix(methods.PUSH.kind, 100) + bytes(40),
    "a part of a large one": prefix(methods.PUSH.kind, SIZE) + bytes(SIZE - 1),
}


@pytest.mark.parametrize("part", HALVES.values(), ids=HALVES)
def test_what_is_not_whole_in_time_is_given_up(server, links, connect, monkeypatch, part):
    monkeypatch.setattr(plane, "PART_SECONDS", 0.3)
    link = links()
    send(link, part)
    assert ended(link) is None
    assert connect(server.address, peer=NAME).call(methods.PUSH, b"x") == b"pushed"
    assert server.came == [b"x"]


@pytest.mark.slow
def test_what_comes_slowly_but_comes_is_taken(server, links, monkeypatch):
    """It takes longer than a part may, as a whole."""
    monkeypatch.setattr(plane, "PART_SECONDS", 4.0)
    monkeypatch.setattr("shoal.proto.plane.link.PART_BYTES", 10_000)
    frame = bytes(range(256)) * 400
    link = links()
    send(link, prefix(methods.PUSH.kind, len(frame)))
    for place in range(0, len(frame), 10_000):
        time.sleep(0.4)
        send(link, frame[place : place + 10_000])
    assert link.next_prefix(time.monotonic() + PATIENCE) == (64, 6)
    assert server.came == [frame]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b"GET / HTTP/1.1\r\nHost: ps\r\n\r\n", pb.BAD_REQUEST),
        (prefix(77, 5) + b"12345", pb.BAD_REQUEST),
        (prefix(methods.PUSH.kind, 1 << 60), pb.BAD_REQUEST),
    ],
)
def test_what_is_no_call_ends_its_connection_and_no_memory_is_taken(server, links, said, kind):
    link = links()
    send(link, said)
    detail = ended(link)
    assert detail is None or detail.kind == kind  # the rest of it may be on its way
    assert server.came == []


def test_calls_for_another_are_refused_before_a_byte_of_them_is_read(server, half):
    """More of them than there are threads, and none of them ever sends a message."""
    for name in (itertools.repeat("", 3 * THREADS), itertools.repeat("job/ps-1", 3 * THREADS)):
        for call in [half.send(methods.FENCE.path, name=each) for each in name]:
            error = call.exception(PATIENCE)
            assert error.code() == STATUS_CODES[pb.WRONG_PEER]
            assert "this is ps-0, the call was" in error.details()


@pytest.mark.slow
def test_calls_that_send_nothing_do_not_keep_the_state_from_being_asked(
    server, half, connect, monkeypatch
):
    """Even those of the job's own processes: one may be stopped between two packets."""
    monkeypatch.setattr(receiving, "REQUEST_SECONDS", 2.0)
    for method in (methods.STATUS, methods.FENCE):
        for _ in range(2 * methods.THREADS[method.threads]):
            half.send(method.path)
    connection = connect(server.address, peer=NAME)
    assert connection.call(methods.STATUS, pb.ServerStatusRequest()).version == 3
    assert connection.call(methods.FENCE, pb.FenceRequest()).sequence == 4


def test_a_budget_is_for_all_and_alone_something_larger_is_held():
    room = Budget("requests", 1000)
    with room.holding(600, 0.1):
        with (
            pytest.raises(WireError, match="600 bytes of requests are held") as caught,
            room.holding(500, 0.1),
        ):
            pass
        assert caught.value.kind == pb.NOT_READY
        with room.holding(400, 0.1):
            assert room.held == 1000
    with room.holding(5000, 0.1):
        assert room.held == 5000
    assert room.held == 0


def test_bytes_of_half_sent_requests_are_bounded(connect, monkeypatch):
    """1. a request of more than half of what may be held comes half; 2. one as large beside it is
    refused, and received for nothing; 3. once the first is given up, it finds room."""
    monkeypatch.setattr(plane, "HELD_BYTES", 1 << 20)
    monkeypatch.setattr(plane, "PART_SECONDS", 1.0)
    seen = []

    def push(frame):
        seen.append(len(frame))
        return b"pushed"

    bounded, port = serving.serve({methods.PUSH: push}, "127.0.0.1:0", THREADS, NAME)
    address = f"127.0.0.1:{port}"
    pool = Pool(address, NAME, None)
    try:
        link = pool.connected()
        send(link, prefix(methods.PUSH.kind, 600 << 10), bytes(100))
        assert connect(address, peer=NAME).call(methods.PUSH, bytes(800 << 10)) == b"pushed"
        assert ended(link) is None
        link.close()
        assert seen == [800 << 10]
    finally:
        pool.close()
        bounded.stop(None).wait()


def test_bytes_of_requests_that_are_handled_are_bounded_and_logs_have_their_own(
    connect, monkeypatch
):
    """1. a push waits in its handler; 2. another one finds no room, is told so and comes again;
    3. a group of a log finds room, as the push may wait for just that."""
    monkeypatch.setattr(plane, "HELD_BYTES", 1 << 20)
    monkeypatch.setattr(plane, "PART_SECONDS", 2.0)
    there, go_on = threading.Event(), threading.Event()

    def push(frame):
        there.set()
        assert go_on.wait(PATIENCE)
        return b"pushed"

    handlers = {
        methods.PUSH: push,
        methods.APPEND_LOG: lambda labelled: pb.AppendLogReply(position=labelled[0].first),
    }
    bounded, port = serving.serve(handlers, "127.0.0.1:0", THREADS, NAME)
    address, large = f"127.0.0.1:{port}", bytes(600 << 10)
    waiting = connect(address, peer=NAME, patience=0.0)
    first = waiting.start(methods.PUSH, large)
    try:
        assert there.wait(PATIENCE)
        other = connect(address, peer=NAME, patience=0.0)
        with pytest.raises(WireError, match="not answered yet") as error:
            other.call(methods.PUSH, large)
        assert error.value.kind == pb.NOT_READY
        label = pb.LogGroup(first=7)
        kept = other.call(methods.APPEND_LOG, large, label=label, patience=PATIENCE)
        assert kept.position == 7
        go_on.set()
        assert waiting.result(methods.PUSH, first) == b"pushed"
        assert other.call(methods.PUSH, large, patience=PATIENCE) == b"pushed"
    finally:
        go_on.set()
        bounded.stop(None).wait()


def test_a_reader_that_stops_costs_one_block_and_is_given_up(connect, monkeypatch):
    """1. one asks for 64 MiB in blocks and reads nothing; 2. only what the system takes is made;
    others are answered; 3. its connection ends."""
    monkeypatch.setattr(plane, "ANSWER_SECONDS", 0.5)
    block, count = np.zeros(1 << 20, np.uint8), 64
    made, closed = [], threading.Event()

    def blocks():
        try:
            for number in range(count):
                made.append(number)
                yield block
        finally:
            closed.set()

    handlers = {
        methods.PULL: lambda frame: Pieces(count << 20, blocks()),
        methods.PUSH: lambda frame: b"pushed",
    }
    server, port = serving.serve(handlers, "127.0.0.1:0", THREADS, NAME)
    pool = Pool(f"127.0.0.1:{port}", NAME, None)
    try:
        link = pool.connected()
        send(link, prefix(methods.PULL.kind, 0))
        other = connect(f"127.0.0.1:{port}", peer=NAME)
        assert other.call(methods.PUSH, b"x") == b"pushed"
        assert closed.wait(PATIENCE)
        assert len(made) < count
        link.close()
        assert len(other.call(methods.PULL, b"")) == count << 20
    finally:
        pool.close()
        server.stop(None).wait()


def test_the_watch_calls_off_what_is_late_and_nothing_else():
    watch, late = Watch(), threading.Event()
    in_time = []
    with (
        watch.within(10 * PATIENCE, lambda: in_time.append("called off")),
        watch.within(0.01, late.set),
    ):
        assert late.wait(PATIENCE)
    again = threading.Event()
    with watch.within(0.01, again.set):  # after it had nothing to look after
        assert again.wait(PATIENCE)
    assert not in_time


def test_the_watch_goes_on_after_one_that_cannot_be_called_off():
    watch, late = Watch(), threading.Event()

    def failing():
        raise OSError("it is closed")

    with watch.within(0.01, failing), watch.within(0.01, late.set):
        assert late.wait(PATIENCE)
    again = threading.Event()
    with watch.within(0.01, again.set):
        assert again.wait(PATIENCE)
