"""Fences, and a new connection for each incarnation of a server, over real sockets."""

import contextlib
import socket
import threading

import pytest

from shoal.master.applied import AppliedPush
from shoal.master.fences import Fences
from shoal.master.ids import ServerId, WorkerId
from shoal.master.instructions import FenceWorker
from shoal.master.servers import Place, ServerConnections
from shoal.proto import methods, serving
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

PATIENCE = 60.0
NOBODY = pb.JournalPosition()


class Servers:
    """Two servers that count fences; `places` is what the master knows of them."""

    def __init__(self):
        self.fences = [[], []]
        self.before_answer = [lambda: None, lambda: None]
        self.grpc, self.places = [], {}
        for index in range(2):
            server, port = serving.serve(
                {methods.FENCE: lambda request, index=index: self._fence(index, request)},
                "127.0.0.1:0",
                2,
            )
            self.grpc.append(server)
            self.places[ServerId(index)] = Place(f"127.0.0.1:{port}", 0)
        self.connections = ServerConnections("")
        self.done, self.failures = {}, []
        self.ended = threading.Condition()
        self.asking = Fences(
            self.connections, lambda: dict(self.places), self._fenced, self.failures.append
        )

    def _fence(self, index, request):
        self.before_answer[index]()
        self.fences[index].append(request.worker)
        return pb.FenceReply(sequence=10 * request.worker + index, task=3, records_done=4)

    def _fenced(self, fence, pushes):
        with self.ended:
            self.done[fence.worker.index] = pushes
            self.ended.notify_all()

    def fence(self, workers):
        for worker in workers:
            self.asking.submit(FenceWorker(WorkerId(worker), 0))

    def wait_for(self, workers):
        with self.ended:
            assert self.ended.wait_for(lambda: set(workers) <= self.done.keys(), PATIENCE)

    def close(self):
        self.connections.give_up_waiting()
        self.asking.close()
        self.connections.close()
        for server in self.grpc:
            server.stop(None).wait()


@pytest.fixture
def servers():
    made = Servers()
    yield made
    made.close()


def pushed(worker):
    return [AppliedPush(10 * worker + index, 3, 4) for index in range(2)]


def test_fences_of_many_workers_are_at_all_servers_at_once(servers):
    """Neither server answers before the other one was asked; and eight workers at a time."""
    together = threading.Barrier(2 * methods.THREADS[methods.Threads.CONTROL])
    servers.before_answer = [lambda: together.wait(PATIENCE)] * 2
    servers.fence(range(8))
    servers.wait_for(range(8))
    assert servers.done == {worker: pushed(worker) for worker in range(8)}
    assert not servers.failures


def test_a_server_that_is_not_there_is_not_called_and_holds_nothing_up(servers):
    """1. server 1 has died; 2. 50 workers are fenced: server 0 hears of all of them at once;
    3. server 1 has registered again, and says what it has: then, and not before, all is known."""
    gone = servers.places[ServerId(1)]
    servers.places[ServerId(1)] = Place("127.0.0.1:1", None)
    heard = threading.Event()
    servers.before_answer[0] = lambda: len(servers.fences[0]) == 49 and heard.set()
    servers.fence(range(50))
    assert heard.wait(PATIENCE)
    assert not servers.done
    assert servers.fences[1] == []
    servers.places[ServerId(1)] = Place(gone.address, 1)
    servers.wait_for(range(50))
    assert sorted(servers.fences[1]) == list(range(50))
    assert servers.done == {worker: pushed(worker) for worker in range(50)}


def test_a_server_that_refuses_at_first_is_asked_again(servers):
    tries = []

    def not_yet():
        tries.append(1)
        if len(tries) < 3:
            raise WireError(pb.NOT_READY, "not yet")

    servers.before_answer[1] = not_yet
    servers.fence([7])
    servers.wait_for([7])
    assert servers.done == {7: pushed(7)}
    assert servers.fences == [[7], [7]]


def test_a_server_that_never_was_there_has_had_no_push(servers):
    servers.places[ServerId(1)] = Place("", None)
    servers.fence([2])
    servers.wait_for([2])
    assert servers.done == {2: [pushed(2)[0], AppliedPush(0, 0, 0)]}


class Address:
    """One address for processes that follow one another, as a pod's name is.

    The connections to the one before stay open, and nobody answers on them.
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = None
        self._sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            self._sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(
                    target=self._copy, args=(one, other, self.target), daemon=True
                ).start()

    def _copy(self, one, other, target):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if target == self.target:
                    other.sendall(data)

    def close(self):
        self._listener.close()
        for each in self._sockets:
            each.close()


def test_the_next_incarnation_of_a_server_is_reached_at_once_at_the_same_address():
    """K8: a connection of the incarnation before may not know for long that it is gone."""
    name, server = Address(), ServerId(0)
    connections = ServerConnections("")
    running = []
    try:
        for incarnation in range(2):
            grpc_server, port = serving.serve(
                {methods.STATUS: lambda _, version=incarnation: pb.ServerStatus(version=version)},
                "127.0.0.1:0",
                1,
            )
            running.append(grpc_server)
            name.target = ("127.0.0.1", port)
            for place in (Place(name.address, None), Place(name.address, incarnation)):
                found = list(connections.statuses({server: place}, NOBODY))
            assert [status.version for _, status in found] == [incarnation]
    finally:
        connections.close()
        name.close()
        for each in running:
            each.stop(None).wait()
