"""The servers of a job without processes, and what they hold."""

import threading
from pathlib import Path

import numpy as np
import pytest

from shoal.checkpoints.folders import Checkpoint, begin, complete, folder_name
from shoal.files.storage import open_storage
from shoal.native import ids as native_ids
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.ps.model.gradients import Gradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.beginning import Beginning
from shoal.ps.saved.checkpoint import cut, write_shard
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.restoring import restore
from shoal.ps.saved.saved_rows import SavedRows

IDS = np.arange(-3000, 3000, dtype=np.int64) * 9973
SIZE, STATE = 11, 3


def spec(admit_after=1):
    adam = OptimizerSpec("adam").to_json()
    uniform = InitializerSpec("uniform").to_json()
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(
                name="items",
                dim=3,
                initializer=uniform,
                optimizer=adam,
                seed=1,
                admit_after=admit_after,
            ),
            pb.TableSpec(name="unused", dim=2, initializer=uniform, optimizer=adam, seed=2),
        ],
        trainable=[pb.VariableSpec(name="w", shape=[SIZE])],
        non_trainable=[pb.VariableSpec(name="mean", shape=[STATE])],
        dense_optimizer=adam,
    )


class Group:
    """The servers of a job, without processes."""

    def __init__(self, servers, admit_after=1):
        self.routing = Routing.even(servers)
        model = spec(admit_after)
        self.models = [
            ServerModel(model, i, servers, self.routing.slots(i)) for i in range(servers)
        ]
        self.pushes = [PushRegister() for _ in range(servers)]
        for model in self.models:
            model.dense.initialize(
                np.zeros(model.dense.elements, np.float32),
                np.ones(model.dense.state_elements, np.float32),
            )

    def push(self, sequence, ids=IDS, worker=0):
        identity = pb.PushIdentity(worker=worker, sequence=sequence)
        request = pb.PushRequest(identity=identity, task=7, records_done=sequence)
        owner = self.routing.owners[native_ids.slot_of(ids)]
        for server, model in enumerate(self.models):
            own = ids[owner == server]
            gradients = np.full((own.size, 3), 0.5, np.float32)
            dense = np.ones(model.dense.elements, np.float32) * (server + 1)
            change = np.full(model.dense.state_elements, 0.25, np.float32)
            with self.pushes[server].admit(request) as fresh:
                if fresh:
                    push = Gradients({0: (own, gradients)}, (dense, change), 0.1, 0, 0)
                    model.apply(push, model.ticket(push))

    def save(self, root, number):
        """Returns the checkpoint's folder."""
        attempt = begin(open_storage(str(root)), number, "job")
        shards = [
            write_shard(attempt, server, self.routing, model, cut(model, self.pushes[server]))
            for server, model in enumerate(self.models)
        ]
        complete(attempt, shards, {"position": number})
        return root / folder_name(number) if isinstance(root, Path) else None

    def content(self):
        """Rows with slots and headers by id, then the dense vectors with theirs."""
        rows = {}
        for model in self.models:
            for ids, values, slots, versions, uses in model.tables[0].export():
                parts = [values, *slots.values(), versions[:, None], uses[:, None]]
                joined = np.concatenate(parts, axis=1)
                rows.update(zip(ids.tolist(), map(tuple, joined.tolist()), strict=True))
        trainable = [
            np.concatenate([m.dense.block.values, *m.dense.block.slots.values()]).reshape(3, -1)
            for m in self.models
        ]
        state = np.concatenate([m.dense.state for m in self.models])
        return rows, np.concatenate(trainable, axis=1).tolist(), state.tolist()


def counted(models, table=0):
    """The uses of the ids that are counted and have no row, by id."""
    found = {}
    for model in models:
        for ids, _, uses in model.tables[table].export_counting():
            found.update(zip(ids.tolist(), uses.tolist(), strict=True))
    return found


def restored(root, number, servers):
    group = Group(servers)
    opened = Checkpoint(open_storage(str(root)), number)
    group.models = [
        restore(opened, server, group.routing, group.pushes[server], Progress())
        for server in range(servers)
    ]
    return group


def asked_once(location, server, servers, opened, model):
    """The saved rows of a server that was asked for its model once, before it could open them."""
    refused = threading.Event()

    def opened_then(url):
        assert refused.wait(60.0)
        return opened(url)

    saved = SavedRows(str(location), server, Routing.even(servers), Progress(), opened_then)
    rows = Beginning(saved)
    with pytest.raises(WireError, match=r"NOT_READY.*is to read"):
        rows.model(model)
    refused.set()
    return rows
