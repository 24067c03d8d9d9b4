"""Fences, and a new connection for each incarnation of a server, over real sockets."""

import threading

import pytest

from shoal.master.calls.fences import Fences, Said
from shoal.master.calls.server_work import ServerWork
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.job.instructions import FenceWorker
from shoal.master.shared_job import SharedJob
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.ids import ServerId, WorkerId
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import WireError
from tests.master.strategies import begun, exited, take, w
from tests.waiting import until
from tests.ways import Way

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
        self.has = [10, 10]  # by server, what it has of a worker: so many pushes for its index
        self.looks = 0
        self.before_end = lambda: None
        self.done, self.failures = {}, []
        self.ended = threading.Condition()
        self.asking = Fences(self.connections, self._look, self._fenced, self.failures.append)

    def _look(self):
        self.looks += 1
        return dict(self.places)

    def _fence(self, index, request):
        self.before_answer[index]()
        self.fences[index].append(request.worker)
        sequence = self.has[index] * request.worker + index
        return pb.FenceReply(sequence=sequence, task=3, records_done=4)

    def _fenced(self, fence, said):
        self.before_end()
        places = self.places
        if any(places[each].incarnation != said[each].incarnation for each in said):
            return False
        with self.ended:
            self.done[fence.worker.index] = [each.push for each in said.values()]
            self.ended.notify_all()
        return True

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
    servers.fence(range(50))
    until("server 0 to hear of all", lambda: len(servers.fences[0]) == 50)
    assert not servers.done
    assert servers.fences[1] == []
    servers.places[ServerId(1)] = Place(gone.address, 1)
    servers.wait_for(range(50))
    assert sorted(servers.fences[1]) == list(range(50))
    assert servers.done == {worker: pushed(worker) for worker in range(50)}


@pytest.mark.parametrize("noticed", [True, False])
def test_what_a_server_said_before_it_died_is_no_answer(servers, noticed):
    """1. server 0 answers, while server 1 is away; 2. it dies, and comes back without all that it
    had; 3. server 1 is back. noticed: that it was away for a while was seen."""
    back, gone = servers.places[ServerId(0)], servers.places[ServerId(1)]
    servers.places[ServerId(1)] = Place(gone.address, None)
    servers.fence([5])
    until("server 0's answer", lambda: ServerId(0) in answers(servers))
    servers.has[0] = 3
    if noticed:
        servers.places[ServerId(0)] = Place(back.address, None)
        until("its answer to be dropped", lambda: ServerId(0) not in answers(servers))
    servers.places[ServerId(0)] = Place(back.address, 1)
    servers.places[ServerId(1)] = Place(gone.address, 1)
    servers.wait_for([5])
    assert servers.done == {5: [AppliedPush(3 * 5, 3, 4), AppliedPush(10 * 5 + 1, 3, 4)]}
    assert servers.fences == [[5, 5], [5]]


def answers(servers):
    """The servers whose answers to the one fence under way are there."""
    pending = list(servers.asking._pending.values())
    return {server for asked in pending for server in list(asked.answers)}


def test_a_server_that_comes_back_when_all_have_answered_is_asked_again(servers):
    """The answers are complete, and before the job takes them a server registers."""

    def registers():
        servers.before_end = lambda: None
        servers.has[1] = 2
        servers.places[ServerId(1)] = Place(servers.places[ServerId(1)].address, 1)

    servers.before_end = registers
    servers.fence([5])
    servers.wait_for([5])
    assert servers.done == {5: [pushed(5)[0], AppliedPush(2 * 5 + 1, 3, 4)]}
    assert servers.fences == [[5], [5, 5]]


def test_the_job_takes_no_answer_of_an_incarnation_that_is_over():
    job = begun(DataDescribed(training=(Source("t", 20),)), servers="2")
    task = take(job, w(0))
    job.process_exited(exited(w(0)), 1.0)
    job.process_exited(exited(ServerId(1)), 1.0)
    job.server_registered(ServerId(1), 1, "host:9", 2.0)
    work = ServerWork(SharedJob(job, clock=lambda: 3.0), threading.Event())
    fence, member = FenceWorker(w(0), 0), job.members.workers[w(0)]
    said = {ServerId(each): Said(0, AppliedPush(10, task.id, 10)) for each in range(2)}
    assert not work.fenced(fence, said)
    assert not member.fenced
    assert work.fenced(fence, said | {ServerId(1): Said(1, AppliedPush(0, 0, 0))})
    assert member.fenced or member.incarnation == 1
    assert job.work.ledger.trained_once == 0
    work.close()
    work.close_connections()


def test_an_answer_costs_no_look_at_all_servers(servers, monkeypatch):
    """Looks are for a new fence and for its last answer; one more is at the beginning."""
    monkeypatch.setattr("shoal.master.calls.fences.ASK_SECONDS", PATIENCE)
    servers.fence(range(40))
    servers.wait_for(range(40))
    assert servers.looks <= 2 * 40 + 1


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


class Address(Way):
    """One address for processes that follow one another, as a pod's name is.

    The connections to the one before stay open, and nobody answers on them.
    """

    def passes(self, size, answers, target):
        return target == self.target


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


def test_a_server_that_cannot_say_how_it_is_leaves_the_others_heard():
    def broken(_):
        raise MemoryError("no more")

    connections, running, places = ServerConnections(""), [], {}
    try:
        for index, handler in enumerate((broken, lambda _: pb.ServerStatus(version=7))):
            grpc_server, port = serving.serve({methods.STATUS: handler}, "127.0.0.1:0", 1)
            running.append(grpc_server)
            places[ServerId(index)] = Place(f"127.0.0.1:{port}", 0)
        found = list(connections.statuses(places, NOBODY))
        assert [(server.index, status.version) for server, status in found] == [(1, 7)]
    finally:
        connections.close()
        for each in running:
            each.stop(None).wait()
