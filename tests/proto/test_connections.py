"""Connections of the data plane: very many, cut in the middle of an answer, closed under load."""

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.channels.circuit import Circuit
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.plane import client, hello, link, server
from shoal.proto.plane.client import Pool
from shoal.proto.wire.frames import Pieces
from shoal.proto.wire.open_files import allow_open_files
from shoal.proto.wire.transport import arrays_address
from tests.ps.caller import Caller
from tests.ways import Way

PATIENCE = 120.0
FEW_FILES = 256

SERVER = """
import json, resource, sys, threading
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (%d, most))
from shoal.proto import methods
from shoal.proto.channels import serving
from shoal.proto.memory import keep_freed_memory
from shoal.proto.wire.open_files import allow_open_files
from shoal.proto.plane import hello, server as plane
allow_open_files()
keep_freed_memory()
hello.HELLO_SECONDS = plane.FIRST_SECONDS = plane.SILENT_SECONDS = plane.SLOW_SECONDS = %g
server, port = serving.serve({methods.PUSH: lambda frame: b"pushed"}, "127.0.0.1:0", 1)
print(json.dumps(port), flush=True)
sys.stdin.read()
"""


def status(process, name):
    """A number of /proc: kilobytes or threads."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def test_the_limit_of_open_files_is_raised_and_never_lowered():
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allow_open_files() >= now
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == most
    assert allow_open_files() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.slow
def test_a_thousand_connections_cost_little_memory_each(monkeypatch):
    """All are made at the same time and kept, by a server that began with few open files."""
    count = 1000
    monkeypatch.setattr(hello, "HELLO_SECONDS", PATIENCE)  # of a slow machine
    if allow_open_files() < count + 100:
        pytest.skip("this system does not let a process open 1,100 files")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER % (FEW_FILES, PATIENCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pools = []
    try:
        address = f"127.0.0.1:{json.loads(process.stdout.readline())}"
        first = Pool(address, "", None)
        pools.append(first)
        assert first.begin(methods.PUSH, b"x", PATIENCE).result() == b"pushed"
        threads, kilobytes = status(process, "Threads"), status(process, "VmRSS")

        def push(_):
            pool = Pool(address, "", None)
            pools.append(pool)
            return bytes(pool.begin(methods.PUSH, bytes(1000), PATIENCE).result())

        with ThreadPoolExecutor(100) as together:
            assert set(together.map(push, range(count))) == {b"pushed"}
        assert status(process, "Threads") == threads + count
        assert (status(process, "VmRSS") - kilobytes) / count < 100
        for each in pools[1:]:
            each.close()
        end = time.monotonic() + PATIENCE
        while status(process, "Threads") > threads and time.monotonic() < end:
            time.sleep(0.05)
        assert status(process, "Threads") == threads
    finally:
        for each in pools:
            each.close()
        process.communicate("")


@pytest.fixture
def crowded(connect, monkeypatch):
    """A server with as many strangers as there may be, and one who comes after them."""
    monkeypatch.setattr(server, "STRANGERS", 2)
    monkeypatch.setattr(server, "FIRST_SECONDS", PATIENCE)
    monkeypatch.setattr(server, "SLOW_SECONDS", PATIENCE)
    monkeypatch.setattr(hello, "HELLO_SECONDS", PATIENCE)  # of a slow machine
    serving_, port = serving.serve({methods.PUSH: lambda frame: b"pushed"}, "127.0.0.1:0", 1)
    address = f"127.0.0.1:{port}"
    host, _, place = arrays_address(address).rpartition(":")
    strangers = [socket.create_connection((host, int(place)), PATIENCE) for _ in range(2)]
    answers = []

    def push():
        answers.append(connect(address, patience=0.0).call(methods.PUSH, b"x"))

    thread = threading.Thread(target=push)
    yield strangers, thread, answers
    for each in strangers:
        each.close()
    serving_.stop(None).wait()


def test_a_stranger_that_says_nothing_gives_way_to_another_one(crowded):
    strangers, thread, answers = crowded
    thread.start()
    thread.join(PATIENCE)
    assert answers == [b"pushed"]
    assert strangers[0].recv(1) == b""


def test_who_comes_while_strangers_say_who_they_are_waits_for_a_place(crowded):
    strangers, thread, answers = crowded
    for each in strangers:
        each.sendall(b"S")
    thread.start()
    thread.join(1.0)
    assert not answers
    strangers[0].close()
    thread.join(PATIENCE)
    assert answers == [b"pushed"]


def test_of_slow_strangers_one_gives_way_that_has_come_from_where_most_do(monkeypatch):
    pairs = [socket.socketpair() for _ in range(4)]
    made = []
    for (ours, theirs), host in zip(pairs, ("a", "b", "b", "c"), strict=True):
        theirs.sendall(b"S")
        made.append(server._Stranger(ours, (host, 1)))
        made[-1].since -= server.SLOW_SECONDS + 1
    assert server._giving_way(made) is made[1]
    made[1].since = time.monotonic()
    assert server._giving_way(made) is made[2]
    made[2].since = time.monotonic()
    assert server._giving_way(made[1:3]) is None
    for each in [*sum(pairs, ()), *(one.handle for one in made)]:
        each.close()


def test_a_server_without_memory_for_a_connection_takes_the_next_one(connect, monkeypatch, caplog):
    whole, failed = server._Stranger, []

    def failing(*arguments):
        if len(failed) < 3:
            failed.append(arguments)
            raise MemoryError
        return whole(*arguments)

    monkeypatch.setattr(server, "_Stranger", failing)
    serving_, port = serving.serve({methods.PUSH: lambda frame: b"pushed"}, "127.0.0.1:0", 1)
    assert connect(f"127.0.0.1:{port}", patience=PATIENCE).call(methods.PUSH, b"x") == b"pushed"
    assert len(failed) == 3
    assert caplog.text.count("no connection can be taken") == 1
    serving_.stop(None).wait()


def test_a_request_that_no_server_takes_is_refused_where_it_is_made(connect, monkeypatch):
    monkeypatch.setattr(client, "MAXIMUM_MESSAGE_BYTES", 1000)
    connection = connect("127.0.0.1:1", patience=PATIENCE)  # nobody is there: nobody is asked
    with pytest.raises(WireError, match="Push of 1001 bytes, at most 1000 can be sent") as error:
        connection.call(methods.PUSH, bytes(1001))
    assert error.value.kind == pb.BAD_REQUEST


def test_a_peer_that_takes_nothing_is_found_before_the_deadline(monkeypatch):
    """The system gives up; of a machine that has vanished it hears nothing, either."""
    assert client.UNTAKEN_MILLISECONDS == 30_000
    monkeypatch.setattr(client, "UNTAKEN_MILLISECONDS", 500)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        port = silent.getsockname()[1]
        made = link.Link(client._open(f"127.0.0.1:{port}", PATIENCE))
        try:
            with pytest.raises(link.BrokenError, match="timed out") as error:
                made.send([bytes(64 << 20)], 64 << 20, 20 * PATIENCE)
            assert not isinstance(error.value, link.LateError)
        finally:
            made.close()


class Cutter(Way):
    """A way to a server's address for arrays that lets so many bytes of answers through.

    left: bytes until all connections are ended, once; None for no end. cuts: how often that was.
    """

    def __init__(self, target):
        self.left, self.cuts = None, 0
        self._lock = threading.Lock()
        host, _, port = target.rpartition(":")
        super().__init__((host, int(port)))

    def passes(self, size, answers, target):
        if not answers:
            return True
        with self._lock:
            if self.left is None:
                return True
            self.left -= size
            if self.left >= 0:
                return True
            self.left = None
            self.cuts += 1
        self.end()
        return None


@pytest.fixture
def cutter(monkeypatch):
    """Have calls to a server go through a Cutter."""
    made = []

    def to(address):
        cut = Cutter(arrays_address(address))
        made.append(cut)
        monkeypatch.setattr(client, "arrays_address", lambda _: cut.address)
        return cut

    yield to
    for each in made:
        each.close()


@pytest.fixture
def cut_off(cluster, cutter):
    """(a server, the way to it, who calls it and is registered)."""
    made = cluster(1)
    cut = cutter(made.addresses[0])
    circuit = Circuit("a server", lambda: made.addresses[0], made.addresses[0])
    try:
        caller = Caller(circuit)
        caller.register()
        caller.initialize(np.zeros(5), np.zeros(2))
        yield made.servers[0], cut, caller
    finally:
        circuit.close()


def test_an_answer_that_is_cut_between_its_blocks_is_asked_for_again(cut_off):
    """Rows of several blocks: the first answer ends in its third block, the second is whole."""
    served, cut, caller = cut_off
    ids = np.arange(200_000)
    _, whole = caller.pull(ids)
    assert whole[0].nbytes > 3 * (512 << 10)
    cut.left = 1 << 20
    _, again = caller.pull(ids)
    np.testing.assert_array_equal(again[0], whole[0])
    assert (cut.cuts, served.status(pb.ServerStatusRequest()).pulls) == (1, 3)


@pytest.mark.parametrize("error", [WireError(pb.NOT_OWNER, "gone" * 100), ValueError("a bug")])
def test_an_answer_that_breaks_off_ends_its_connection(connect, error):
    """A refusal in the middle would be taken for the rest of the answer, which is not longer."""
    size = 100_000

    def breaks(frame):
        def blocks():
            yield np.zeros(size - 50, np.uint8)
            raise error

        return Pieces(size, blocks())

    serving_, port = serving.serve({methods.PULL: breaks}, "127.0.0.1:0", 1)
    try:
        with pytest.raises(PeerUnavailableError, match="closed by the other end"):
            connect(f"127.0.0.1:{port}", patience=0.0).call(methods.PULL, b"")
    finally:
        serving_.stop(None).wait()


def test_a_push_whose_answer_is_cut_off_is_applied_once(cut_off):
    served, cut, caller = cut_off
    ids = np.arange(1000)
    _, before = caller.pull(ids)
    cut.left = 0
    caller.push(ids, np.ones((ids.size, 3)), (np.zeros(5), np.zeros(2)))
    _, after = caller.pull(ids)
    np.testing.assert_array_equal(after[0], before[0] - 1)
    told = served.status(pb.ServerStatusRequest())
    assert (cut.cuts, told.version, told.duplicate_pushes) == (1, 1, 1)


def test_closing_ends_the_calls_of_all_threads_and_their_connections(connect):
    """Of those that wait for the server, receive blocks, or are between two calls."""
    go_on = threading.Event()
    block = np.zeros(1 << 18, np.uint8)

    def blocks(frame):
        return Pieces(16 * block.size, iter([block] * 16))

    def wait(frame):
        go_on.wait(PATIENCE)
        return b""

    handlers = {methods.PULL: blocks, methods.PUSH: lambda frame: b"", methods.ASSIGN_ROWS: wait}
    serving_, port = serving.serve(handlers, "127.0.0.1:0", 1)
    connection = connect(f"127.0.0.1:{port}", patience=0.0)
    begun, ends = threading.Semaphore(0), []

    def calling(method):
        try:
            while True:
                if method is methods.ASSIGN_ROWS:
                    begun.release()
                connection.call(method, bytes(100_000))
                begun.release()
        except PeerUnavailableError as error:
            ends.append(error.reason)

    called = [methods.PULL, methods.PUSH, methods.ASSIGN_ROWS] * 3
    threads = [threading.Thread(target=calling, args=(each,)) for each in called]
    for each in threads:
        each.start()
    try:
        for _ in range(5 * len(threads)):
            assert begun.acquire(timeout=PATIENCE)
        connection.close()
        for each in threads:
            each.join(PATIENCE)
        assert len(ends) == len(threads)
    finally:
        go_on.set()
        serving_.stop(None).wait()
    assert link.ROOM_BYTES < 100_000  # so that requests were received in two ways
