"""What the job says of every server's records is what they have, whoever dies and when."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.master.applied import LastPush
from shoal.master.copies import Copies
from shoal.master.ids import WorkerId
from shoal.master.work import Span, Task
from shoal.proto import shoal_pb2 as pb
from tests.master.pushing_world import EVERYTHING, RESUMED, PushingWorld
from tests.master.strategies import config


def run(seed, steps, choices=EVERYTHING, **changes):
    values = {"num_workers": 2, "num_ps": 2, "num_epochs": 2, "relaunch_limit": 1000}
    draw = random.Random(seed).randrange
    world = PushingWorld(config(**(values | changes)), draw)
    for _ in range(steps):
        world.step(choices)
    return world


@pytest.mark.parametrize("servers", [1, 2, 3])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 600))
def test_every_server_has_what_is_told_of_it(servers, seed, steps):
    world = run(seed, steps, num_ps=servers)
    world.finish()
    assert world.account() == []
    copies = world.job.flow.work.copies
    assert copies.lacked == {}
    ledger = world.job.flow.work.ledger
    assert (ledger.pending, ledger.failed) == (0, 0)
    world.job.flow.work.board.check()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 600))
@example(seed=149, steps=348)
def test_a_resumed_job_has_what_its_checkpoint_had_before_a_server_lost_it(seed, steps):
    world = run(seed, steps, RESUMED)
    world.finish()
    assert world.account() == []
    assert world.job.flow.work.copies.lacked == {}
    world.job.flow.work.board.check()


WORKER = WorkerId(0)


def trained(copies, task, start):
    """A worker has trained ten records with as many pushes, and has reported them."""
    span = Span("s", start, start + 10)
    copies.begun(WORKER, 0, Task(task, pb.TRAIN, span), 0.0)
    last = LastPush(WORKER, 0, 10 * task, task, 10)
    copies.acknowledged(WORKER, 0, last.sequence)
    copies.reported(task, 10, 10, 1.0)
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
    copies.restored(1, (), meets=True)
    assert copies.lacked == {1: 20}
    shares = ((last,), (last,))
    [there] = copies.in_shares(1, shares)
    assert (there.kind, there.span) == ("trained", Span("s", 0, 10))
    copies.resumed(2, 1, shares, [there], 2.0)
    assert copies.differences() == []
    assert copies.in_shares(1, shares) == [there]


def test_what_a_server_lost_before_a_checkpoint_is_lost_in_it_too():
    copies = Copies(2, tracks=True, retrain=False)
    trained(copies, 1, 0)
    copies.restored(1, (), meets=True)
    copies.met(1, LastPush(WORKER, 0, 10, 1, 10))
    copies.checkpoint_begun()
    copies.checkpoint_taken(1, [1])
    last = trained(copies, 2, 10)
    copies.checkpoint_begun()
    copies.checkpoint_taken(2, [1, 2])
    copies.resumed(2, 2, ((last,), (last,)), (), 2.0)
    assert copies.lacked == {1: 10}
    # All of it once more: it cannot lack more than there is.
    copies.restored(1, (), meets=True)
    assert copies.lacked == {1: 20}
