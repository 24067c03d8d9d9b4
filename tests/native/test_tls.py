"""TLS in C: against itself and Python's ssl, and whatever strangers and networks may send."""

import _ssl
import ctypes
import datetime as dt
import itertools
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.native import tls
from shoal.native.answering import FLAGS
from shoal.native.pushes import PushRecord
from shoal.native.tls import Context
from shoal.proto import shoal_pb2 as pb
from shoal.proto.plane.link import Link
from shoal.proto.plane.message import ANSWER, prefix
from tests.fuzz.mutations import mutated
from tests.native import tls_ends
from tests.native.test_answering import BEGIN, DIM, KIND, PUSH, SIZE, Served, request
from tests.native.test_concurrency import together
from tests.native.test_pushing import push
from tests.native.tls_ends import (
    EXPIRED,
    HOST,
    OTHER,
    PATIENCE,
    SERVER,
    WORKER,
    Ends,
    InHand,
    context,
    function_of_openssl,
    in_c,
    ssl_of,
)

RECORD = 16 << 10
SHORT = 0.05


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.close()


@pytest.fixture
def in_hand():
    """Make an InHand that is closed after the test."""
    made = []

    def make(**how):
        made.append(InHand(**how))
        return made[-1]

    yield make
    for each in made:
        each.close()


def received(end, size):
    whole = bytearray(size)
    assert end.receive(memoryview(whole), PATIENCE, True) == size
    return bytes(whole)


def records(data):
    """The lengths of the records in bytes."""
    found = []
    while data:
        found.append(int.from_bytes(data[3:5]))
        data = data[5 + found[-1] :]
    return found


def test_openssl_is_found():
    """Where it is not, all other tests of this file would test nothing."""
    assert tls.lacking == ""


WITHOUT = {
    "del _ssl.__file__": "is no library of its own",
    "_ssl.__file__ = '/nowhere/_ssl.so'": "is not loaded from /nowhere/_ssl.so",
    "import _json; _ssl.__file__ = _json.__file__": "does not give access to OpenSSL_version_num",
    "_ssl.OPENSSL_VERSION_NUMBER = 0x40000000": "has another OpenSSL than the one that was found",
}

FALLBACK = """
import _ssl
%s
import socket, threading, time
from shoal.native import tls
from shoal.proto.plane import hello
from shoal.security.authority import Authority
assert hello.lacking_tls() == tls.lacking
try:
    tls.Context(b"", b"", b"", True)
except RuntimeError as error:
    assert str(error) == tls.lacking
    print(tls.lacking)
authority, ends, links = Authority.made("j"), socket.socketpair(), []
serve = lambda: links.append(hello.encrypted(ends[0], authority.issue("ps"), None))
thread = threading.Thread(target=serve)
thread.start()
calling = hello.encrypted(ends[1], authority.issue("worker"), "token/ps-0")
thread.join()
calling.send([b"data"], 4, 60.0)
assert bytes(links[0].read(4, time.monotonic() + 60.0)) == b"data"
"""


@pytest.mark.slow
@pytest.mark.parametrize("change", WITHOUT)
def test_where_openssl_is_not_found_python_s_ssl_does_it_and_the_log_says_so(change):
    done = subprocess.run(
        [sys.executable, "-c", FALLBACK % change], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert WITHOUT[change] in done.stdout
    said = f"calls with certificates go through Python's ssl, slower: {done.stdout.strip()}"
    assert done.stderr.count(said) == 1


sizes = st.one_of(st.integers(1, 300), st.integers(RECORD - 2, RECORD + 2), st.integers(1, 100_000))


@given(st.lists(sizes, min_size=1, max_size=6), st.lists(sizes, min_size=1, max_size=6))
def test_bytes_arrive_however_they_are_sent_and_received(parts, asked):
    ends = Ends()
    try:
        data = np.random.default_rng(len(parts)).bytes(sum(parts))
        places = np.cumsum([0, *parts])
        views = [memoryview(data)[a:b] for a, b in itertools.pairwise(places)]
        sending = threading.Thread(target=ends.client.send, args=(views, PATIENCE))
        sending.start()
        came, turn = bytearray(), 0
        while len(came) < len(data):
            room = bytearray(min(asked[turn % len(asked)], len(data) - len(came)))
            got = ends.server.receive(memoryview(room), PATIENCE, turn % 2 == 0)
            assert got == len(room) or turn % 2
            came += room[:got]
            turn += 1
        sending.join()
        assert came == data
    finally:
        ends.close()


def test_parts_of_a_small_message_leave_as_one_record_and_of_a_large_one_as_whole_ones(in_hand):
    hand = in_hand()
    assert hand.shake() is None
    for sizes, expected in (
        ((16, 100, 5000), [5116]),
        ((16, 100, 3 * RECORD, 7), [RECORD, RECORD, RECORD, 123]),
        ((2 * RECORD + 1, 5), [RECORD, RECORD, 6]),
    ):
        hand.end.send([memoryview(bytes(each)) for each in sizes], PATIENCE)
        raw = b""
        while sum(records(raw)) < sum(expected) + 17 * len(expected):
            raw += hand.near.recv(1 << 17)
        assert records(raw) == [each + 17 for each in expected]
        hand._in.write(raw)
        for each in expected:
            assert hand.read(each) == bytes(each)


def test_what_has_come_is_given_without_waiting_for_the_socket(in_hand):
    """Two records come at once: after the first the socket is silent for ever."""
    hand = in_hand()
    assert hand.shake() is None
    hand.near.sendall(hand.out(b"one") + hand.out(b"two"))
    for expected in (b"one", b"two"):
        room = bytearray(100)
        assert hand.end.receive(memoryview(room), PATIENCE) == 3
        assert room[:3] == expected
    with pytest.raises(TimeoutError):
        hand.end.receive(memoryview(bytearray(1)), SHORT)


def test_half_a_record_is_waited_for_and_goes_on(in_hand):
    hand = in_hand()
    assert hand.shake() is None
    first, second = hand.out(b"one"), hand.out(b"two")
    hand.near.sendall(first + second[:10])
    assert received(hand.end, 3) == b"one"
    with pytest.raises(TimeoutError):
        hand.end.receive(memoryview(bytearray(3)), SHORT)
    hand.near.sendall(second[10:])
    assert received(hand.end, 3) == b"two"


def test_tickets_are_no_data_and_none_is_sent(in_hand):
    hand = in_hand(serves=True, identity=SERVER)
    assert hand.shake() is None
    with pytest.raises(TimeoutError):  # two have come with the end of the handshake
        hand.end.receive(memoryview(bytearray(1)), SHORT)
    hand.near.sendall(hand.out(b"data"))
    assert received(hand.end, 4) == b"data"
    served = in_hand()
    assert served.shake() is None
    served.near.setblocking(False)
    with pytest.raises(BlockingIOError):
        served.near.recv(1)


def test_new_keys_are_no_data_and_both_ends_go_on(ends):
    update = function_of_openssl("SSL_key_update", ctypes.c_int)
    shake = function_of_openssl("SSL_do_handshake")
    for asks in (0, 1, 1):
        assert update(ssl_of(ends.client), asks) == 1
        assert shake(ssl_of(ends.client)) == 1
        with pytest.raises(TimeoutError):
            ends.server.receive(memoryview(bytearray(1)), SHORT)
        ends.client.send([memoryview(b"up")], PATIENCE)
        assert received(ends.server, 2) == b"up"
        ends.server.send([memoryview(b"down")], PATIENCE)
        assert received(ends.client, 4) == b"down"


def test_each_end_knows_the_names_of_the_other(ends):
    assert ends.server.names() == [b"shoal://j1/worker/3"]
    assert ends.client.names() == [b"shoal://j1/ps/0"]


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (None, "peer did not return a certificate"),
        (OTHER.issue("worker"), "unable to get local issuer|self-signed certificate"),
        (EXPIRED, "certificate has expired"),
    ],
    ids=["none", "other", "expired"],
)
def test_who_calls_needs_a_certificate_of_the_job(in_hand, identity, words):
    hand = in_hand(identity=identity)
    with pytest.raises(ConnectionError, match=words):
        raise hand.shake()
    with pytest.raises(ConnectionError, match=words):
        hand.end.send([memoryview(b"x")], PATIENCE)
    assert hand.end.names() in ([], [b"shoal://j1/worker/0"])


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (OTHER.issue("ps"), "unable to get local issuer|self-signed certificate"),
        (tls_ends.AUTHORITY.issue("ps", 1), "hostname mismatch"),
        (tls_ends.AUTHORITY.issue("worker"), "hostname mismatch"),
        (tls_ends.AUTHORITY.issue("ps", valid=dt.timedelta(hours=-1)), "certificate has expired"),
    ],
    ids=["other", "another", "worker", "expired"],
)
def test_who_answers_must_be_the_one_that_is_meant(in_hand, identity, words):
    hand = in_hand(serves=True, identity=identity)
    with pytest.raises(ConnectionError, match=words):
        raise hand.shake()


@pytest.mark.parametrize("serves", [False, True])
def test_older_versions_are_refused(in_hand, serves):
    identity = SERVER if serves else WORKER
    hand = in_hand(serves=serves, identity=identity, maximum_version=ssl.TLSVersion.TLSv1_2)
    with pytest.raises(ConnectionError, match=r"protocol|version"):
        raise hand.shake()


def test_certificates_that_cannot_be_used_are_refused_by_name():
    for serves in (True, False):
        with pytest.raises(ValueError, match="key values mismatch"):
            Context(WORKER.authority, WORKER.certificate, SERVER.key, serves)
        with pytest.raises(ValueError, match="certificate or its key"):
            Context(WORKER.authority, b"none", WORKER.key, serves)
        with pytest.raises(ValueError, match="authority's certificate cannot be used"):
            Context(b"none", WORKER.certificate, WORKER.key, serves)


def test_a_call_names_whom_it_means_and_an_answer_nobody():
    near, far = socket.socketpair()
    with near, far:
        with pytest.raises(ValueError, match="said by the one that calls"):
            tls.Secured(context(WORKER, False), near.fileno())
        with pytest.raises(ValueError, match="said by the one that calls"):
            tls.Secured(context(SERVER, True), near.fileno(), HOST)
        with pytest.raises(ValueError, match="host name of a certificate"):
            tls.Secured(context(WORKER, False), near.fileno(), "a" * 300)


# ------------------------------------------------------------ ends of connections


def test_an_end_is_an_end_whether_it_is_announced_or_cut(in_hand):
    for how in ("announced", "between", "within"):
        hand = in_hand()
        assert hand.shake() is None
        data = hand.out(b"one")
        if how == "announced":
            with pytest.raises(ssl.SSLWantReadError):
                hand.ssl.unwrap()
            data += hand.out()
        if how == "within":
            data += hand.out(b"two")[:-1]
        hand.near.sendall(data)
        hand.near.shutdown(socket.SHUT_WR)
        room = memoryview(bytearray(100))
        assert hand.end.receive(room, PATIENCE) == 3
        assert hand.end.receive(room, PATIENCE) == 0
        with pytest.raises(ConnectionError, match="the connection is closed"):
            hand.end.receive(room, PATIENCE)


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize("flight", [0, 1])
def test_a_handshake_that_is_cut_anywhere_ends(in_hand, serves, flight):
    identity = SERVER if serves else WORKER
    for keep in (0, 1, 4, 5, 6, 50, 100):
        hand = in_hand(serves=serves, identity=identity)
        said = hand.shake(
            lambda data, at, keep=keep: data[:keep] if at == flight + serves else data
        )
        if serves and flight:  # of tickets, without which it is over
            assert said is None
        else:
            assert isinstance(said, ConnectionError), keep


def test_a_handshake_that_does_not_go_on_is_late(in_hand):
    hand = in_hand()
    with pytest.raises(ssl.SSLWantReadError):
        hand.ssl.do_handshake()
    hand.near.sendall(hand.out()[:20])
    with pytest.raises(TimeoutError, match="not over in time"):
        hand.end.handshake(SHORT)


def test_another_thread_ends_a_wait_by_the_socket(ends):
    for end, made in ((ends.server, ends.sockets[0]), (ends.client, ends.sockets[1])):
        came = []

        def reads(end=end, came=came):
            came.append(end.receive(memoryview(bytearray(1)), PATIENCE))

        thread = threading.Thread(target=reads)
        thread.start()
        made.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        assert came == [0]


def test_two_threads_at_a_time_are_refused(ends):
    begun = threading.Event()

    def reads():
        begun.set()
        ends.server.receive(memoryview(bytearray(1)), PATIENCE)

    thread = threading.Thread(target=reads)
    thread.start()
    begun.wait()
    end = time.monotonic() + PATIENCE
    refused = False
    while not refused and time.monotonic() < end:  # until the thread is where it waits
        try:
            ends.server.send([memoryview(b"")], PATIENCE)
        except RuntimeError as error:
            refused = "two threads" in str(error)
    assert refused
    ends.client.send([memoryview(b"x")], PATIENCE)
    thread.join(PATIENCE)
    ends.server.send([memoryview(b"y")], PATIENCE)
    assert received(ends.client, 1) == b"y"


def test_writing_to_who_has_gone_is_an_error_and_no_signal(ends):
    ends.sockets[1].close()
    for _ in range(2):
        with pytest.raises(ConnectionError, match=r"reset|Broken pipe"):
            ends.server.send([memoryview(bytes(16 << 20))], PATIENCE)


def test_who_takes_nothing_is_given_up(ends):
    with pytest.raises(TimeoutError, match="nothing was taken in time"):
        ends.server.send([memoryview(bytes(64 << 20))], SHORT)


def test_errors_that_others_have_left_in_this_thread_are_not_taken_for_ours(in_hand):
    """The queue of errors is OpenSSL's, one for each thread; Python's ssl has the same."""
    hand = in_hand()
    assert hand.shake() is None
    openssl, data = ctypes.CDLL(_ssl.__file__), hand.out(b"data")
    openssl.ERR_new()
    openssl.ERR_set_error(20, 134, None)  # of libssl: a certificate that is refused
    hand.near.sendall(data[:10])  # so that reading needs more
    with pytest.raises(TimeoutError):
        hand.end.receive(memoryview(bytearray(4)), SHORT)
    hand.near.sendall(data[10:])
    assert received(hand.end, 4) == b"data"


# ------------------------------------------------------------ damage


@given(st.binary(min_size=1, max_size=2000), st.booleans())
def test_garbage_in_place_of_a_handshake_ends_it(data, tls_like):
    near, far = socket.socketpair()
    with near, far:
        end = in_c(far)
        near.sendall((b"\x16\x03\x01" + len(data).to_bytes(2) if tls_like else b"") + data)
        near.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError):
            end.handshake(PATIENCE)


@given(st.integers(0, 2**32), st.booleans(), st.integers(0, 1))
def test_a_damaged_handshake_ends_and_nobody_is_let_in_unproved(seed, serves, flight):
    chance = random.Random(seed)
    hand = InHand(serves=serves, identity=SERVER if serves else WORKER)
    try:
        said = hand.shake(
            lambda data, at: mutated([data], chance) if at == flight + serves else data
        )
        # One that is over in spite of it has come whole, as its last message proves.
        assert isinstance(said, OSError) or hand.end.names()
    finally:
        hand.close()


@given(st.integers(0, 2**32), st.integers(1, 40_000))
def test_of_damaged_records_nothing_comes_that_was_not_sent(seed, size):
    chance = random.Random(seed)
    hand = InHand()
    try:
        assert hand.shake() is None
        data = np.random.default_rng(size).bytes(size)
        hand.near.sendall(mutated([hand.out(data)], chance))
        hand.near.shutdown(socket.SHUT_WR)
        came = b""
        room = bytearray(1 << 16)
        try:
            while got := hand.end.receive(memoryview(room), PATIENCE):
                came += room[:got]
        except ConnectionError:
            pass
        assert data.startswith(came)
    finally:
        hand.close()


# ------------------------------------------------------------ requests


class Answered:
    """Requests that a server answers over TLS, until one is for Python.

    worker: for whom they may speak; None: for nobody.
    """

    def __init__(self, served, worker):
        self.ends, self.returned = Ends(), []
        self.ends.server.speak_for(worker)
        self.link = Link(self.ends.sockets[1], self.ends.client)
        buffer = memoryview(bytearray(SIZE + 64))
        skipped = -np.frombuffer(buffer, np.uint8).ctypes.data % 64
        arguments = (buffer[skipped : skipped + SIZE], BEGIN, BEGIN, BEGIN, bytearray(FLAGS))

        def serve():
            try:
                far = self.ends.sockets[0].fileno()
                found = served.answerer.serve(
                    far, *arguments, PATIENCE, "", self.ends.server, PATIENCE
                )
                self.returned.append(found[0])
            except OSError as error:
                self.returned.append(error)

        self.thread = threading.Thread(target=serve)
        self.thread.start()

    def ask(self, kind, frame):
        self.link.send([prefix(kind, len(frame)), frame], 16 + len(frame), PATIENCE)

    def answer(self):
        """The kind of the answer."""
        end = time.monotonic() + PATIENCE
        kind, size = self.link.next_prefix(end)
        self.link.into(memoryview(bytearray(size)), end)
        return kind

    def close(self):
        self.link.shut()
        self.thread.join()
        self.ends.close()
        return self.returned[0]


def pull_by(worker):
    return request(np.arange(300), caller=pb.PushIdentity(worker=worker))


def push_by(worker):
    push_by.sequence = getattr(push_by, "sequence", 0) + 1
    return push(worker, push_by.sequence, np.arange(30))


@pytest.fixture
def served():
    made = Served()
    made.records = [PushRecord() for _ in range(4)]
    for worker, record in enumerate(made.records):
        made.answerer.know(worker, record)
    return made


def test_requests_of_the_worker_that_the_certificate_names_are_answered(served):
    made = Answered(served, 3)
    for _ in range(3):
        made.ask(KIND, pull_by(3))
        assert made.answer() == ANSWER
        made.ask(PUSH, push_by(3))
        assert made.answer() == ANSWER
    assert served.moments.version == 3
    assert isinstance(made.close(), ConnectionError)


@pytest.mark.parametrize("speaker", [None, 3, 0])
@pytest.mark.parametrize(("kind", "frame_by"), [(KIND, pull_by), (PUSH, push_by)])
def test_what_speaks_for_another_worker_is_python_s(served, speaker, kind, frame_by):
    for worker in {0, 1, 2, 3} - {speaker}:
        made = Answered(served, speaker)
        made.ask(kind, frame_by(worker))
        made.thread.join(PATIENCE)
        assert made.returned == [True]
        made.close()
    assert served.moments.version == 0


def test_a_pull_that_names_nobody_speaks_for_worker_0(served):
    """As Python reads it: a number that is not there is zero."""
    made = Answered(served, 0)
    made.ask(KIND, request([1]))
    assert made.answer() == ANSWER
    made.close()
    made = Answered(served, 1)
    made.ask(KIND, request([1]))
    made.thread.join(PATIENCE)
    assert made.returned == [True]
    made.close()


def test_pushes_and_pulls_of_many_connections_beside_one_another(served):
    ids, steps = np.arange(40), 30

    def use(worker):
        made = Answered(served, worker)
        for sequence in range(1, steps + 1):
            made.ask(PUSH, push(worker, sequence, ids))
            assert made.answer() == ANSWER
            made.ask(KIND, pull_by(worker))
            assert made.answer() == ANSWER
        made.close()

    together(*(lambda worker=worker: use(worker) for worker in range(4)))
    assert served.moments.version == 4 * steps
    np.testing.assert_array_equal(served.table.lookup(ids), np.full((40, DIM), 4.0 * steps))


# ------------------------------------------------------------ threads


def test_many_connections_at_once_share_contexts():
    """Handshakes, exchanges, names and ends in many threads."""
    failed = []

    def use(number):
        try:
            for _ in range(5):
                ends = Ends()
                data = bytes([number]) * (1000 * number + 1)

                def answers(ends=ends, data=data):
                    ends.server.send([memoryview(received(ends.server, len(data)))], PATIENCE)

                thread = threading.Thread(target=answers)
                thread.start()
                ends.client.send([memoryview(data)], PATIENCE)
                assert received(ends.client, len(data)) == data
                thread.join()
                assert ends.server.names() == [b"shoal://j1/worker/3"]
                ends.close()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []


@pytest.mark.parametrize("host", ["", ".j1.shoal"])
def test_the_host_of_a_whole_domain_is_nobody(host):
    near, far = socket.socketpair()
    with near, far, pytest.raises(ValueError, match="host name of no process"):
        tls_ends.in_c(near, serves=False, host=host)


class RaisedError(Exception):
    """As a handler raises it."""


@pytest.mark.parametrize("raises", [True, False])
def test_the_handler_of_a_signal_runs_while_a_call_waits(raises):
    ends = tls_ends.Ends()

    def handler(*_):
        if raises:
            raise RaisedError
        ends.server.send([b"late"], 60.0)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        target = bytearray(4)
        if raises:
            with pytest.raises(RaisedError):
                ends.client.receive(target, 60.0, False)
            with pytest.raises(OSError, match="Interrupted system call"):
                ends.client.receive(target, 60.0, False)
        else:
            assert ends.client.receive(target, 60.0, True) == 4
            assert bytes(target) == b"late"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        ends.close()
