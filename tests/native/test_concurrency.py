"""Many threads on one store: no lost update, no torn row, no deadlock."""

import threading

import numpy as np
import pytest

from shoal.native.rowstore import MANY_USES
from tests.native.strategies import exported, store

DIM = 64


def together(*workers):
    """Run callables at the same time; raise what any of them raised."""
    failures, barrier = [], threading.Barrier(len(workers))

    def run(work):
        barrier.wait()
        try:
            work()
        except BaseException as error:  # re-raised below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "deadlock"
    if failures:
        raise failures[0]


def ones(count):
    return np.ones((count, DIM), np.float32)


@pytest.mark.parametrize("rows", [1, 40, 3000])
def test_no_update_is_lost_and_no_row_is_torn(rows):
    """Every column of a row counts its updates: columns agree in every read, and the final
    counts are those of all threads, duplicates in a batch included.
    """
    table = store(DIM, "sgd", "zeros")
    batches, threads, size = 60, 4, 400
    counts = np.zeros((threads, rows), np.int64)

    def update(number):
        random = np.random.default_rng(number)
        for step in range(1, batches + 1):
            ids = random.integers(0, rows, size)
            counts[number] += np.bincount(ids, minlength=rows)
            table.update(ids, ones(size), learning_rate=-1.0, step=step)

    def read():
        random = np.random.default_rng(99)
        for _ in range(100):
            found = table.lookup(random.integers(0, rows, 200))
            assert (found == found[:, :1]).all()

    together(*(lambda n=n: update(n) for n in range(threads)), read, read)
    assert (table.lookup(np.arange(rows)) == counts.sum(axis=0)[:, None]).all()
    uses = {key: row[3] for key, row in exported(table).items()}
    assert uses == {key: min(int(n), MANY_USES) for key, n in enumerate(counts.sum(axis=0)) if n}


@pytest.mark.parametrize("value_dtype", ["bfloat16", "float16"])
def test_no_update_of_16_bit_rows_is_lost(value_dtype):
    """Counts to 200 are exact in both formats."""
    table, ids = store(DIM, "sgd", "zeros", value_dtype=value_dtype), np.arange(100)

    def update():
        for step in range(1, 51):
            table.update(ids, ones(100), learning_rate=-1.0, step=step)

    together(update, update, update, update)
    assert (table.lookup(ids) == 200).all()


def test_growth_under_readers_and_writers():
    """Inserts split segments while others look up, update and iterate."""
    table = store(DIM, "sgd", "zeros")
    stable = np.arange(-2000, 0)
    table.update(stable, ones(len(stable)), learning_rate=-1.0, step=1)

    def grow(first):
        for start in range(first, first + 40_000, 1000):
            table.insert(np.arange(start, start + 1000))

    def read():
        for _ in range(60):
            found = table.lookup(stable)
            assert (found == found[:, :1]).all()
            assert (found >= 1).all()

    def update():
        for step in range(2, 40):
            table.update(stable, ones(len(stable)), learning_rate=-1.0, step=step)

    def iterate():
        for _ in range(3):
            rows = exported(table)
            assert set(stable.tolist()) <= rows.keys()
            assert all((rows[key][0] == rows[key][0][0]).all() for key in stable.tolist())

    together(lambda: grow(0), lambda: grow(40_000), read, update, iterate)
    assert len(table) == 82_000
    assert (table.lookup(stable) == 39).all()


def test_removal_and_compaction_under_readers():
    table = store(DIM, "adagrad", "zeros")
    stable, passing = np.arange(5000), np.arange(10_000, 40_000)
    table.update(stable, ones(len(stable)), learning_rate=0.5, step=1)
    expected = table.lookup(stable)

    def churn():
        for _ in range(6):
            table.insert(passing)
            assert table.remove(passing) == len(passing)
            table.compact()

    def read():
        for _ in range(60):
            assert (table.lookup(stable) == expected).all()

    together(churn, read, lambda: [len(exported(table)) for _ in range(3)])
    assert sorted(exported(table)) == stable.tolist()


def test_opposite_orders_do_not_deadlock():
    """Rows are locked in batch order; two batches in opposite order must both finish."""
    table, ids = store(DIM, "adam"), np.arange(64)
    table.insert(ids)

    def work(order):
        for step in range(1, 400):
            table.update(order, ones(len(order)), learning_rate=0.1, step=step)

    together(lambda: work(ids), lambda: work(ids[::-1].copy()), lambda: work(ids))
    assert {row[3] for row in exported(table).values()} == {3 * 399}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("admit_after", [2, 40])
def test_admission_counts_every_use_of_every_thread(threads, admit_after):
    """Rows are the ids used often enough, and have all their updates from the admitting one on.

    Meanwhile others read them whole, never without that update, and a snapshot is read in which
    each id is once, as it was.
    """
    table = store(DIM, "sgd", "zeros", admit_after=admit_after)
    rows, batches, size = 3000, 60, 400
    counts = np.zeros((threads + 1, rows), np.int64)

    def update(number, batches=batches):
        random = np.random.default_rng(number)
        for step in range(1, batches + 1):
            ids = random.integers(0, rows, size) ** 2 // rows  # some far more often than others
            counts[number] += np.bincount(ids, minlength=rows)
            table.update(ids, ones(size), learning_rate=-1.0, step=step)

    def check(used, counting, pieces):
        """used: of each id, int64 [rows]. What is counted and what has a row are these."""
        there = {}
        for ids, values, _, _, uses in pieces:
            assert (values == values[:, :1]).all()
            assert (values[:, 0] == used[ids] - admit_after + 1).all()
            there |= dict(zip(ids.tolist(), uses.tolist(), strict=True))
        expected = {key: int(n) for key, n in enumerate(used) if n}
        assert there == {key: n for key, n in expected.items() if n >= admit_after}
        assert counting == {key: n for key, n in expected.items() if n < admit_after}

    def read():
        random = np.random.default_rng(99)
        for _ in range(100):
            found = table.lookup(random.integers(0, rows, 200))
            assert (found == found[:, :1]).all()

    def snapshot():
        counting, pieces = [], []
        for _, piece in table.snapshot_counting_by(None, 1, 2048):
            counting += zip(piece[0].tolist(), piece[2].tolist(), strict=True)
        pieces += table.snapshot(2048)
        assert len(dict(counting)) == len(counting)
        check(counts_then, dict(counting), pieces)

    update(threads, batches=20)
    counts_then = counts.sum(axis=0)
    table.begin_snapshot()
    together(*(lambda n=n: update(n) for n in range(threads)), read, snapshot)
    table.end_snapshot()
    counting = {}
    for ids, _, uses in table.export_counting():
        counting |= dict(zip(ids.tolist(), uses.tolist(), strict=True))
    check(counts.sum(axis=0), counting, table.export())
