"""Requests of which only a part comes: nobody else waits for the rest."""

import itertools
import threading
import time

import grpc
import pytest

from shoal.proto import methods, parts, receiving, serving
from shoal.proto import shoal_pb2 as pb
from shoal.proto.budget import Budget
from shoal.proto.errors import STATUS_CODES, WireError
from shoal.proto.transport import CHANNEL_OPTIONS, PARTS_SUFFIX, PEER_METADATA
from shoal.proto.watch import WATCH, Watch

NAME = "job/ps-0"
THREADS = 8
PATIENCE = 60.0


class HalfSent:
    """Calls that send some of their requests, and then nothing more."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.go_on = threading.Event()
        self.calls = []

    def send(self, path, *messages, name=NAME):
        def requests():
            yield from messages
            self.go_on.wait(PATIENCE)

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
    """A server of THREADS threads for data; the calls that it was given whole."""
    came = []

    def push(frame):
        came.append(frame)
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
    made = HalfSent(server.address)
    yield made
    made.close()


def first_part(total=1 << 20, sent=1 << 10):
    whole = bytes(total)
    return next(parts.cut(whole))[:sent]


def until(look):
    end = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_half_sent_pushes_keep_neither_the_master_nor_a_push_waiting(
    server, half, connect, monkeypatch
):
    """Of a worker that was stopped in the middle, say; twice as many as there are threads."""
    monkeypatch.setattr(receiving, "PART_SECONDS", PATIENCE)
    for _ in range(2 * THREADS):
        half.send(methods.PUSH.path + PARTS_SUFFIX, first_part())
    until(lambda: len(WATCH._waiting) >= methods.THREADS[methods.Threads.PARTS])
    connection = connect(server.address, peer=NAME, patience=0.0)
    assert connection.call(methods.STATUS, pb.ServerStatusRequest()).version == 3
    assert connection.call(methods.FENCE, pb.FenceRequest()).sequence == 4
    assert connection.call(methods.PUSH, b"small") == b"pushed"
    assert server.came == [b"small"]
    assert not any(call.done() for call in half.calls)


def test_half_sent_pushes_end_and_a_large_one_gets_through(server, half, connect, monkeypatch):
    """The one that comes whole waits for a thread no longer than for a part."""
    monkeypatch.setattr(receiving, "PART_SECONDS", 0.5)
    monkeypatch.setattr(parts, "WHOLE_BYTES", 100)
    calls = [half.send(methods.PUSH.path + PARTS_SUFFIX, first_part()) for _ in range(2 * THREADS)]
    frame = bytes(range(256)) * 100
    assert connect(server.address, peer=NAME).call(methods.PUSH, frame) == b"pushed"
    assert server.came == [frame]
    for call in calls:
        assert call.exception(PATIENCE).code() == grpc.StatusCode.CANCELLED


def test_what_comes_slowly_but_comes_is_taken(server, half, connect, monkeypatch):
    """It takes longer than a part may, as a whole."""
    monkeypatch.setattr(receiving, "PART_SECONDS", 4.0)
    monkeypatch.setattr(parts, "PART_BYTES", 10_000)
    frame = bytes(range(256)) * 400
    pieces = list(parts.cut(frame))
    assert len(pieces) == 11

    def slowly():
        for piece in pieces:
            time.sleep(0.4)
            yield piece

    call = half.channel.stream_unary(methods.PUSH.path + PARTS_SUFFIX).future(
        slowly(), metadata=((PEER_METADATA, NAME),), wait_for_ready=True
    )
    assert call.result(PATIENCE) == b"pushed"
    assert server.came == [frame]


@pytest.mark.parametrize("suffix", ["", PARTS_SUFFIX])
def test_calls_for_another_are_refused_before_a_byte_of_them_is_read(server, half, suffix):
    """More of them than there are threads, and none of them ever sends a message."""
    for name in (itertools.repeat("", 3 * THREADS), itertools.repeat("job/ps-1", 3 * THREADS)):
        for call in [half.send(methods.PUSH.path + suffix, name=each) for each in name]:
            error = call.exception(PATIENCE)
            assert error.code() == STATUS_CODES[pb.WRONG_PEER]
            assert "this is job/ps-0" in error.details()


def test_calls_that_send_nothing_do_not_keep_the_state_from_being_asked(
    server, half, connect, monkeypatch
):
    """Even those of the job's own processes: one may be stopped between two packets."""
    monkeypatch.setattr(receiving, "PART_SECONDS", 2.0)
    for method in (methods.STATUS, methods.FENCE):
        for _ in range(2 * methods.THREADS[method.threads]):
            half.send(method.path)
    connection = connect(server.address, peer=NAME)
    assert connection.call(methods.STATUS, pb.ServerStatusRequest()).version == 3
    assert connection.call(methods.FENCE, pb.FenceRequest()).sequence == 4


def test_bytes_of_half_sent_requests_are_bounded(server, half, connect, monkeypatch):
    """1. a request of half of what may be held comes half; 2. one of more than the other half is
    not put together beside it; 3. once the first is given up, a large one finds room."""
    monkeypatch.setattr(receiving, "PART_SECONDS", 1.0)
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
    with room.holding(5000, 0.1):  # alone, also what is larger
        assert room.held == 5000
    assert room.held == 0

    monkeypatch.setattr(receiving, "HELD_BYTES", 1 << 20)
    monkeypatch.setattr(parts, "WHOLE_BYTES", 100)
    bounded, port = serving.serve(
        {methods.PUSH: lambda frame: b"pushed"}, "127.0.0.1:0", THREADS, NAME
    )
    made = HalfSent(f"127.0.0.1:{port}")
    try:
        calls = [
            made.send(methods.PUSH.path + PARTS_SUFFIX, first_part(600 << 10)) for _ in range(4)
        ]
        connection = connect(f"127.0.0.1:{port}", peer=NAME)
        assert connection.call(methods.PUSH, bytes(800 << 10)) == b"pushed"
        kinds = {call.exception(PATIENCE).code() for call in calls}
        assert kinds <= {grpc.StatusCode.CANCELLED, STATUS_CODES[pb.NOT_READY]}
    finally:
        made.close()
        bounded.stop(None).wait()


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
