"""What the job says of every server's records is what they have, whoever dies and when."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.master.job.events import GradientsLeftOut
from shoal.master.work.accounts.applied import AppliedPush, LastPush
from shoal.master.work.accounts.copies import Copies
from shoal.master.work.accounts.lease_copies import Lease
from shoal.master.work.ids import WorkerId
from shoal.master.work.units import Span, Task
from shoal.proto import shoal_pb2 as pb
from tests.examples import examples
from tests.master.pushing_world import EVERYTHING, REDIVIDED, RESUMED, PushingWorld
from tests.master.strategies import config


def run(seed, steps, choices=EVERYTHING, *, left=None, **changes):
    values = {"workers": "2", "servers": "2", "epochs": 2, "relaunch_limit": 1000}
    draw = random.Random(seed).randrange
    world = PushingWorld(config(**(values | changes)), draw, left=left)
    for _ in range(steps):
        world.step(choices)
    return world


@pytest.mark.parametrize("servers", [1, 2, 3])
@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 600))
def test_every_server_has_what_is_told_of_it(servers, seed, steps):
    world = run(seed, steps, servers=str(servers))
    world.finish()
    assert world.account() == []
    copies = world.job.work.copies
    assert copies.lacked == {}
    ledger = world.job.work.ledger
    assert (ledger.pending, ledger.failed) == (0, 0)
    world.job.work.board.check()


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 600))
@example(seed=149, steps=348)
def test_a_resumed_job_has_what_its_checkpoint_had_before_a_server_lost_it(seed, steps):
    world = run(seed, steps, RESUMED)
    world.finish()
    assert world.account() == []
    assert world.job.work.copies.lacked == {}
    world.job.work.board.check()


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 600))
def test_a_job_resumed_with_another_number_of_servers_has_what_it_says(seed, steps):
    world = run(seed, steps, REDIVIDED)
    world.finish()
    assert world.account() == []
    assert world.job.work.copies.lacked == {}
    world.job.work.board.check()


@pytest.mark.parametrize("choices", [EVERYTHING, RESUMED, REDIVIDED], ids=range(3))
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 300), left=st.integers(1, 8))
def test_records_of_which_feed_leaves_nothing_are_in_no_push_and_never_lost(
    choices, seed, steps, left
):
    world = run(seed, steps, choices, left=left)
    world.finish()
    assert world.account() == []
    assert world.job.work.copies.lacked == {}
    world.job.work.board.check()


def test_a_job_of_whose_records_feed_leaves_none_fails_and_says_so():
    world = run(0, 0, left=0)
    world.finish()
    failure = world.job.phases.failure
    assert failure.message.startswith("no record was trained: the model's feed left none of the 48")
    assert world.job.phases.returns == 0


def test_a_job_whose_minibatches_were_all_left_out_fails_and_says_so():
    world = run(0, 0, left=0)
    world.job.on(GradientsLeftOut(WORKER, 0, 4, 64, "the loss is nan"), 1.0)
    world.finish()
    expected = "no minibatch was trained: --nonfinite-gradients=skip left out all 4 of them"
    assert world.job.phases.failure.message.startswith(expected)


WORKER = WorkerId(0)


def trained(copies, task, start):
    """A worker has trained ten records with as many pushes, and has reported them."""
    span = Span("s", start, start + 10)
    lease = Lease(Task(task, pb.TRAIN, span), WORKER, 0)
    copies.begun(lease, 0.0)
    last = LastPush(WORKER, 0, 10 * task, task, 10)
    copies.acknowledged(WORKER, 0, last.sequence)
    lease.acknowledged = 10
    copies.reported(lease, 10, 1.0)
    return last


@pytest.mark.parametrize("settled", [True, False])
def test_what_a_server_lost_is_there_again_if_the_job_goes_on_from_before(settled):
    copies = Copies(2, tracks=True, retrain=False)
    if settled:
        last = trained(copies, 1, 0)
    copies.checkpoint_begun()
    if not settled:  # it ends between that and the cut
        last = trained(copies, 1, 0)
    copies.checkpoint_taken(1, [1])
    trained(copies, 2, 10)
    copies.restored(1, (), 0, meets=True)
    assert copies.lacked == {1: 20}
    shards = ((last,), (last,))
    [there] = copies.in_shards(1, shards)
    assert (there.kind, there.span) == ("trained", Span("s", 0, 10))
    copies.resumed(2, 1, shards, [there], 2.0)
    assert copies.differences() == []
    assert copies.in_shards(1, shards) == [there]


def test_what_a_server_lost_before_a_checkpoint_is_lost_in_it_too():
    copies = Copies(2, tracks=True, retrain=False)
    trained(copies, 1, 0)
    copies.restored(1, (), 0, meets=True)
    copies.met(1, LastPush(WORKER, 0, 10, 1, 10))
    copies.checkpoint_begun()
    copies.checkpoint_taken(1, [1])
    last = trained(copies, 2, 10)
    copies.checkpoint_begun()
    copies.checkpoint_taken(2, [1, 2])
    copies.resumed(2, 2, ((last,), (last,)), (), 2.0)
    assert copies.lacked == {1: 10}
    # All of it once more: it cannot lack more than there is.
    copies.restored(1, (), 0, meets=True)
    assert copies.lacked == {1: 20}


def resumed_with_repeats(retrain=True):
    """Copies of three servers, of which the last two have ten records more than count."""
    copies = Copies(3, tracks=True, retrain=retrain)
    copies.checkpoint_begun()
    copies.checkpoint_taken(1, [1])
    span = Span("s", 0, 10)
    copies.begun(Lease(Task(1, pb.TRAIN, span), WORKER, 0), 0.0)
    push = LastPush(WORKER, 0, 10, 1, 10)
    copies.resumed(3, 1, ((), (push,), (push,)), (), 2.0)
    return copies


@pytest.mark.parametrize("servers", [1, 2, 3, 4])
def test_what_servers_have_more_often_is_told_after_they_have_left(servers):
    copies = resumed_with_repeats()
    repeated = [("repeated", 1, 3, Span("s", 0, 10)), ("repeated", 2, 3, Span("s", 0, 10))]
    for count in (servers, 1, 4):
        copies.have_servers(count, range(count))
        found = [(d.kind, d.server, d.servers, d.span) for d in copies.differences()]
        assert found == repeated
    # What is trained since then is on each of them.
    trained(copies, 2, 10)
    assert len(copies.differences()) == 2


def test_what_a_server_lacks_is_told_after_it_has_left():
    copies = Copies(3, tracks=True, retrain=False)
    trained(copies, 1, 0)
    copies.restored(2, (), 0, meets=True)
    copies.met(2, LastPush(WORKER, 0, 10, 1, 10))
    assert copies.lacked == {2: 10}
    copies.have_servers(1, range(1))
    assert copies.lacked == {2: 10}
    # The rows are another server's now, and that one may lose them again, with all others.
    copies.restored(0, (), 0, meets=True)
    assert copies.lacked == {0: 10, 2: 10}


def told(copies):
    return {(d.kind, d.server, d.servers, d.span.start, d.span.end) for d in copies.differences()}


def test_what_a_server_lost_before_it_left_is_trained_again_once_the_lease_ends():
    copies = Copies(3, tracks=True, retrain=True)
    lease = Lease(Task(1, pb.TRAIN, Span("s", 0, 100)), WORKER, 0)
    copies.begun(lease, 0.0)
    lease.acknowledged = 10
    copies.restored(2, (), 0, meets=True)
    copies.met(2, LastPush(WORKER, 0, 1, 1, 10))
    copies.have_servers(2, range(2))
    lease.acknowledged = 100
    copies.acknowledged(WORKER, 0, 10)
    [piece] = copies.reported(lease, 100, 1.0)
    assert piece.span == Span("s", 0, 10)
    assert copies.lacked == {}


def test_what_a_server_that_has_left_lacked_is_in_no_checkpoint_since():
    copies = Copies(3, tracks=True, retrain=False)
    copies.checkpoint_begun()
    copies.checkpoint_taken(1, [1])
    push = trained(copies, 1, 0)
    copies.restored(2, (), 1, meets=True)
    copies.met(2, push)
    copies.have_servers(2, range(2))
    copies.checkpoint_begun()
    copies.checkpoint_taken(2, [1, 2])
    assert told(copies) == {("lost", 2, 3, 0, 10)}
    there = copies.in_shards(2, ((push,), (push,)))
    assert {each.kind for each in there} == {"touched"}  # so they are trained again
    copies.resumed(2, 2, ((push,), (push,)), there, 2.0)
    assert told(copies) == {("repeated", 0, 3, 0, 10), ("repeated", 1, 3, 0, 10)}


def test_what_a_server_that_has_left_had_more_often_is_told_after_a_resumption():
    copies = Copies(3, tracks=True, retrain=True)
    copies.checkpoint_begun()
    copies.checkpoint_taken(1, [1])
    lease = Lease(Task(1, pb.TRAIN, Span("s", 0, 100)), WORKER, 0)
    copies.begun(lease, 0.0)
    lease.acknowledged = 40
    copies.acknowledged(WORKER, 0, 4)
    last = [AppliedPush(4, 1, 40), AppliedPush(4, 1, 40), AppliedPush(6, 1, 60)]
    copies.fenced(WORKER, 0, last, 1.0)
    copies.have_servers(2, range(2))
    copies.checkpoint_begun()
    copies.checkpoint_taken(2, [1, 2])
    push = LastPush(WORKER, 0, 4, 1, 40)
    there = copies.in_shards(2, ((push,), (push,)))
    assert ("touched", Span("s", 40, 60)) in {(each.kind, each.span) for each in there}
    copies.resumed(2, 2, ((push,), (push,)), there, 2.0)
    assert told(copies) == {("repeated", 2, 3, 40, 60)}


def test_a_server_without_the_checkpoint_of_other_servers_lacks_all_that_is_in_it():
    copies = Copies(2, tracks=True, retrain=False)
    last = trained(copies, 1, 0)
    copies.checkpoint_begun()
    copies.checkpoint_taken(1, [1])
    copies.resumed(3, 1, ((last,), (last,)), (), 2.0)
    copies.restored(0, (), 1, meets=True)
    assert copies.lacked == {}
    copies.restored(2, (), 0, meets=True)
    assert copies.lacked == {2: 10}
    copies.compared(2, ())
    assert copies.lacked == {2: 10}
    # It has it again if all go back to that checkpoint.
    copies.resumed(2, 1, ((last,), (last,)), (), 3.0)
    assert copies.lacked == {}


def test_the_checkpoint_of_other_servers_has_nothing_that_was_trained_since():
    copies = Copies(2, tracks=True, retrain=False)
    last = trained(copies, 1, 0)
    copies.checkpoint_begun()
    copies.checkpoint_taken(1, [1])
    copies.resumed(3, 1, ((last,), (last,)), (), 2.0)
    trained(copies, 2, 10)
    [there] = copies.in_shards(1, ((last,), (last,)))
    assert (there.kind, there.span) == ("trained", Span("s", 0, 10))
    copies.resumed(3, 1, ((last,), (last,)), (), 3.0)
    assert copies.differences() == []


def test_what_is_lost_of_other_servers_differences_is_counted_by_parts():
    copies = Copies(2, tracks=True, retrain=False)
    last = trained(copies, 1, 0)
    # Server 1 of two had five records of it less, on its half of the rows.
    had = LastPush(WORKER, 0, 5, 1, 5)
    copies.restored(1, (had,), 0, meets=True)
    copies.checkpoint_begun()
    copies.checkpoint_taken(1, [1])
    copies.resumed(3, 1, ((last,), (had,)), (), 2.0)
    copies.restored(2, (), 0, meets=True)
    # The last third lacks all of it, the sixth before that of server 1's half what that lacked.
    lacks = {(d.server, d.servers, d.span.start, d.span.end) for d in copies.differences()}
    assert {d.kind for d in copies.differences()} == {"lost"}
    assert (3, 6, 5, 10) in lacks
    assert not any((server, servers) == (1, 2) for server, servers, *_ in lacks)
