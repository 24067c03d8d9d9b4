"""Ids that were removed, of which a checkpoint tells."""

from dataclasses import replace

import numpy as np

from shoal.checkpoints.folders import Attempt
from shoal.checkpoints.storage import LocalStorage
from shoal.native.ids import slot_of
from shoal.proto.routing import Routing
from shoal.ps.checkpoint import cut, write_shard
from shoal.ps.removals import Removal, owned_of
from tests.ps.groups import Group

IDS = np.arange(100, dtype=np.int64)


def test_ids_of_slots_that_have_moved_are_left_out():
    owns = np.arange(16384) % 2 == 0
    removals = [Removal(step, None, False, IDS[step::3].copy()) for step in range(3)]
    found = owned_of([*removals, Removal(4, None, False, IDS[~owns[slot_of(IDS)]])], owns)
    assert [each.step for each in found] == [0, 1, 2]
    kept = np.sort(np.concatenate([each.ids for each in found]))
    np.testing.assert_array_equal(kept, IDS[owns[slot_of(IDS)]])


def test_a_server_that_has_given_all_its_slots_away_writes_its_shard(tmp_path):
    group = Group(1)
    (model,), (pushes,) = group.models, group.pushes
    removed = [[Removal(1, None, False, IDS)]] * len(model.tables)
    at = replace(cut(model, pushes), removed=removed)
    routing = Routing(2, 2, np.ones(16384, np.uint16))
    attempt = Attempt(LocalStorage(tmp_path), 1, "0" * 16)
    write_shard(attempt, 0, routing, model, at)
    assert not [each for each in tmp_path.iterdir() if "removed" in each.name]
