"""A cap is of the slots that a server has, whichever way it comes by its model."""

import numpy as np
import pytest

from shoal.checkpoints.folders import Checkpoint, begin, complete
from shoal.files.storage import open_storage
from shoal.native import ids as native_ids
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import SLOTS, Routing
from shoal.proto.wire import frames
from shoal.ps.forgetting.caps import share_of
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.checkpoint import cut, write_shard
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.recovery import Sources
from shoal.ps.saved.restoring import restore
from shoal.ps.saved.saved_rows import SavedRows
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.replay import from_beginning
from tests.ps.model.test_lifecycle import Server, spec

IDS = np.arange(6000, dtype=np.int64)
FEW = np.where(np.arange(SLOTS) < 3000, 0, 1).astype(np.uint16)
TABLES = {
    "came later": Routing(2, 2, Routing.even(2).owners, 1),
    "more than an even share": Routing(2, 2, FEW),
}


def saved(folder, before, most):
    """A checkpoint of two servers; returns the ids of the second one."""
    owner = before.owners[native_ids.slot_of(IDS)]
    attempt = begin(open_storage(str(folder)), 1, "job")
    shards = []
    for index in range(2):
        model = ServerModel(spec(max_rows=most), index, before.dense, before.slots(index))
        model.dense.initialize(np.zeros(0, np.float32), np.zeros(0, np.float32))
        Server(model).push(IDS[owner == index])
        shards.append(write_shard(attempt, index, before, model, cut(model, PushRegister())))
    complete(attempt, shards, {})
    return attempt, IDS[owner == 1]


def restarted(folder, attempt, now):
    """The second server, as its process starts again."""
    server = ParameterServer(1, now, sources=Sources(checkpoints=str(folder)))
    server.registration.restore(
        pb.RestoreReply(again=True, replay=True, checkpoints=[1], nonces=[attempt.nonce])
    )
    server.moves.settle()
    server.registration.settle()
    return server.model


@pytest.mark.parametrize("routing", TABLES.values(), ids=TABLES)
def test_a_server_that_is_started_again_removes_nothing_below_its_cap(tmp_path, routing):
    attempt, own = saved(tmp_path, routing, 7000)
    model = restarted(tmp_path, attempt, routing)
    assert len(model.tables[0]) == own.size <= share_of(7000, routing.slots(1))
    assert model.lifecycle.removed[0].evicted == 0


def test_rows_that_moved_away_take_no_place_of_those_that_stay(tmp_path):
    """They are in the shard still, and count against the smaller cap until they are removed."""
    before = Routing(2, 2, FEW)
    attempt, own = saved(tmp_path, before, 7000)
    owners = np.where(np.arange(SLOTS) < 12000, 0, 1).astype(np.uint16)
    stay = own[owners[native_ids.slot_of(own)] == 1]
    model = restarted(tmp_path, attempt, Routing(3, 2, owners))
    assert Server(model).rows() == set(stay.tolist())
    assert model.lifecycle.removed[0].evicted == 0


@pytest.mark.parametrize("routing", TABLES.values(), ids=TABLES)
def test_every_way_to_a_model_has_the_cap_of_the_slots(tmp_path, routing):
    of_table = spec(max_rows=7000)
    saved(tmp_path, Routing.even(2), 7000)
    nothing = frames.encode(pb.InitializeDenseRequest(), [np.zeros(0, np.float32)] * 2)
    registered, joined = (ParameterServer(1, routing) for _ in range(2))
    registered.registration.register(pb.RegisterRequest(model=of_table))
    joined.registration.join(of_table)
    checkpoint = SavedRows(
        str(tmp_path / "checkpoint-00000001"), 1, routing, Progress(), open_storage
    )
    opened = Checkpoint(open_storage(str(tmp_path)), 1)
    models = [
        registered.model,
        joined.model,
        checkpoint.read(of_table),
        restore(opened, 1, routing, None, Progress()),
        from_beginning(pb.LogBase(model=of_table, initial=bytes(nothing)), 1, routing),
    ]
    expected = share_of(7000, routing.slots(1))
    assert [model.lifecycle._caps.most(0)[0] for model in models] == [expected] * len(models)
