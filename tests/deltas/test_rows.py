"""A follower's rows are those of the job after each delta, and whole while one is applied."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.deltas import delta as deltas
from shoal.deltas import shares
from shoal.deltas.rows import Rows
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from tests.deltas.history import IDS, History
from tests.deltas.published import write_model
from tests.deltas.test_reading import EACH, damage, folder_of, play

DTYPES = st.sampled_from(["float32", "bfloat16", "float16"])


def found_in(rows):
    """Of each table, id -> row as bytes."""
    found = []
    for table in rows.tables.values():
        found.append({})
        for ids, values, *_ in table.store.export():
            found[-1].update(zip(ids.tolist(), map(bytes, values), strict=True))
    return found


def rows_of(delta):
    return Rows(delta.model, delta.spec)


@given(st.lists(EACH, max_size=20), st.integers(0, 1000), DTYPES, st.booleans())
def test_a_follower_has_the_rows_of_the_job(tmp_path_factory, steps, seed, dtype, held):
    folder = tmp_path_factory.mktemp("live")
    history = History(folder, seed, dtype)
    play(history, steps)
    rows = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "HELD_BYTES", 1 << 20 if held else 0)
        for delta in shoal.deltas.read(folder):
            rows = rows or rows_of(delta)
            rows.apply(delta)
            rows.apply(delta)  # again: does nothing
    assert found_in(rows) == history.rows
    assert len(rows) == sum(map(len, history.rows))
    for table, mine, dim in zip("ab", history.rows, history.dims, strict=True):
        read = rows.table(table).lookup(np.arange(IDS))
        zeros = np.zeros(dim, np.float32).tobytes()
        assert [bytes(each) for each in read] == [mine.get(i, zeros) for i in range(IDS)]


def test_a_base_after_a_gap_leaves_nothing_of_before(tmp_path):
    history = History(tmp_path)
    history.push()
    history.publish()
    (first,) = shoal.deltas.read(tmp_path)
    rows = rows_of(first)
    rows.apply(first)
    for _ in range(5):
        history.sweep()
        history.publish()
        history.push()
    history.publish(base=True)
    *_, last = shoal.deltas.read(tmp_path)
    rows.apply(last)
    assert found_in(rows) == history.rows


def test_an_application_that_broke_off_is_made_good_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(deltas, "HELD_BYTES", 0)
    history = History(tmp_path)
    history.push(30)
    history.publish()
    (first,) = shoal.deltas.read(tmp_path)
    rows = rows_of(first)
    rows.apply(first)
    history.sweep(30)
    history.push(30)
    history.lose()
    history.publish()
    (second,) = shoal.deltas.read(tmp_path, after=1)
    (path,) = folder_of(history, 2).glob("server-0001*")
    good = path.read_bytes()
    damage(path)
    with pytest.raises(shoal.deltas.DamagedDeltaError):
        rows.apply(second)
    path.write_bytes(good)
    rows.apply(second)
    assert found_in(rows) == history.rows


def test_readers_meet_whole_rows_and_never_miss_one(tmp_path):
    """Ids 0 to 29 are in all deltas, removed and set again."""
    history = History(tmp_path, dims=(64, 2))
    for number in range(1, 21):
        for each in range(30):
            row = np.full(64, number, np.float32).tobytes()
            history.rows[0][each] = history.set[0][each] = row
            history.removed[0].add(each)
        history.publish(base=number % 5 == 0)
    begun = list(shoal.deltas.read(tmp_path, after=1))
    rows = rows_of(begun[0])
    rows.apply(begun[0])
    wrong, stop, looked = [], threading.Event(), threading.Event()

    def reads():
        while not stop.is_set():
            found = rows.table("a").lookup(np.arange(30))
            if (found != found[:, :1]).any() or (found == 0).any():
                wrong.append(found)
            looked.set()

    threads = [threading.Thread(target=reads) for _ in range(2)]
    for each in threads:
        each.start()
    for turn in range(20):
        for each in begun:
            each.manifest["number"] += len(begun) * (turn > 0)
            rows.apply(each)
            looked.clear()
            assert looked.wait(60)
    stop.set()
    for each in threads:
        each.join()
    assert not wrong


def test_an_id_without_a_row_reads_what_the_export_would_have(tmp_path):
    history = History(tmp_path)
    history.spec.tables[1].vocabulary = 10
    history.spec.tables[1].seed = 5
    history.model = write_model(history.root, history.spec)
    history.push()
    history.rows[1] = {}
    history.publish()
    (delta,) = shoal.deltas.read(tmp_path)
    delta.model["tables"][0]["default"] = [0.25, 0.25]
    rows = rows_of(delta)
    store = RowStore(3, OptimizerSpec("sgd"), InitializerSpec("uniform"), 5)
    wanted = store.lookup(np.arange(10))
    assert wanted.any()
    assert np.array_equal(rows.table("b").lookup(np.arange(10)), wanted)
    assert rows.table("b").lookup([-1, 10]).tolist() == [[0] * 3] * 2
    assert rows.table("a").lookup([[7], [8]]).tolist() == [[[0.25] * 2]] * 2
    assert rows.table("a").lookup(["seven"]).tolist() == [[0.25] * 2]


def test_what_cannot_be_looked_up_is_told(tmp_path):
    history = History(tmp_path)
    history.publish()
    (delta,) = shoal.deltas.read(tmp_path)
    rows = rows_of(delta)
    with pytest.raises(shoal.UserError, match="there is no table 'c'; there are a, b"):
        rows.table("c")
    with pytest.raises(shoal.UserError, match="ids of table 'a' must be integers or strings"):
        rows.table("a").lookup([0.5])
    assert rows.table("a").lookup([]).shape == (0, 2)
    delta.model["tables"][0]["default"] = [0.25, 0.5]
    with pytest.raises(shoal.deltas.DeltaError, match="table 'a' has a default row of several"):
        rows_of(delta)
    assert not rows.fits(delta.model, delta.spec)


def test_memory_stays_while_deltas_come(tmp_path):
    """Each delta sets half of the rows and removes the other half, which the next one sets."""
    history = History(tmp_path, dims=(16, 2))
    n = 50_000
    history.publish()
    (delta,) = shoal.deltas.read(tmp_path)
    rows, values = rows_of(delta), np.ones((n, 16), np.float32)
    sizes = []
    for number in range(2, 12):
        at = np.arange(n) + n * (number % 2)
        history.rows, history.set = [{}, {}], [{}, {}]
        pages = [shares.Page("rows", 0, ids=at, values=values)]
        pages.append(shares.Page("removed", 0, ids=np.arange(n) + n * (1 - number % 2)))
        delta._held = pages
        delta.manifest["number"] = number
        delta.whole = np.zeros(16384, bool)
        rows.apply(delta)
        assert len(rows) == n
        sizes.append(rows.memory_bytes())
    assert max(sizes[1:]) <= 1.05 * sizes[1]
