"""Admission: an id has a row from its k-th push on, whatever the servers, restarts and restores."""

import collections
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.saved import open_saved
from shoal.files.storage import LocalStorage, open_storage
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.missing_rows import missing_row
from shoal.proto.values.routing import Routing
from shoal.ps.saved.beginning import Beginning
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.saved_rows import SavedRows
from tests.examples import examples
from tests.native.strategies import any_id
from tests.ps.groups import Group, counted, restored, spec
from tests.waiting import until

SOME_IDS = st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True)


def rows_of(models, table=0):
    return {
        int(row) for model in models for piece in model.tables[table].export() for row in piece[0]
    }


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(
    admit_after=st.integers(1, 5),
    servers=st.integers(1, 3),
    known=st.lists(any_id, min_size=12, max_size=12, unique=True),
    steps=st.lists(st.one_of(SOME_IDS, SOME_IDS, SOME_IDS, st.integers(1, 3)), max_size=30),
)
def test_the_admitted_ids_are_those_of_k_pushes(
    tmp_path_factory, admit_after, servers, known, steps
):
    """steps: pushes of some ids, and restorations onto so many servers."""
    group = Group(servers, admit_after)
    pushes = collections.Counter()
    root = None
    for sequence, step in enumerate(steps, 1):
        if isinstance(step, int):
            root = root or tmp_path_factory.mktemp("saved")
            group.save(root, sequence)
            group = restored(root, sequence, step)
        else:
            ids = np.array([known[place] for place in step], np.int64)
            group.push(sequence, ids)
            pushes.update(ids.tolist())
    assert rows_of(group.models) == {row for row, n in pushes.items() if n >= admit_after}
    assert counted(group.models) == {row: n for row, n in pushes.items() if n < admit_after}


def test_a_row_begins_with_its_initial_value_and_has_only_the_updates_from_then_on():
    """Rows that were admitted late are those of a job which never saw the pushes before."""
    late, plain = Group(2, admit_after=3), Group(2)
    ids = np.arange(50, dtype=np.int64)
    for sequence in (1, 2):
        late.push(sequence, ids)
        plain.push(sequence, ids[:0])
    for sequence in (3, 4):
        late.push(sequence, ids)
        plain.push(sequence, ids)
    admitted, expected = late.content()[0], plain.content()[0]
    # The last column is the use count, which has the pushes before, too.
    assert {row: each[:-1] for row, each in admitted.items()} == {
        row: each[:-1] for row, each in expected.items()
    }
    assert {each[-1] for each in admitted.values()} == {4}


def test_until_then_an_id_reads_the_default_row_in_training_too():
    group = Group(1, admit_after=2)
    model = group.models[0]
    ids = np.array([5, 6], np.int64)
    read = np.empty((2, 3), np.float32)
    for sequence in (1, 2):
        model.lookup(0, ids, read, training=True)
        assert (read == 0.0).all()  # the mean of what the initializer draws
        group.push(sequence, ids[:1])
    model.lookup(0, ids, read, training=True)
    assert (read[0] != 0.0).all()
    assert (read[1] == 0.0).all()


@pytest.mark.parametrize("vocabulary", [0, 9])
@pytest.mark.parametrize("frozen", [False, True])
def test_with_admission_training_reads_what_evaluation_reads(vocabulary, frozen):
    table = pb.TableSpec(vocabulary=vocabulary, frozen=frozen, admit_after=2)
    assert missing_row(table, training=True) == missing_row(table, training=False) == "default"
    table.admit_after = 1
    assert missing_row(table, training=False) == ("initial" if vocabulary else "default")
    assert (missing_row(table, training=True) == "initial") == (vocabulary > 0 or not frozen)


@pytest.mark.parametrize(("before", "after"), [(5, 2), (2, 5), (3, 1)])
def test_restore_from_judges_counted_ids_by_the_new_number_and_keeps_rows(tmp_path, before, after):
    draw = random.Random(before)
    group = Group(3, before)
    pushes = collections.Counter()
    for sequence in range(1, 8):
        ids = np.array(draw.sample(range(40), 12), np.int64)
        group.push(sequence, ids)
        pushes.update(ids.tolist())
    folder = group.save(tmp_path, 1)
    again = Group(2, after)
    for server in range(2):
        saved = SavedRows(str(folder), server, Routing.even(2), Progress(), open_storage)
        rows = Beginning(saved)
        again.models[server] = until("its rows", lambda rows=rows: ready(rows, spec(after)))
    had = {row for row, n in pushes.items() if n >= before}
    assert rows_of(again.models) == had
    assert counted(again.models) == {row: n for row, n in pushes.items() if row not in had}
    again.push(1, np.arange(50, dtype=np.int64))
    pushes.update(range(50))
    assert rows_of(again.models) == had | {row for row, n in pushes.items() if n >= after}


def ready(rows, model):
    """The model of saved rows; None while they are being read."""
    try:
        return rows.model(model)
    except Exception:
        if rows.failure is not None:
            raise rows.failure from None
        return None


def test_a_shard_has_a_file_of_counted_ids_only_where_there_are_any(tmp_path):
    group = Group(1, admit_after=2)
    group.save(tmp_path, 1)
    group.push(1)
    group.save(tmp_path, 2)
    none, some = (Checkpoint(LocalStorage(tmp_path), number).shards[0] for number in (1, 2))
    assert none["counting"] == [0, 0]
    assert some["counting"] == [6000, 0]
    assert [".counting-" in each["name"] for each in some["files"]] == [False, False, True] + 2 * [
        False
    ]
    assert len(none["files"]) == 4
    saved = open_saved(str(tmp_path))
    every = np.ones(1 << 14, bool)
    assert sum(ids.size for ids, _ in saved.counted("items", 3, every)) == 6000
    assert [*saved.counted("unused", 2, every)] == []
