"""A server that is away: its calls wait, one of them tries, and it may come back elsewhere."""

import threading

import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.channels.circuit import Attempt, Circuit
from shoal.proto.errors import (
    BrokenStreamError,
    PeerUnavailableError,
    ServerAwayError,
    WireError,
)
from shoal.proto.wire import transport


class Server:
    """A server that can be started and stopped; `address` is where it was last."""

    def __init__(self):
        self.address = ""
        self.handler = lambda frame: b"answer to " + frame
        self.ready = lambda request: pb.ReadyReply()
        self._server = None

    def start(self, port=0, name="", handlers=None):
        handlers = handlers or {methods.PULL: lambda frame: self.handler(frame)}
        handlers.setdefault(methods.READY, lambda request: self.ready(request))
        self._server, port = serving.serve(handlers, f"127.0.0.1:{port}", 16, name)
        self.address = f"127.0.0.1:{port}"
        return port

    def stop(self):
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None


@pytest.fixture
def server():
    made = Server()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Between two tries, however many there were."""
    monkeypatch.setattr(
        "shoal.proto.channels.circuit.backoff_seconds", lambda attempt, first=0: 0.05
    )


@pytest.fixture
def circuit():
    """Make a Circuit that is closed after the test; by default it asks the server itself."""
    made = []

    def make(server, **options):
        locate = options.pop("locate", lambda: server.address)
        one = Circuit("parameter server 3", locate, server.address, server=3, **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_calls_wait_for_a_server_that_comes_back_at_another_address(server, circuit):
    """1. the server ends; 2. calls of several threads wait; 3. it starts at another port,
    which is only known by asking; 4. all calls are answered."""
    first = server.start()
    asked = threading.Event()
    answers = []

    def locate():
        asked.set()
        return server.address

    one = circuit(server, locate=locate)
    assert one.call(methods.PULL, b"0") == b"answer to 0"
    server.stop()
    threads = in_threads(8, lambda: answers.append(one.call(methods.PULL, b"x")))
    assert asked.wait(30)
    second = server.start()
    for thread in threads:
        thread.join(60)
    assert answers == [b"answer to x"] * 8
    assert second != first
    assert one.address == server.address


def test_only_one_caller_at_a_time_tries_a_server_that_is_not_ready(server, circuit):
    """1. a caller finds the server starting, and again at its second try; 2. seven more
    callers come and wait; 3. no two calls are at the server at once until it is ready;
    4. then all are answered."""
    lock, ready, tried = threading.Lock(), threading.Event(), threading.Event()
    together, inside = [], 0
    retried = threading.Event()

    def starting(frame):
        nonlocal inside
        with lock:
            inside += 1
            together.append(inside)
            if len(together) == 2:
                retried.set()
            if len(together) == 5:
                tried.set()
        try:
            if not ready.is_set():
                raise WireError(pb.NOT_READY, "starting")
            return frame
        finally:
            with lock:
                inside -= 1

    server.handler = starting
    server.start()
    one = circuit(server)
    answers = []
    threads = in_threads(1, lambda: answers.append(one.call(methods.PULL, b"x")))
    assert retried.wait(60)
    threads += in_threads(7, lambda: answers.append(one.call(methods.PULL, b"x")))
    assert tried.wait(60)
    assert set(together) == {1}
    ready.set()
    for thread in threads:
        thread.join(60)
    assert answers == [b"x"] * 8


def test_a_large_frame_is_not_sent_again_and_again_to_a_server_that_is_not_ready(server, circuit):
    """M4: 1. eight callers bring a frame of a megabyte each, and are refused; 2. what they ask
    until there is room is a few bytes each time, and one at a time; 3. then each frame comes once
    more."""
    frame = bytes(1 << 20)
    room, asked_often, all_came = threading.Event(), threading.Event(), threading.Event()
    lock, inside, together = threading.Lock(), 0, []
    came, asked = [], []

    def push(received):
        came.append(len(received))
        if len(came) == 8:
            all_came.set()
        if not room.is_set():
            raise WireError(pb.NOT_READY, "the log is full")
        return b"taken"

    def ready(request):
        nonlocal inside
        with lock:
            inside += 1
            together.append(inside)
            asked.append((request.method, request.bytes, request.caller.worker))
        try:
            if len(asked) == 6:
                asked_often.set()
            if not room.is_set():
                raise WireError(pb.NOT_READY, "the log is full")
            return pb.ReadyReply()
        finally:
            with lock:
                inside -= 1

    server.ready = ready
    server.start(handlers={methods.PUSH: push})
    one = circuit(server, caller=pb.PushIdentity(worker=3))
    # Begun while nobody knew, so all are sent.
    attempts = [one.start(methods.PUSH, frame) for _ in range(8)]
    answers = []

    def finish():
        answers.append(one.finish(methods.PUSH, frame, attempts.pop()))

    threads = in_threads(8, finish)
    assert all_came.wait(60)
    assert asked_often.wait(60)
    assert len(came) == 8
    room.set()
    for thread in threads:
        thread.join(60)
    assert answers == [b"taken"] * 8
    assert came == [len(frame)] * (8 + 8)
    assert set(asked) == {("Push", len(frame), 3)}
    assert set(together) == {1}


def test_a_server_that_takes_calls_of_one_kind_is_not_sent_those_of_another(server, circuit):
    """1. pushes are refused, pulls are not; 2. a pull that is answered is no sign that the push
    should come again."""
    room, asked_often = threading.Event(), threading.Event()
    came, asked = [], []

    def push(frame):
        came.append(frame)
        if not room.is_set():
            raise WireError(pb.NOT_READY, "the log is full")
        return b"taken"

    def ready(request):
        asked.append(request.method)
        if asked.count("Push") == 4:
            asked_often.set()
        if request.method == "Push" and not room.is_set():
            raise WireError(pb.NOT_READY, "the log is full")
        return pb.ReadyReply()

    server.ready = ready
    server.start(handlers={methods.PUSH: push, methods.PULL: lambda frame: b"rows"})
    one = circuit(server)
    pulled, pushed = [one.start(methods.PULL, b"begun before") for _ in range(2)], []
    pusher = in_threads(1, lambda: pushed.append(one.call(methods.PUSH, b"gradients")))[0]
    while not asked:
        assert pusher.is_alive()
    for attempt in pulled:
        assert one.finish(methods.PULL, b"begun before", attempt) == b"rows"
    assert asked_often.wait(60)
    assert came == [b"gradients"]
    room.set()
    pusher.join(60)
    assert pushed == [b"taken"]
    assert came == [b"gradients"] * 2


def test_the_patience_is_bounded_and_the_error_names_server_and_flag(server, circuit):
    server.start()
    one = circuit(server, patience=0.3, flag="four times --timeout-seconds")
    server.stop()
    with pytest.raises(ServerAwayError) as caught:
        one.call(methods.PULL, b"")
    assert "parameter server 3 has been out of reach for" in str(caught.value)
    assert "four times --timeout-seconds (0.3)" in str(caught.value)
    assert caught.value.server == 3


def test_a_call_begun_while_the_server_is_away_is_sent_when_it_is_back(server, circuit):
    server.start()
    one = circuit(server)
    server.stop()
    caller = in_threads(1, lambda: one.call(methods.PULL, b"opens the circuit"))[0]
    while (attempt := one.start(methods.PULL, b"x")).future is not None:
        assert caller.is_alive()
    server.start()
    assert one.finish(methods.PULL, b"x", attempt) == b"answer to x"
    caller.join(60)


def test_a_refusal_of_a_server_that_is_there_is_raised_at_once(server, circuit):
    calls = []

    def refuse(frame):
        calls.append(frame)
        raise WireError(pb.FENCED, "because")

    server.handler = refuse
    server.start()
    with pytest.raises(WireError, match="FENCED: because"):
        circuit(server).call(methods.PULL, b"x")
    assert len(calls) == 1


def test_another_job_on_the_port_is_not_taken_for_the_server(server, circuit, connect):
    """1. the server ends; 2. another job's takes its port; 3. it applies nothing of ours;
    4. the server comes back elsewhere and answers."""
    name, other = transport.peer_name("ours", "ps", 3), transport.peer_name("theirs", "ps", 3)
    port = server.start(name=name)
    one = circuit(server, peer=name)
    assert one.call(methods.PULL, b"x") == b"answer to x"
    server.stop()
    foreign, reached = Server(), []
    foreign.handler = reached.append
    foreign.start(port, other)
    try:
        with pytest.raises(
            WireError, match="for ps-3 of this job, and another job's process is there"
        ):
            connect(foreign.address, peer=name).call(methods.PULL, b"x")
        with pytest.raises(WireError, match="without a job's token"):
            connect(foreign.address).call(methods.PULL, b"x")
        server.start(name=name)
        assert one.call(methods.PULL, b"y") == b"answer to y"
    finally:
        foreign.stop()
    assert not reached


def test_a_stream_waits_for_its_first_answer(server, circuit):
    server.start()
    one = circuit(server)
    server.stop()
    read = []
    reader = in_threads(
        1, lambda: read.extend(one.stream(methods.READ_TABLE, pb.ReadTableRequest()))
    )[0]
    server.start(handlers={methods.READ_TABLE: lambda request: iter([b"a", b"b"])})
    reader.join(60)
    assert read == [b"a", b"b"]


def test_a_stream_that_breaks_off_says_so(server, circuit):
    def rows(request):
        yield b"a"
        server.stop()

    server.start(handlers={methods.READ_TABLE: rows})
    read = []
    with pytest.raises(BrokenStreamError):
        read.extend(circuit(server).stream(methods.READ_TABLE, pb.ReadTableRequest()))


def test_cancelling_ends_the_waiting_of_all(server, circuit):
    server.start()
    cancelled = threading.Event()
    one = circuit(server, patience=600.0, cancelled=cancelled)
    server.stop()
    errors = []

    def call():
        try:
            one.call(methods.PULL, b"")
        except PeerUnavailableError as error:
            errors.append(error.reason)

    threads = in_threads(4, call)
    cancelled.set()
    for thread in threads:
        thread.join(60)
    assert errors == ["cancelled"] * 4


def test_nobody_knows_where_it_is_so_the_old_address_is_tried(server, circuit):
    """As while the master is away, too."""
    port = server.start()
    asked = threading.Event()

    def unknown():
        asked.set()
        raise PeerUnavailableError("master", "GetRouting", "away")

    one = circuit(server, locate=unknown)
    server.stop()
    answers = []
    caller = in_threads(1, lambda: answers.append(one.call(methods.PULL, b"x")))[0]
    assert asked.wait(30)
    server.start(port)
    caller.join(60)
    assert answers == [b"answer to x"]


def test_whoever_fails_in_its_turn_leaves_it_to_the_others(server, circuit, monkeypatch):
    """1. the server is away; 2. the first caller's turn ends in an unexpected error;
    3. another caller, which waited, gets its turn and then the answer."""
    port = server.start()
    one = circuit(server)
    server.stop()
    tried, go_on = threading.Event(), threading.Event()
    errors, answers = [], []

    def broken_once(attempt, first=0):
        monkeypatch.setattr(
            "shoal.proto.channels.circuit.backoff_seconds", lambda attempt, first=0: 0.01
        )
        tried.set()
        go_on.wait(60)
        raise OverflowError(attempt)

    def first():
        try:
            one.call(methods.PULL, b"first")
        except OverflowError as error:
            errors.append(error)

    monkeypatch.setattr("shoal.proto.channels.circuit.backoff_seconds", broken_once)
    threads = in_threads(1, first)
    assert tried.wait(60)
    threads += in_threads(1, lambda: answers.append(one.call(methods.PULL, b"second")))
    server.start(port)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 1
    assert answers == [b"answer to second"]


def test_calls_of_a_closed_circuit_fail(server, circuit):
    """A call that was begun before, those after, and those that wait for a server."""
    server.start()
    one = circuit(server)
    assert one.call(methods.PULL, b"x") == b"answer to x"
    one.close()
    ended = threading.Event()
    errors = []

    def calls():
        for attempt in (one.start(methods.PULL, b"y"), Attempt(None, None)):
            with pytest.raises(PeerUnavailableError) as caught:
                one.finish(methods.PULL, b"y", attempt)
            errors.append(caught.value.reason)
        ended.set()

    # A daemon: a circuit that goes on for ever must fail the test, not keep it from ending.
    threading.Thread(target=calls, daemon=True).start()
    assert ended.wait(60)
    assert errors == ["closed"] * 2


def test_closing_ends_the_waiting_for_a_server(server, circuit):
    server.start()
    asked = threading.Event()

    def locate():
        asked.set()
        return server.address

    one = circuit(server, locate=locate, patience=600.0)
    server.stop()
    reasons = []

    def call():
        try:
            one.call(methods.PULL, b"x")
        except PeerUnavailableError as error:
            reasons.append(error.reason)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert asked.wait(60)
    one.close()
    for thread in threads:
        thread.join(60)
    assert reasons == ["closed"] * 4


@pytest.mark.parametrize(
    "error",
    [WireError(pb.NOT_READY, "ps-3 starts"), PeerUnavailableError("master", "GetRouting", "away")],
)
def test_a_server_that_is_being_started_is_waited_for_beyond_the_patience(server, circuit, error):
    """1. the server ends; 2. where it is now is not known, many times; 3. it starts elsewhere."""
    server.start()
    asked = []

    def locate():
        asked.append(1)
        if len(asked) < 6:  # pauses between them: a quarter of a second
            raise error
        if len(asked) == 6:
            server.start()
        return server.address

    one = circuit(server, locate=locate, patience=0.1)
    server.stop()
    assert one.call(methods.PULL, b"x") == b"answer to x"
    assert len(asked) >= 6


def test_a_server_that_says_it_is_not_ready_is_waited_for_beyond_the_patience(server, circuit):
    calls = []

    def starting(frame):
        calls.append(frame)
        if len(calls) < 7:
            raise WireError(pb.NOT_READY, "restoring")
        return frame

    server.handler = starting
    server.start()
    one = circuit(server, patience=0.1)
    assert one.call(methods.PULL, b"x") == b"x"
    assert len(calls) == 7
    assert not one.away
