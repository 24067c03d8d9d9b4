"""What the job says of every server's records is what they have, whoever dies and when."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.master.pushing_world import EVERYTHING, PushingWorld
from tests.master.strategies import config


def run(seed, steps, **changes):
    values = {"num_workers": 2, "num_ps": 2, "num_epochs": 2, "relaunch_limit": 1000}
    draw = random.Random(seed).randrange
    world = PushingWorld(config(**(values | changes)), draw)
    for _ in range(steps):
        world.step(EVERYTHING)
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
