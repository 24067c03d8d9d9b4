"""What is known of pushes is summed up, and every answer stays the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.master.work.accounts.known_pushes import KnownPushes
from tests.examples import examples
from tests.master.pushing_world import EVERYTHING, REDIVIDED, RESUMED, PushingWorld
from tests.master.strategies import config


def lived(seed, steps, choices):
    """A job with all that it ever said of its servers' records and pushes."""
    changes = {"workers": "2", "servers": "2", "epochs": 40, "relaunch_limit": 10_000}
    world = PushingWorld(config(**changes), random.Random(seed).randrange, records=8)
    said = []
    for _ in range(steps):
        world.step(choices)
        copies = world.job.work.copies
        lost = {server: each.count for server, each in copies.lost.items() if each.count}
        ledger = world.job.work.ledger
        said.append((len(world.events), lost, copies.lacked, ledger, copies.pushes))
    for taken in world.job.checkpoints.kept.all:
        shards = [list(held.last.values()) for held in world.taken[taken.number]]
        said.append(world.job.work.copies.in_shards(taken.number, shards))
    return world, said


@pytest.mark.parametrize("choices", [EVERYTHING, RESUMED, REDIVIDED], ids=range(3))
@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 2000))
def test_what_is_summed_up_changes_no_answer(choices, seed, steps):
    world, said = lived(seed, steps, choices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KnownPushes, "forget", lambda *_: set())
        apart, expected = lived(seed, steps, choices)
    assert said == expected
    assert world.events == apart.events


def test_what_is_known_of_pushes_does_not_grow_with_deaths():
    changes = {"workers": "2", "servers": "2", "epochs": 4000, "relaunch_limit": 10_000}
    world = PushingWorld(config(**changes), random.Random(1).randrange, records=8)
    sizes, deaths = [], 0
    for turn in range(200):
        parts = [PushingWorld.work] * 30 + [PushingWorld.beat, PushingWorld.worker_dies]
        if turn % 20 == 19:
            parts += [PushingWorld.server_dies, *[PushingWorld.server_returns] * 9]
        for part in (*parts, *[PushingWorld.fence] * 2, *[PushingWorld.checkpoint] * 4):
            world.step((part,))
        deaths += PushingWorld.worker_dies in parts
        copies = world.job.work.copies
        known = copies._pushes
        met = sum(len(restart.met) for restart in copies._restarts.values())
        ranges = sum(len(each._ranges) for each in copies.lost.values())
        kept = len(known._fenced) + len(known._last_had) + len(known._over)
        taken_back = len(world.job.work.taken_back)
        sizes.append(kept + len(known._acknowledged) + met + ranges + taken_back)
    assert deaths == 200
    assert sum(each.count for each in copies.lost.values()) > 0
    assert max(sizes) < 100  # of each death three stayed, and more
