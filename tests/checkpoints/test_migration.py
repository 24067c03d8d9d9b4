"""Checkpoints that servers have written, migrated: what is in the new one, and what refuses it."""

import gc
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.checkpoints import contents
from shoal.checkpoints.contents import table_pieces
from shoal.checkpoints.folders import Checkpoint, folder_name
from shoal.checkpoints.formats import arrow
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.checkpoints.migration_terms import Described, Label, Wishes
from shoal.checkpoints.newest import checkpoint_at
from shoal.checkpoints.saved import SavedCheckpoint
from shoal.errors import UserError
from shoal.files.storage import open_storage
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import Routing
from shoal.ps.model.tables import ServerModel
from shoal.tools.migration import migration
from shoal.tools.migration.migration_plan import TablePlan, plan
from tests.examples import examples
from tests.ps.groups import IDS, STATE, Group, counted, restored, spec

UNIFORM = InitializerSpec("uniform").to_json()
W = tuple(Label("feature", "x", "", i, 0) for i in range(11))


def opened(folder, number=1):
    return Checkpoint(open_storage(str(folder)), number)


@pytest.fixture
def saved(tmp_path):
    group = Group(2)
    group.push(1)
    group.push(2, IDS[:50].copy())
    group.save(tmp_path / "old", 1)
    return opened(tmp_path / "old")


def model(**changes):
    """The model of the checkpoint, with changes of its first table."""
    made = spec()
    for name, value in changes.items():
        setattr(made.tables[0], name, value)
    return made


def migrated(saved, new, target, wishes=None, labels=W):
    """The checkpoint of a new model. labels: of its variable w."""
    old = Described(saved.model, {"w": W})
    made = plan(old, Described(new, {"w": labels}), wishes or Wishes())
    initial = {each.name: np.full(each.shape, 7, np.float32) for each in new.trainable}
    migration.migrate(saved, open_storage(str(target)), made, initial)
    found = checkpoint_at(str(target))
    contents.verify(found)
    return found


def rows(checkpoint, position=0):
    """id -> column -> value, of a table."""
    return {
        int(piece["id"][i]): {name: column[i].tolist() for name, column in piece.items()}
        for server in range(len(checkpoint.shards))
        for piece in table_pieces(checkpoint, server, position)
        for i in range(len(piece["id"]))
    }


def test_the_same_model_gives_the_same_checkpoint(saved, tmp_path):
    before = restored(tmp_path / "old", 1, 2)
    migrated(saved, model(), tmp_path / "new")
    after = restored(tmp_path / "new", 1, 2)
    assert after.content() == before.content()
    assert [each["step"] for each in opened(tmp_path / "new").shards] == [
        each["step"] for each in saved.shards
    ]
    # Onto another number of servers, too.
    assert restored(tmp_path / "new", 1, 3).content()[0] == before.content()[0]


def test_servers_that_came_later_have_no_dense_variables(tmp_path):
    group = Group(2)
    group.routing = Routing(2, 2, group.routing.owners, 1)
    slots = group.routing.slots
    group.models = [ServerModel(spec(), i, 1, slots(i)) for i in range(2)]
    for each in group.models:
        state = np.ones(each.dense.state_elements, np.float32)
        each.dense.initialize(np.zeros(each.dense.elements, np.float32), state)
    group.push(1)
    group.save(tmp_path / "old", 1)
    before = restored(tmp_path / "old", 1, 2)
    migrated(opened(tmp_path / "old"), model(), tmp_path / "new")
    assert restored(tmp_path / "new", 1, 2).content() == before.content()


def test_what_was_written_is_read_back(saved, tmp_path, monkeypatch):
    write = arrow.write_vectors

    def short(folder, name, vectors):
        return write(folder, name, {key: each[:-1] for key, each in vectors.items()})

    monkeypatch.setattr(arrow, "write_vectors", short)
    with pytest.raises(CheckpointError):
        migrated(saved, model(), tmp_path / "new")
    assert not [*(tmp_path / "new").iterdir()]


@pytest.mark.parametrize("read", [False, True])
def test_new_columns_are_0_or_those_of_rows_never_trained(saved, tmp_path, read):
    new = model(dim=5)
    old = Described(saved.model, {"w": W})
    # What reads the table tells which columns it may have.
    labels = (*W[:10], Label("table", "items", "", 0, 0))
    layouts = {"w": labels if read else W}
    made = plan(old, Described(new, layouts), Wishes(drop=frozenset({"x"})))
    migration.migrate(saved, open_storage(str(tmp_path / "new")), made, {})
    before, after = rows(saved), rows(opened(tmp_path / "new"))
    assert before.keys() == after.keys()
    table = new.tables[0]
    store = RowStore(
        5, OptimizerSpec.from_json(table.optimizer), InitializerSpec.from_json(UNIFORM), 1
    )
    ids = np.array(sorted(after), np.int64)
    untrained = store.lookup(ids, missing="initial")
    for id_, first in zip(ids.tolist(), untrained.tolist(), strict=True):
        assert after[id_]["values"][:3] == before[id_]["values"]
        assert after[id_]["values"][3:] == (first[3:] if read else [0.0, 0.0])
        assert after[id_]["slot:momentum"] == [*before[id_]["slot:momentum"], 0.0, 0.0]
        for name in ("version", "uses"):
            assert after[id_][name] == before[id_][name]


def test_columns_ids_and_tables_are_lost_where_that_is_accepted(saved, tmp_path):
    with pytest.raises(UserError, match=r"columns 2 to 2 of table 'items': --truncate"):
        migrated(saved, model(dim=2), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    accepting = Wishes(truncate=True)
    after = rows(migrated(saved, model(dim=2, vocabulary=9973 * 20), tmp_path / "new", accepting))
    before = rows(saved)
    assert sorted(after) == [9973 * i for i in range(20)]
    assert all(each["values"] == before[id_]["values"][:2] for id_, each in after.items())
    new = model()
    del new.tables[0]
    with pytest.raises(UserError, match="all rows of table 'items'"):
        migrated(saved, new, tmp_path / "other")
    found = migrated(saved, new, tmp_path / "other", Wishes(drop=frozenset({"items"})))
    assert [table.name for table in found.model.tables] == ["unused"]


def test_ids_that_are_counted_are_counted_on(tmp_path):
    group = Group(2, admit_after=3)
    group.push(1)
    group.push(2, IDS[:50].copy())
    group.push(3, IDS[:20].copy())
    group.save(tmp_path / "old", 1)
    saved = opened(tmp_path / "old")
    assert len(rows(saved)) == 20
    migrated(saved, model(admit_after=4, dim=5), tmp_path / "new")
    after = restored(tmp_path / "new", 1, 3)
    assert counted(after.models) == counted(group.models)
    assert len(counted(after.models)) == IDS.size - 20
    assert rows(opened(tmp_path / "new")).keys() == set(IDS[:20].tolist())
    # Of ids that no longer fit, the counts go with the rows.
    accepting = Wishes(truncate=True)
    few = migrated(saved, model(admit_after=3, vocabulary=9973 * 40), tmp_path / "few", accepting)
    assert sorted(counted(restored(tmp_path / "few", 1, 2).models)) == [9973 * i for i in range(40)]
    assert rows(few) == {}
    # Without admission no id is counted.
    every = migrated(saved, model(), tmp_path / "every")
    assert [sum(shard["counting"]) for shard in every.shards] == [0, 0]


def test_a_table_has_another_name_and_others_are_new(saved, tmp_path):
    new = model(name="goods")
    new.tables.insert(0, pb.TableSpec(name="shops", dim=4, initializer=UNIFORM))
    new.tables[0].optimizer = new.tables[1].optimizer
    found = migrated(saved, new, tmp_path / "new", Wishes(rename={"items": "goods"}))
    assert rows(found, 1) == rows(saved, 0)
    assert rows(found, 0) == {}
    # This is what --restore-from takes.
    taken = SavedCheckpoint(found)
    assert sum(len(ids) for ids, _ in taken.rows("goods", 3)) == IDS.size


def test_kernels_grow_and_slots_with_them(saved, tmp_path):
    new = model()
    new.trainable[0].shape[:] = [13]
    y = [Label("feature", "y", "", i, 0) for i in range(2)]
    labels = (*W[:4], *y, *W[4:])
    migrated(saved, new, tmp_path / "new", labels=labels)
    before = np.array(restored(tmp_path / "old", 1, 2).content()[1])
    group = Group(2)
    old, found = opened(tmp_path / "old"), opened(tmp_path / "new")
    values = SavedCheckpoint(old).dense()["w"]
    grown = SavedCheckpoint(found).dense()["w"]
    assert grown.tolist() == [*values[:4], 0, 0, *values[4:]]
    assert before.shape == (3, group.models[0].dense.elements * 2 + 1)
    moments = [
        np.concatenate([migration.dense_slices(each, server)["momentum"] for server in range(2)])
        for each in (old, found)
    ]
    assert moments[1].tolist() == [*moments[0][:4], 0, 0, *moments[0][4:]]


def test_variables_that_are_new_have_their_initial_values(saved, tmp_path):
    new = model()
    new.trainable.append(pb.VariableSpec(name="b", shape=[2, 2], offset=11))
    found = SavedCheckpoint(migrated(saved, new, tmp_path / "new")).dense()
    assert found["b"].tolist() == [[7, 7], [7, 7]]
    again = Wishes(reinitialise=frozenset({"w"}))
    found = SavedCheckpoint(migrated(saved, model(), tmp_path / "again", again)).dense()
    assert found["w"].tolist() == [7] * 11
    assert found["mean"].shape == (STATE,)


def test_from_a_folder_behind_a_url_to_another(saved, tmp_path):
    where = f"memory://{tmp_path}"
    migrated(saved, model(dim=4), f"{where}/first")
    first = checkpoint_at(f"{where}/first")
    assert rows(migrated(first, model(dim=4), f"{where}/second")) == rows(first)
    with pytest.raises(UserError, match="second is not empty"):
        migrated(first, model(dim=4), f"{where}/second")


floats = st.floats(0, 100, width=32)


@given(st.lists(st.lists(floats, min_size=4, max_size=4), min_size=1, max_size=5), st.booleans())
@settings(max_examples=examples(50))
def test_accumulators_become_their_mean_and_back(numbers, rowwise):
    """Adagrad to row-wise Adagrad and back."""
    kinds = ["adagrad", "rowwise_adagrad"]
    before, after = kinds if rowwise else kinds[::-1]
    width = 4 if rowwise else 1
    slots = np.array(numbers, np.float32)[:, :width]
    n = len(slots)
    given_rows = {
        "id": np.arange(n),
        "values": np.ones((n, 4), np.float32),
        "slot:accumulator": slots,
        "version": np.zeros(n, np.int64),
        "uses": np.ones(n, np.uint32),
    }
    optimizer = OptimizerSpec(after)
    table = pb.TableSpec(name="t", dim=4, optimizer=optimizer.to_json(), initializer=UNIFORM)
    sources = migration_sources(before, after)
    made = migration.changed(
        given_rows,
        table,
        TablePlan("t", 0, (), sources),
        RowStore(4, optimizer, InitializerSpec("uniform"), 0),
    )["slot:accumulator"]
    assert made.shape == (n, optimizer.slot_width(4))
    np.testing.assert_allclose(made.mean(1), slots.mean(1), rtol=1e-6)
    if not rowwise:
        assert (made == slots).all()


def migration_sources(before, after):
    tables = [
        pb.TableSpec(name="t", dim=4, initializer=UNIFORM, optimizer=OptimizerSpec(kind).to_json())
        for kind in (before, after)
    ]
    dense = OptimizerSpec("sgd").to_json()
    old, new = (Described(pb.ModelSpec(tables=[t], dense_optimizer=dense)) for t in tables)
    return plan(old, new, Wishes()).tables[0].slots


def test_a_damaged_source_is_named_and_nothing_is_left(saved, tmp_path):
    (file,) = (tmp_path / "old" / folder_name(1)).glob("server-0001.*.table-0000.arrow")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{file}: damaged"):
        migrated(saved, model(), tmp_path / "new")
    assert os.listdir(tmp_path / "new") == []


def test_a_folder_with_anything_in_it_stays_as_it_is(saved, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").touch()
    with pytest.raises(UserError, match=r"new is not empty \(mine\)"):
        migrated(saved, model(), tmp_path / "new")
    with pytest.raises(UserError, match=r"is not empty \(checkpoint-00000001\)"):
        migrated(saved, model(), tmp_path / "old")
    assert os.listdir(tmp_path / "new") == ["mine"]


KILLED = """
import os, signal, sys
from shoal.tools.migration import migration
from shoal.tools.migration.migration_plan import plan
from shoal.checkpoints.migration_terms import Described, Wishes
from shoal.checkpoints.folders import Checkpoint
from shoal.files.storage import open_storage

old, new, after = sys.argv[1], sys.argv[2], int(sys.argv[3])
source = Checkpoint(open_storage(old), 1)
seen = []
def told(count):
    seen.append(count)
    if len(seen) == after:
        os.kill(os.getpid(), signal.SIGKILL)
model = Described(source.model)
migration.migrate(source, open_storage(new), plan(model, model, Wishes()), {}, told)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_killed_migration_leaves_nothing_that_is_accepted(saved, tmp_path, after):
    """after: pages read. Each file of a shard has two pages, or one without rows."""
    new = tmp_path / "new"
    line = [sys.executable, "-c", KILLED, str(tmp_path / "old"), str(new), str(after)]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (new / folder_name(1)).is_dir()
    with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
        checkpoint_at(str(new))
    with pytest.raises(UserError, match="is not empty"):
        migrated(saved, model(), new)
    assert rows(migrated(saved, model(), tmp_path / "again")) == rows(saved)


def test_few_pages_are_in_memory_at_once(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(migration, "PAGE_BYTES", 4096)
    saved = migrated(saved, model(), tmp_path / "pages")
    living, most, read = set(), [0], [0]
    page_rows = migration.page_rows

    def counted(checkpoint, page):
        found = page_rows(checkpoint, page)
        if found is not None:
            key = object()
            living.add(key)
            weakref.finalize(found["values"], living.discard, key)
            read[0] += 1
            most[0] = max(most[0], len(living))
        return found

    monkeypatch.setattr(migration, "page_rows", counted)
    gc.disable()  # nothing may wait for it
    try:
        migrated(saved, model(dim=4), tmp_path / "new")
    finally:
        gc.enable()
    assert read[0] > 60
    # Of each file with rows the page that is written and the one that is read.
    assert most[0] <= 2 * len(saved.shards)
