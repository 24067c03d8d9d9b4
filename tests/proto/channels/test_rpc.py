"""Calls over real gRPC: typed errors, retries, deadlines, and the method table."""

import threading
import time

import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import PeerUnavailableError, WireError


@pytest.fixture
def serve():
    servers = []

    def start(handlers):
        server, port = serving.serve(handlers, "127.0.0.1:0", threads=4)
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()


def declared_methods():
    return [value for value in vars(methods).values() if isinstance(value, methods.Method)]


def test_the_method_table_is_the_proto_file():
    declared = {method.path: method for method in declared_methods()}
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            ours = declared.pop(f"/{service.full_name}/{method.name}")
            for message, type_ in (
                (method.input_type, ours.request),
                (method.output_type, ours.reply),
            ):
                assert type_ is getattr(pb, message.name), method.full_name
            assert not method.server_streaming
            assert ours.kind == 0
    # The others are of the data plane, each of a kind of its own.
    kinds = [method.kind for method in declared.values()]
    assert 0 not in kinds
    assert len(set(kinds)) == len(kinds)


def test_messages_and_bytes_arrive(serve, connect):
    address = serve(
        {
            methods.STATUS: lambda request: pb.ServerStatus(version=5),
            methods.PULL: lambda frame: bytes(frame)[::-1],
            methods.READ_TABLE: lambda request: iter([b"a", b"b"]),
        }
    )
    connection = connect(address)
    assert connection.call(methods.STATUS, pb.ServerStatusRequest()).version == 5
    assert connection.call(methods.PULL, b"abc") == b"cba"
    assert list(connection.stream(methods.READ_TABLE, pb.ReadTableRequest())) == [b"a", b"b"]


@pytest.mark.parametrize("kind", [k for k in pb.ErrorKind.values() if k not in (0, pb.NOT_READY)])
def test_a_refusal_keeps_its_kind_and_is_not_retried(serve, connect, kind):
    calls = []

    def refuse(frame):
        calls.append(frame)
        raise WireError(kind, "because")

    connection = connect(serve({methods.PULL: refuse}))
    with pytest.raises(WireError, match="because") as caught:
        connection.call(methods.PULL, b"")
    assert caught.value.kind == kind
    assert len(calls) == 1


def test_a_refusal_in_a_stream_keeps_its_kind(serve, connect):
    def refuse(request):
        yield b"first"
        raise WireError(pb.NOT_REGISTERED, "because")

    stream = connect(serve({methods.READ_TABLE: refuse})).stream(
        methods.READ_TABLE, pb.ReadTableRequest()
    )
    assert next(stream) == b"first"
    with pytest.raises(WireError) as caught:
        next(stream)
    assert caught.value.kind == pb.NOT_REGISTERED


def test_a_stream_that_falls_silent_ends_at_the_deadline(serve, connect):
    """As of a server that was stopped: it is there, and says nothing more."""
    go_on = threading.Event()

    def stall(request):
        yield b"first"
        go_on.wait(60)

    connection = connect(serve({methods.READ_TABLE: stall}), deadline=2.0)
    stream = connection.stream(methods.READ_TABLE, pb.ReadTableRequest())
    assert next(stream) == b"first"
    with pytest.raises(PeerUnavailableError, match=r"ReadTable at .*: no answer for 2 s"):
        next(stream)
    go_on.set()


def test_a_stream_on_a_closed_connection_fails_when_its_first_answer_is_asked_for(serve, connect):
    """So who waits for a server that moves, which closes connections, meets it in one place."""
    connection = connect(serve({methods.READ_TABLE: lambda request: iter([b"a"])}))
    connection.close()
    stream = connection.stream(methods.READ_TABLE, pb.ReadTableRequest())
    with pytest.raises(PeerUnavailableError, match="closed"):
        next(stream)


def test_an_answer_that_is_asked_for_late_is_there(serve, connect):
    """As a worker asks for the second of two servers after it has waited for the first one."""
    connection = connect(serve({methods.PULL: lambda frame: bytes(frame)}))
    connection.call(methods.PULL, b"connected")
    exchange = connection.start(methods.PULL, b"x", 0.1)
    time.sleep(0.2)  # past the deadline
    assert connection.result(methods.PULL, exchange) == b"x"


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f41f"])
def test_a_long_refusal_keeps_its_kind_and_is_cut(serve, connect, letter):
    """gRPC would drop metadata above 8 KiB, and with it the kind of the refusal."""

    def refuse(frame):
        raise WireError(pb.BAD_REQUEST, "table users: " + letter * 20_000)

    with pytest.raises(WireError) as caught:
        connect(serve({methods.PULL: refuse})).call(methods.PULL, b"")
    assert caught.value.kind == pb.BAD_REQUEST
    assert caught.value.message.startswith("table users: " + letter * 100)
    size = len(letter.encode()) * 20_000 + 13
    assert caught.value.message.endswith(f"(the first 1024 of {size} bytes)")
    assert len(caught.value.message.encode()) <= 1024


@pytest.mark.parametrize("streaming", [False, True])
def test_the_text_of_a_long_bug_is_cut(serve, connect, streaming):
    def broken(request):
        raise ZeroDivisionError("table users: " + "x" * 20_000)
        yield

    def broken_unary(frame):
        return next(broken(frame))

    connection = connect(serve({methods.PULL: broken_unary, methods.READ_TABLE: broken}))
    stream = connection.stream(methods.READ_TABLE, pb.ReadTableRequest())
    with pytest.raises(RuntimeError, match="UNKNOWN: ZeroDivisionError: table users: x"):
        next(stream) if streaming else connection.call(methods.PULL, b"")


def test_not_ready_is_tried_again(serve, connect):
    calls = []

    def third_time(frame):
        calls.append(frame)
        if len(calls) < 3:
            raise WireError(pb.NOT_READY, "starting")
        return b"ready"

    assert connect(serve({methods.PULL: third_time})).call(methods.PULL, b"") == b"ready"
    assert len(calls) == 3


def test_a_bug_in_a_handler_is_an_error_of_its_own(serve, connect):
    def broken(frame):
        raise ZeroDivisionError("oops")

    connection = connect(serve({methods.PULL: broken}))
    with pytest.raises(RuntimeError, match="oops"):
        connection.call(methods.PULL, b"")


def test_a_peer_that_is_away_is_waited_for(serve, connect):
    server, port = serving.serve({methods.PULL: lambda frame: b""}, "127.0.0.1:0", 1)
    server.stop(None).wait()
    connection = connect(f"127.0.0.1:{port}")
    answers = []
    caller = threading.Thread(target=lambda: answers.append(connection.call(methods.PULL, b"x")))
    caller.start()
    server, again = serving.serve({methods.PULL: lambda frame: b"back"}, f"127.0.0.1:{port}", 1)
    assert again == port
    caller.join(30)
    server.stop(None).wait()
    assert answers == [b"back"]


def test_a_peer_that_stays_away_is_given_up(serve, connect):
    server, port = serving.serve({}, "127.0.0.1:0", 1)
    server.stop(None).wait()
    connection = connect(f"127.0.0.1:{port}", patience=0.3)
    with pytest.raises(PeerUnavailableError, match="Pull at"):
        connection.call(methods.PULL, b"")


def test_cancelling_ends_the_waiting(connect):
    server, port = serving.serve({}, "127.0.0.1:0", 1)
    server.stop(None).wait()
    cancelled = threading.Event()
    cancelled.set()
    connection = connect(f"127.0.0.1:{port}", patience=600, cancelled=cancelled)
    with pytest.raises(PeerUnavailableError, match="cancelled"):
        connection.call(methods.PULL, b"")


def test_a_port_in_use_is_an_os_error(serve):
    address = serve({})
    with pytest.raises(OSError, match="cannot listen on"):
        serving.serve({}, address, 1)


def test_a_peer_that_came_back_elsewhere_is_found(serve, connect):
    gone = serving.serve({}, "127.0.0.1:0", threads=1)
    gone[0].stop(None).wait()
    new = serve({methods.STATUS: lambda request: pb.ServerStatus(version=7)})
    connection = connect(f"127.0.0.1:{gone[1]}", address_now=lambda: new)
    assert connection.call(methods.STATUS, pb.ServerStatusRequest()).version == 7
    assert connection.address == new


def test_a_label_travels_before_the_bytes(serve, connect):
    seen = []

    def append(labelled):
        label, body = labelled
        seen.append((label, bytes(body)))
        return pb.AppendLogReply(position=3)

    connection = connect(serve({methods.APPEND_LOG: append}))
    label = pb.LogGroup(first=3, sizes=[5])
    for request in (b"small", b"large" * 100_000):
        assert connection.call(methods.APPEND_LOG, request, label=label).position == 3
    assert seen == [(label, b"small"), (label, b"large" * 100_000)]
    for request in (b"x", b"\5\0\0\0four", b"\4\0\0\0\xff\xff\xff\xff"):
        with pytest.raises(WireError, match=r"BAD_REQUEST.*(label|LogGroup)"):
            connection.call(methods.APPEND_LOG, request)


def test_calls_with_threads_of_their_own_are_answered_while_all_others_wait(serve, connect):
    """As servers do that hand their pushes to each other, and are asked how they are."""
    waiting = threading.Semaphore(0)
    go_on = threading.Event()

    def push(frame):
        waiting.release()
        assert go_on.wait(30)
        return frame

    def append(_):
        go_on.set()
        return pb.AppendLogReply()

    status = pb.ServerStatus(version=7)
    fenced = pb.FenceReply(sequence=3)
    calls = {
        methods.PUSH: push,
        methods.APPEND_LOG: append,
        methods.STATUS: lambda _: status,
        methods.FENCE: lambda _: fenced,
    }
    connection = connect(serve(calls))
    answers = [connection.start(methods.PUSH, b"x") for _ in range(8)]
    for _ in range(8):  # each on a connection of its own
        assert waiting.acquire(timeout=30)
    assert connection.call(methods.STATUS, pb.ServerStatusRequest(), deadline=30) == status
    assert connection.call(methods.FENCE, pb.FenceRequest(), deadline=30) == fenced
    assert not go_on.is_set()
    label = pb.LogGroup()
    future = connection.start(methods.APPEND_LOG, b"y", label=label)
    connection.finish(methods.APPEND_LOG, b"y", future, label=label)
    assert [connection.result(methods.PUSH, each) for each in answers] == [b"x"] * 8


def test_a_peer_that_is_not_ready_is_waited_for_beyond_the_patience_where_that_is_asked(
    serve, connect
):
    calls = []

    def starting(frame):
        calls.append(frame)
        if len(calls) < 7:  # pauses between them: more than a second
            raise WireError(pb.NOT_READY, "not all servers have started")
        return frame

    address = serve({methods.PULL: starting})
    assert connect(address, patience=0.1, until_ready=True).call(methods.PULL, b"x") == b"x"
    calls.clear()
    with pytest.raises(WireError, match="not all servers have started"):
        connect(address, patience=0.1).call(methods.PULL, b"x")


def test_channels_to_where_a_peer_was_are_closed_once_nothing_is_called_there(
    serve, connect, monkeypatch
):
    """L8: there was one more for each move of a peer."""
    opened, closed = [], []

    class Noted:
        def __init__(self, channel):
            self._channel = channel
            opened.append(self)

        def __getattr__(self, name):
            return getattr(self._channel, name)

        def close(self):
            closed.append(self)
            self._channel.close()

    insecure = rpc.grpc.insecure_channel
    monkeypatch.setattr(
        rpc.grpc, "insecure_channel", lambda *given, **options: Noted(insecure(*given, **options))
    )
    monkeypatch.setattr(rpc, "backoff_seconds", lambda attempt: 0.0)
    came, go_on = threading.Event(), threading.Event()

    fenced = pb.FenceReply(sequence=3)
    status = pb.ServerStatus(version=7)

    def slow(_):
        came.set()
        assert go_on.wait(60)
        return fenced

    def moved(_):
        raise WireError(pb.NOT_READY, "it has moved")

    first = serve({methods.STATUS: moved, methods.FENCE: slow})
    places = [first, *(serve({methods.STATUS: moved}) for _ in range(4))]
    places.append(serve({methods.STATUS: lambda _: status}))
    following = iter(places[1:])
    connection = connect(first, address_now=lambda: next(following))
    answer = connection.start(methods.FENCE, pb.FenceRequest())
    assert came.wait(60)
    assert connection.call(methods.STATUS, pb.ServerStatusRequest()) == status
    assert len(opened) == 6
    # Not the one where a call is under way, and the last two, whose calls may just have ended.
    assert opened[0] not in closed
    assert 2 <= len(closed) <= 3
    go_on.set()
    assert connection.result(methods.FENCE, answer) == fenced
    connection.close()
    assert set(opened) == set(closed)


def test_fields_are_numbered_in_their_order_and_the_protocol_is_always_the_first():
    """A process of any version finds the other one's protocol number, and can refuse it."""
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        numbers = {field.name: field.number for field in message.fields}
        assert list(numbers.values()) == list(range(1, len(numbers) + 1)), message.name
        assert numbers.get("protocol", 1) == 1, message.name
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        assert [value.number for value in enum.values] == list(range(len(enum.values))), enum.name
