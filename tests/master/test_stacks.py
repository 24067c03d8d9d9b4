"""The master asks all processes where their threads stand, and says who does not answer."""

import threading

import pytest

from shoal.base.stacks import process_stacks
from shoal.master.job.job import Job
from shoal.master.shared_job import SharedJob
from shoal.master.stacks import Stacks
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods, serving
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.strategies import begun, config, exited, w

NOTHING = pb.ProcessStacks()


@pytest.fixture
def server():
    """The address of a server that tells its stacks, as a server of a job does."""
    made, port = serving.serve(
        {
            methods.GET_STACKS: lambda request: process_stacks("ps-0"),
            methods.PROFILE: lambda request: pb.ProcessStacks(samples=round(request.seconds)),
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
    job.process_exited(exited(w(1)), 3.0)
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
    job.begin(0.0)
    stacks = Stacks(SharedJob(job), patience=60.0)
    master, server, *_ = stacks.of()
    assert not master.problem
    assert (server.process, server.problem) == ("ps-0", "it is being started")
    stacks.close()


def test_a_profile_is_of_one_process_and_beside_the_stacks(asked):
    _, stacks = asked(patience=60.0)
    assert stacks.profile("ps", 0, 7.0).samples == 7
    assert stacks.profile("master", 0, 0.1).samples
    found = []
    asking = threading.Thread(target=lambda: found.append(stacks.profile("worker", 0, 0.1)))
    asking.start()
    reply = pb.HeartbeatReply()
    while not reply.profile_wanted:
        stacks.heard(Start(w(0), 0), pb.HeartbeatRequest(), reply)
    assert (reply.profile_seconds, reply.stacks_wanted) == (0.1, 0)
    # A question for its stacks meanwhile is another one.
    looking = threading.Thread(target=stacks.of, args=("worker", 0))
    looking.start()
    answer(stacks, 0)
    looking.join()
    told = pb.ProcessStacks(samples=5, question=reply.profile_wanted)
    stacks.heard(Start(w(0), 0), pb.HeartbeatRequest(profile=told), reply)
    asking.join()
    assert (found[0].process, found[0].samples) == ("worker-0", 5)
    assert reply.profile_wanted == 0
    for which in (("", 0, 1.0), ("worker", 0, 0.0), ("worker", 0, 601.0)):
        with pytest.raises(WireError, match="a profile is of one process, over up to 600 seconds"):
            stacks.profile(*which)


def asked_for(stacks):
    """The profile that worker 0 is asked for; 0: none."""
    reply = pb.HeartbeatReply()
    stacks.heard(Start(w(0), 0), pb.HeartbeatRequest(), reply)
    return reply.profile_wanted


def test_who_asks_does_not_hold_up_the_end_of_the_job(asked):
    _, stacks = asked(patience=60.0)
    asker = threading.Thread(target=stacks.profile, args=("worker", 0, 600.0))
    asker.start()
    while not asked_for(stacks):
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
    for ask in (lambda: stacks.profile("ps", 0, 1.0), stacks.of):
        with pytest.raises(WireError, match="answers 4 questions for stacks and profiles already"):
            ask()
    stacks.close()
    for asker in askers:
        asker.join()
    assert stacks.profile("master", 0, 1.0).process == "master"


def test_a_second_profile_of_one_process_at_a_time_is_refused(asked):
    _, stacks = asked(patience=60.0)
    seconds = {}

    def profile(worker):
        return threading.Thread(target=stacks.profile, args=("worker", worker, 500.0 + worker))

    askers = [profile(worker) for worker in (0, 1)]
    for worker, asker in enumerate(askers):
        asker.start()
        reply = pb.HeartbeatReply()
        while not reply.profile_wanted:
            stacks.heard(Start(w(worker), 0), pb.HeartbeatRequest(), reply)
        seconds[worker] = reply.profile_seconds
    assert seconds == {0: 500.0, 1: 501.0}  # each its own
    with pytest.raises(WireError, match=r"another profile of worker-1 is under way: .* in \d+ s"):
        stacks.profile("worker", 1, 5.0)
    stacks.close()
    for asker in askers:
        asker.join()
    # Afterwards there is room for the next.
    assert stacks.profile("worker", 1, 5.0).problem == "the job ends"
