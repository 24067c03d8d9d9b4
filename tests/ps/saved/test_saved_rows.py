"""What --restore-from names, read by the servers: each its own shard, whole or not at all."""

from typing import ClassVar

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.files.storage import LocalStorage, open_storage
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.ps.groups import IDS, Group, asked_once, spec
from tests.ps.restoring_server import PATIENCE, Restoring


class Counting(LocalStorage):
    """Keeps which parts of files are read."""

    read_parts: ClassVar[dict[tuple[str, int], int]] = {}  # of all folders opened

    def child(self, name):
        return Counting(self._folder / name)

    def read_part(self, name, start, size):
        assert (name, start) not in self.read_parts  # each byte once
        self.read_parts[name, start] = size
        return super().read_part(name, start, size)


@pytest.fixture
def folder(tmp_path):
    """A checkpoint by two servers, and what they hold."""
    group = Group(2)
    group.push(1)
    return group.save(tmp_path / "checkpoints", 3), group


def read(location, server, servers, model=None, opened=open_storage):
    """The shard of a server after its thread has ended: its model, or why there is none."""
    rows = asked_once(location, server, servers, opened, model or spec())
    rows._thread.join(PATIENCE)
    if rows.failure is not None:
        with pytest.raises(WireError, match="NOT_READY"):
            rows.model(model or spec())
        return rows.failure
    return rows.model(model or spec())


def values_of(models):
    rows = {}
    for model in models:
        for ids, values, slots, versions, _ in model.tables[0].export():
            assert not np.concatenate([*slots.values(), versions[:, None]], axis=1).any()
            rows.update(zip(ids.tolist(), map(tuple, values.tolist()), strict=True))
    dense = np.concatenate([model.dense.block.values for model in models])
    return rows, dense.tolist(), np.concatenate([model.dense.state for model in models]).tolist()


def test_servers_of_any_number_have_all_rows_and_dense_values_each_once(folder):
    root, group = folder
    expected = {}
    for model in group.models:
        for ids, values, *_ in model.tables[0].export():
            expected.update(zip(ids.tolist(), map(tuple, values.tolist()), strict=True))
    dense = np.concatenate([model.dense.block.values for model in group.models]).tolist()
    for servers in (1, 2, 3):
        models = [read(root, server, servers) for server in range(servers)]
        assert sum(len(model.tables[0]) for model in models) == IDS.size
        assert values_of(models) == (expected, dense, [1.25] * 3)


def test_a_server_reads_the_pages_of_its_own_slots_only_and_each_once(folder, monkeypatch):
    root, _ = folder
    found = []
    for server in range(2):
        monkeypatch.setattr(Counting, "read_parts", {})
        model = read(root, server, 2, opened=Counting)
        assert len(model.tables[0])
        found.append(set(Counting.read_parts))
    # Its own table's, of the file that the same server of that job wrote.
    assert {name[: len("server-0000")] for name, _ in found[0]} == {"server-0000"}
    assert {name[: len("server-0001")] for name, _ in found[1]} == {"server-0001"}


def other_dim(model):
    model.tables[0].dim = 4


def other_table(model):
    model.tables[0].name = "other"


def other_variable(model):
    model.trainable[0].name = "v"


def other_shape(model):
    model.non_trainable[0].shape[:] = [1, 3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_dim, "--restore-from: the model has table 'items' of dim 4, the checkpoint has 3"),
        (other_table, "table 'other' of dim 3, the checkpoint has no such table"),
        (other_variable, r"variable v has shape \(11,\) in the model, but is missing in the"),
        (other_shape, r"variable mean has shape \(1, 3\) in the model, but \(3,\) in the check"),
    ],
)
def test_another_model_is_refused_by_name(folder, change, words):
    model = spec()
    change(model)
    failure = read(folder[0], 0, 2, model)
    with pytest.raises(UserError, match=words):
        raise failure


def damage(root):
    """Flip a bit in the rows of server 0; returns the file."""
    (file,) = root.glob("server-0000.*.table-0000*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return file


@pytest.mark.slow
def test_a_server_at_its_first_start_ends_the_job_over_a_damaged_file(tmp_path, folder):
    """A real process: it registers, a worker names the model, and it finds the damage."""
    file = damage(folder[0])
    server = Restoring(tmp_path, again=False, saved=str(folder[0]))
    try:
        server.registered.get(timeout=PATIENCE)
        # Once: a second call may come when the server has ended.
        with pytest.raises(WireError, match=r"NOT_READY.*is to read"):
            server.call(methods.REGISTER, pb.RegisterRequest(model=spec()))
        told = server.failed.get(timeout=PATIENCE)
        assert server.process.wait(PATIENCE) == 2
    finally:
        server.close()
    assert told.failure.kind == pb.USER_ERROR
    assert told.failure.message.startswith(f"--restore-from: {file}: damaged")
    assert "Traceback" not in server.log.read_text()
