"""The master asks all processes where their threads stand, and says who does not answer."""

import threading

import pytest

from shoal.base.modules.stacks import process_stacks
from shoal.master.calls.stacks import Stacks
from shoal.master.job.events import JobBegun
from shoal.master.job.job import Job
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import WireError
from tests.master.strategies import begun, config, exited, w

NOTHING = pb.ProcessStacks()


@pytest.fixture
def server():
    """The address of a server that tells its stacks, as a server of a job does."""
    made, port = serving.serve(
        {
            methods.GET_STACKS: lambda request: process_stacks("ps-0"),
        },
        "127.0.0.1:0",
        2,
    )
    yield f"127.0.0.1:{port}"
    made.stop(None).wait()


@pytest.fixture
def asked(server):
    """A job with a server that answers and two workers, and what asks them."""
    made = []

    def make(patience):
        job = begun(DataDescribed(training=(Source("t", 20),)), workers="2")
        job.members.servers[ServerId(0)].address = server
        stacks = Stacks(SharedJob(job), patience=patience)
        made.append(stacks)
        return job, stacks

    yield make
    for stacks in made:
        stacks.close()


def beat(stacks, worker, told=NOTHING):
    """A heartbeat of a worker, as master/service.py hears it; returns the question."""
    request, reply = pb.HeartbeatRequest(worker=worker, stacks=told), pb.HeartbeatReply()
    stacks.heard(Start(w(worker), 0), request, reply)
    return reply.stacks_wanted


def answer(stacks, worker):
    """Beat until the worker is asked, and answer."""
    while not (question := beat(stacks, worker)):
        pass
    assert beat(stacks, worker, process_stacks("worker", 0, question)) == 0


def test_workers_answer_with_their_heartbeats_and_a_silent_one_is_named(asked):
    _, stacks = asked(patience=60.0)
    found = []
    asking = threading.Thread(target=lambda: found.extend(stacks.of()))
    asking.start()
    for worker in (0, 1):
        answer(stacks, worker)
    asking.join()
    assert [each.process for each in found] == ["master", "ps-0", "worker-0", "worker-1"]
    assert not any(each.problem for each in found)
    assert all(each.threads for each in found)
    # Nobody asks any more.
    assert beat(stacks, 0) == 0


def test_who_does_not_answer_is_told_beside_the_others(asked):
    job, stacks = asked(patience=0.05)
    found = {each.process: each for each in stacks.of()}
    assert found["ps-0"].threads
    assert found["worker-1"].problem == "no heartbeat within 0.05 s"
    # Neither is a stale answer taken for that to a later question.
    job.on(exited(w(1)), 3.0)
    (gone,) = stacks.of("worker", 1)
    assert (gone.process, gone.threads) == ("worker-1", 0)
    assert gone.problem in ("it has ended", "it is being started", "it was not started yet")


def test_an_answer_to_an_older_question_is_not_taken(asked):
    _, stacks = asked(patience=60.0)
    askers = [threading.Thread(target=stacks.of, args=("worker", 0)) for _ in range(2)]
    askers[0].start()
    while not (first := beat(stacks, 0)):
        pass
    askers[1].start()
    while (second := beat(stacks, 0)) == first:
        pass
    assert beat(stacks, 0, process_stacks("worker", 0, first)) == second
    assert beat(stacks, 0, process_stacks("worker", 0, second)) == 0
    for asker in askers:
        asker.join()  # the newer answer is one to both


def test_a_process_that_the_job_does_not_have_is_refused(asked):
    _, stacks = asked(patience=0.05)
    for role, index, told in (
        ("worker", 2, "no worker-2: it has 2 workers"),
        ("ps", 1, "no ps-1: it has 1 server"),
        ("master", 1, "one master"),
        ("client", 0, "role must be master, ps or worker, not 'client'"),
    ):
        with pytest.raises(WireError, match=told):
            stacks.of(role, index)


def test_what_is_being_started_is_not_asked():
    job = Job(config())
    job.on(JobBegun(), 0.0)
    stacks = Stacks(SharedJob(job), patience=60.0)
    master, server, *_ = stacks.of()
    assert not master.problem
    assert (server.process, server.problem) == ("ps-0", "it is being started")
    stacks.close()


def test_who_asks_does_not_hold_up_the_end_of_the_job(asked):
    _, stacks = asked(patience=60.0)
    asker = threading.Thread(target=stacks.of, args=("worker", 0))
    asker.start()
    while not beat(stacks, 0):
        pass
    stacks.close()
    asker.join()


def test_so_many_may_ask_that_threads_are_left_for_the_job(asked):
    _, stacks = asked(patience=60.0)
    askers = [threading.Thread(target=stacks.of, args=("worker", 0)) for _ in range(4)]
    for asker in askers:
        question = beat(stacks, 0)
        asker.start()
        while beat(stacks, 0) == question:
            pass
    with pytest.raises(WireError, match="answers 4 questions for stacks already"):
        stacks.of()
    stacks.close()
    for asker in askers:
        asker.join()
    assert stacks.of("master")[0].process == "master"
