"""The data plane with certificates, in C and by Python's ssl: strangers, broken ends, deaths."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import PeerUnavailableError
from shoal.proto.identity import Identity
from shoal.proto.plane import hello, link
from shoal.proto.plane import server as plane
from shoal.proto.plane.client import Pool
from shoal.proto.plane.link import BrokenError, LateError
from shoal.proto.plane.message import PREFIX_BYTES, prefix
from shoal.proto.wire import frames
from shoal.proto.wire.frames import Pieces
from shoal.proto.wire.transport import ARRAYS_PORT, peer_name
from shoal.security.authority import Authority
from tests.tls_ways import both_tls
from tests.waiting import until

pytestmark = both_tls()

PATIENCE = 60.0
NAME = peer_name("token", "ps")
AUTHORITY = Authority.made("j1")
BLOCK = np.arange(1 << 18, dtype=np.uint8)


WORKER = pb.PushIdentity(worker=3)


def pull_of(count=0):
    return frames.encode(pb.PullRequest(caller=WORKER), [np.arange(count)])


def push_of(count=0):
    return frames.encode(pb.PushRequest(identity=WORKER), [np.arange(count)])


def sent(made, method, data):
    made.send([prefix(method.kind, len(data)), data], PREFIX_BYTES + len(data), PATIENCE)


class Served:
    """A server with certificates, and calls of a worker to it."""

    def __init__(self):
        self.came, self.go_on = [], threading.Event()
        handlers = {
            methods.PUSH: self._push,
            methods.PULL: lambda frame: Pieces(16 * BLOCK.size, iter([BLOCK] * 16)),
            methods.ASSIGN_ROWS: self._wait,
            methods.READ_TABLE: lambda request: iter([bytes(BLOCK)] * 3),
        }
        identity = AUTHORITY.issue("ps")
        self.served, self.port = serving.serve(handlers, "127.0.0.1:0", 2, NAME, identity)
        self.place = ("127.0.0.1", self.port + ARRAYS_PORT)
        self.worker = AUTHORITY.issue("worker", 3)
        self.pool = Pool(f"127.0.0.1:{self.port}", NAME, self.worker)

    def _push(self, frame):
        self.came.append(bytes(frame))
        return b"pushed"

    def _wait(self, _frame):
        self.go_on.wait(PATIENCE)
        return b""

    def push(self, data=None):
        return bytes(self.pool.begin(methods.PUSH, data or push_of(), PATIENCE).result())

    def close(self):
        self.go_on.set()
        self.pool.close()
        self.served.stop(None).wait()


@pytest.fixture
def served(tls_pair):
    made = Served()
    yield made
    made.close()


def threads():
    """Threads of connections, of all servers of this process."""
    return sum(each.name == "arrays" for each in threading.enumerate())


@pytest.mark.parametrize("count", [0, 1, 100, 2040, link.ROOM_BYTES // 8, 12_345, 700_000])
def test_requests_and_answers_of_any_size_arrive(served, count):
    data = push_of(count)
    assert served.push(data) == b"pushed"
    assert served.came == [data]
    pulled = served.pool.begin(methods.PULL, pull_of(count), PATIENCE).result()
    assert bytes(pulled) == bytes(BLOCK) * 16
    request = pb.ReadTableRequest()
    parts = list(served.pool.begin(methods.READ_TABLE, request, PATIENCE).parts())
    assert [bytes(each) for each in parts] == [bytes(BLOCK)] * 3


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"S",
        b"SHD1" + bytes(100),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\x50\x01",
        bytes(5000),
    ],
    ids=["nothing", "a byte", "plain", "http", "the beginning of a handshake", "zeros"],
)
@pytest.mark.parametrize("stays", [True, False])
def test_strangers_cost_nobody_anything(served, monkeypatch, said, stays):
    monkeypatch.setattr(hello, "HELLO_SECONDS", 0.3)
    monkeypatch.setattr(hello, "ALERT_SECONDS", 0.3)
    monkeypatch.setattr(plane, "FIRST_SECONDS", 0.3)
    before = threads()
    strangers = [socket.create_connection(served.place, PATIENCE) for _ in range(3)]
    for each in strangers:
        each.sendall(said)
        if not stays:
            each.close()
    for each in strangers if stays else ():
        with contextlib.suppress(ConnectionResetError):
            while each.recv(1 << 10):
                pass  # until the server ends it
        each.close()
    until("the ends of their threads", lambda: threads() <= before)
    monkeypatch.setattr(hello, "HELLO_SECONDS", PATIENCE)  # of a slow machine
    assert served.push() == b"pushed"
    assert served.came == [push_of()]


@pytest.mark.parametrize("count", [1, PREFIX_BYTES - 1, PREFIX_BYTES, PREFIX_BYTES + 9])
def test_a_request_of_which_the_rest_does_not_come_ends_its_connection(served, monkeypatch, count):
    monkeypatch.setattr(plane, "PART_SECONDS", 0.3)
    made = served.pool.connected()
    made.send([(prefix(methods.PUSH.kind, 100) + bytes(100))[:count]], count, PATIENCE)
    with pytest.raises(BrokenError, match=r"closed by the other end|EOF occurred"):
        made.read(1, time.monotonic() + PATIENCE)
    made.close()
    assert served.push() == b"pushed"
    assert served.came == [push_of()]


def test_a_reader_that_takes_nothing_is_given_up(served, monkeypatch):
    monkeypatch.setattr(plane, "ANSWER_SECONDS", 0.3)
    before = threads()
    made = served.pool.connected()
    for _ in range(20):
        sent(made, methods.PULL, pull_of())
    until("the end of its thread", lambda: threads() <= before)
    made.close()
    assert served.push() == b"pushed"


def test_an_answer_that_does_not_come_is_late_and_who_waits_is_ended_by_another_thread(served):
    made = served.pool.connected()
    sent(made, methods.ASSIGN_ROWS, b"")
    with pytest.raises(LateError, match="nothing came in time"):
        made.read(1, time.monotonic() + 0.2)
    ended = []

    def waits():
        with contextlib.suppress(BrokenError):
            made.read(1, time.monotonic() + PATIENCE)
        ended.append(True)

    thread = threading.Thread(target=waits)
    thread.start()
    made.shut()
    thread.join(PATIENCE)
    assert ended == [True]
    made.close()


def test_closing_ends_the_calls_of_all_threads(served):
    """Of those that wait for the server, receive blocks, or are between two calls."""
    begun, ends = threading.Semaphore(0), []
    data = {
        methods.PULL: pull_of(9000),
        methods.PUSH: push_of(9000),
        methods.ASSIGN_ROWS: bytes(90_000),
    }

    def calling(method):
        try:
            while True:
                if method is methods.ASSIGN_ROWS:
                    begun.release()
                served.pool.begin(method, data[method], PATIENCE).result()
                begun.release()
        except PeerUnavailableError as error:
            ends.append(error.reason)

    called = [methods.PULL, methods.PUSH, methods.ASSIGN_ROWS] * 2
    callers = [threading.Thread(target=calling, args=(each,)) for each in called]
    for each in callers:
        each.start()
    for _ in range(5 * len(callers)):
        assert begun.acquire(timeout=PATIENCE)
    served.pool.close()
    for each in callers:
        each.join(PATIENCE)
    assert len(ends) == len(callers)


CLIENT = """
import sys, time
from pathlib import Path
from shoal.proto import methods
from shoal.proto.identity import Caller, Identity
from shoal.proto.plane.client import Pool
from shoal.proto.plane.message import prefix
pool = Pool(sys.argv[1], "token/ps-0", Identity.load(Path(sys.argv[2]), Caller("j1", "worker", 3)))
link = pool.connected()
if sys.argv[3] == "asks":
    link.send([prefix(methods.PUSH.kind, 1 << 20) + bytes(1000)], 1016, 60.0)
if sys.argv[3] == "reads":
    data = bytes.fromhex(sys.argv[4])
    for _ in range(20):
        link.send([prefix(methods.PULL.kind, len(data)), data], 16 + len(data), 60.0)
print("there", flush=True)
time.sleep(1000)
"""


def saved(identity: Identity, folder):
    for name, pem in (
        ("ca.crt", identity.authority),
        ("tls.crt", identity.certificate),
        ("tls.key", identity.key),
    ):
        (folder / name).write_bytes(pem)


@pytest.mark.slow
@pytest.mark.parametrize("doing", ["waits", "asks", "reads"])
def test_a_caller_that_is_killed_costs_its_own_connection(served, tmp_path, tls_pair, doing):
    saved(served.worker, tmp_path)
    before = threads()
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", CLIENT, f"127.0.0.1:{served.port}", str(tmp_path), doing),
            pull_of().hex(),
        ],
        stdout=subprocess.PIPE,
        env={"SHOAL_TLS": tls_pair[1], "PYTHONPATH": ":".join(sys.path)},
    )
    try:
        assert process.stdout.readline() == b"there\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    until("the end of its thread", lambda: threads() <= before)
    assert served.push() == b"pushed"
    assert served.came == [push_of()]


SERVER = """
import sys, time
from pathlib import Path
from shoal.proto import methods
from shoal.proto.channels import serving
from shoal.proto.identity import Caller, Identity
identity = Identity.load(Path(sys.argv[1]), Caller("j1", "ps", 0))
handlers = {methods.PUSH: lambda _: time.sleep(1000), methods.READ_TABLE: lambda _: iter([b"x"])}
print(serving.serve(handlers, "127.0.0.1:0", 1, "token/ps-0", identity)[1], flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_server_that_is_killed_is_found_and_its_callers_live(tmp_path, tls_pair):
    """Those that wait for its answer, and those that write to it: without a signal that kills."""
    saved(AUTHORITY.issue("ps"), tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={"SHOAL_TLS": tls_pair[0], "PYTHONPATH": ":".join(sys.path)},
    )
    try:
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        pool = Pool(address, NAME, AUTHORITY.issue("worker", 3))
        parts = pool.begin(methods.READ_TABLE, pb.ReadTableRequest(), PATIENCE).parts()
        assert [bytes(each) for each in parts] == [b"x"]
        waiting, idle = pool.begin(methods.PUSH, push_of(), PATIENCE), pool.connected()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with pytest.raises(PeerUnavailableError):
        waiting.result()
    for _ in range(2):
        with pytest.raises(BrokenError):
            idle.send([bytes(16 << 20)], 16 << 20, PATIENCE)
    idle.close()
    pool.close()
