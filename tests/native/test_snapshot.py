"""A snapshot is the store at one moment, whatever happens while it is read."""

import threading

import numpy as np
import pytest

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore


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
    made, ids = store()
    made.remove(ids[::50].copy())
    before = content(made.export())
    made.begin_snapshot()
    reading = made.snapshot(2048)
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


def test_one_snapshot_at_a_time():
    made, _ = store(10)
    with pytest.raises(ValueError, match="no snapshot"):
        made.snapshot()
    made.begin_snapshot()
    with pytest.raises(ValueError, match="already"):
        made.begin_snapshot()
    made.end_snapshot()
    made.end_snapshot()
