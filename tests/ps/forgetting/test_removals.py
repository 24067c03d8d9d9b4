"""Ids that were removed, of which a checkpoint tells."""

from dataclasses import replace

import numpy as np

from shoal.checkpoints.folders import Attempt, Checkpoint
from shoal.files.storage import LocalStorage, open_storage
from shoal.native.ids import slot_of
from shoal.proto.values.routing import Routing
from shoal.ps.forgetting import removals
from shoal.ps.forgetting.removals import Removal, owned_of
from shoal.ps.saved.checkpoint import cut, write_shard
from tests.ps.groups import Group
from tests.ps.model.test_lifecycle import Fleet

IDS = np.arange(100, dtype=np.int64)


def test_ids_of_slots_that_have_moved_are_left_out():
    owns = np.arange(16384) % 2 == 0
    some = [Removal(step, None, False, IDS[step::3].copy()) for step in range(3)]
    found = owned_of([*some, Removal(4, None, False, IDS[~owns[slot_of(IDS)]])], owns)
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


def test_a_shard_says_how_many_removed_ids_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(removals, "MOST", 120)
    fleet = Fleet(1, max_rows=100)
    (model,) = fleet.models
    kept = model.lifecycle.removals
    for step in range(1, 4):
        kept.add(0, Removal(step, None, True, IDS + step))
    assert kept.forgotten(0) == 200
    fleet.push(1, [1])
    fleet.save(tmp_path, 1)
    (shard,) = Checkpoint(open_storage(str(tmp_path)), 1).shards
    assert (shard["removed"], shard["forgotten"]) == ([100], [200])
    kept.saved(3)
    assert kept.forgotten(0) == 0
    fleet.save(tmp_path, 2)
    assert "forgotten" not in Checkpoint(open_storage(str(tmp_path)), 2).shards[0]
