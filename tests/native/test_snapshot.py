"""A snapshot is the store at one moment, whatever happens while it is read."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native.ids import SLOTS, slot_of
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from tests.examples import examples
from tests.native.strategies import id_arrays


def store(rows=20_000):
    made = RowStore(4, OptimizerSpec("adagrad"), InitializerSpec("uniform"), 3)
    ids = np.arange(rows, dtype=np.int64) * 7919
    made.update(ids, np.ones((rows, 4), np.float32), learning_rate=0.1, step=1)
    return made, ids


def content(pieces):
    ids, values, slots, versions, uses = (list(each) for each in zip(*pieces, strict=True))
    order = np.argsort(np.concatenate(ids))
    accumulators = np.concatenate([each["accumulator"] for each in slots])
    columns = [np.concatenate(each) for each in (ids, values)] + [accumulators]
    return [each[order] for each in (*columns, np.concatenate(versions), np.concatenate(uses))]


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_snapshot_under_updates_inserts_removals_and_compaction():
    check_beside_changes(lambda made: made.snapshot(2048))


@pytest.mark.parametrize("parts", [1, 5, 16])
def test_a_snapshot_by_parts_of_the_slots_is_the_same(parts):
    part_of = (np.arange(SLOTS) * 7 % parts).astype(np.uint16)

    def pieces(made):
        for part, rows in made.snapshot_by(part_of, parts, 2048):
            assert set(part_of[slot_of(rows[0])].tolist()) == {part}
            yield rows

    check_beside_changes(pieces)


def check_beside_changes(read):
    """What `read` gives of a snapshot is the store at one moment, whatever happens meanwhile."""
    made, ids = store()
    made.remove(ids[::50].copy())
    before = content(made.export())
    made.begin_snapshot()
    reading = iter(read(made))
    pieces = [next(reading)]
    ones = np.ones((5000, 4), np.float32)
    made.update(ids[:5000], ones, learning_rate=0.1, step=2)
    made.update(ids[:5000], ones, learning_rate=0.1, step=3)
    pieces.append(next(reading))
    made.remove(ids[4000:9000])
    made.update(-1 - np.arange(5000), ones, learning_rate=0.1, step=4)
    pieces.append(next(reading))
    made.assign(ids[10_000:15_000], ones)
    made.compact()
    made.update(ids[4000:9000], ones, learning_rate=0.1, step=5)
    pieces += reading
    made.end_snapshot()
    assert_same(content(pieces), before)
    # And none of it is left over in the next one.
    now = content(made.export())
    made.begin_snapshot()
    assert_same(content(made.snapshot()), now)
    made.end_snapshot()


def test_a_snapshot_beside_threads_that_update():
    made, ids = store(60_000)
    before = content(made.export())
    made.begin_snapshot()
    done = threading.Event()

    def update(seed):
        chance = np.random.default_rng(seed)
        while not done.is_set():
            some = chance.choice(ids, 3000, replace=False) + chance.integers(0, 2)
            gradients = np.ones((3000, 4), np.float32)
            made.update(np.unique(some), gradients, learning_rate=0.1, step=2)

    threads = [threading.Thread(target=update, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert_same(content(made.snapshot(4096)), before)
    finally:
        done.set()
        for thread in threads:
            thread.join()
        made.end_snapshot()


@settings(max_examples=examples(60))
@given(data=st.data(), given_ids=id_arrays(max_size=400), parts=st.integers(1, 64))
def test_each_row_comes_once_and_in_the_part_of_its_slot(data, given_ids, parts):
    seed = data.draw(st.integers(0, 2**32 - 1))
    part_of = np.random.default_rng(seed).integers(0, parts, SLOTS).astype(np.uint16)
    made, _ = store(0)
    made.insert(given_ids)
    made.begin_snapshot()
    batch = data.draw(st.sampled_from([1, 2048, 2049, 2448, 65536]))
    pieces = list(made.snapshot_by(part_of, parts, batch))
    made.end_snapshot()
    for part, (ids, *_) in pieces:
        assert (part_of[slot_of(ids)] == part).all()
    if batch >= 2048 + given_ids.size:  # none is full: each part has one at most, in order
        assert [part for part, _ in pieces] == sorted({part for part, _ in pieces})
    found = [id_ for _, (ids, *_) in pieces for id_ in ids.tolist()]
    assert sorted(found) == sorted(set(given_ids.tolist()))


def test_parts_that_are_not_those_of_slots_are_refused():
    made, _ = store(10)
    made.begin_snapshot()
    for part_of, parts, why in (
        (np.zeros(5, np.uint16), 2, "part_of"),
        (np.full(SLOTS, 2, np.uint16), 2, "below parts=2"),
        (np.zeros(SLOTS, np.uint16), 65, "between 1 and 64"),
        (None, 2, "part_of"),
    ):
        with pytest.raises(ValueError, match=why):
            made.snapshot_by(part_of, parts)


def test_one_snapshot_at_a_time():
    made, _ = store(10)
    with pytest.raises(ValueError, match="no snapshot"):
        made.snapshot()
    made.begin_snapshot()
    with pytest.raises(ValueError, match="already"):
        made.begin_snapshot()
    made.end_snapshot()
    made.end_snapshot()


def test_a_copy_of_a_wide_row_takes_no_room_for_a_thousand():
    def address_space():
        return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

    made = RowStore(65536, OptimizerSpec("sgd"), InitializerSpec("zeros"), 1)
    ids = np.arange(4)
    made.insert(ids)
    made.begin_snapshot()
    before = address_space()
    made.update(ids, np.ones((4, 65536), np.float32), learning_rate=1.0, step=1)
    assert address_space() - before < 64 << 20
    found = np.concatenate([values for _, values, *_ in made.snapshot(4)])
    assert found.shape == (4, 65536)
    assert not found.any()
    made.end_snapshot()
