"""A census beside pushes: the counts of the moment at which it began."""

import gc
import threading
import weakref
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native.census import LEAST_AGES, ORDER_CLASSES, Census
from shoal.native.choices import order_of
from tests.native.strategies import store
from tests.native.test_concurrency import together

DIM, IDS, STEPS = 2, 3_000, 100
END = 50


def filled(admit_after=1, seed=0):
    """A table whose ids were used at steps below 100, some of them once, others more often."""
    draw = np.random.default_rng(seed)
    table = store(DIM, "sgd", "zeros", admit_after=admit_after)
    for step in range(1, STEPS):
        use(table, draw.integers(0, IDS, 60), step)
    return table


def use(table, ids, step):
    ids = np.unique(ids)
    ones = np.ones((ids.size, DIM), np.float32)
    table.update(ids, ones, learning_rate=1.0, step=step)


def counted(table, end=END, *, by_worth=False):
    """Counted ids and rows by their ages and orders, as a census has them."""
    found = np.zeros((2, LEAST_AGES.size, ORDER_CLASSES), np.int64)
    rows = [(ids, steps, uses) for ids, _, _, steps, uses in table.export()]
    for kind, pieces in enumerate((table.export_counting(), rows)):
        for ids, steps, uses in pieces:
            weights = 1 + np.log2(np.maximum(uses, 1)).astype(int) if kind and by_worth else 1
            place = np.searchsorted(LEAST_AGES, (end - 1 - steps) // weights, "right") - 1
            order = (order_of(ids) >> np.uint64(60)).astype(np.int64)
            old = steps < end
            np.add.at(found[kind], (place[old], order[old]), 1)
    return found


@settings(deadline=None)
@given(data=st.data())
def test_the_counts_are_those_of_the_beginning_whatever_happens_meanwhile(data):
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    table = filled(data.draw(st.sampled_from([1, 3])), data.draw(st.integers(0, 9)))
    how = {"end": data.draw(st.sampled_from([END, STEPS])), "by_worth": data.draw(st.booleans())}
    expected = counted(table, **how)
    census, slices, step = Census(table, **how), data.draw(st.integers(1, 9)), STEPS
    for at in range(slices):
        for what in data.draw(
            st.lists(st.sampled_from(["use", "remove", "new", "set"]), max_size=4)
        ):
            step += 1
            ids = draw.integers(0, IDS, 200)
            if what == "use":
                use(table, ids, step)
            if what == "remove":
                table.remove(np.unique(ids))
            if what == "new":
                use(table, ids + IDS, step)
            if what == "set":
                fresh = np.unique(ids)
                zeros = np.zeros((fresh.size, DIM), np.float32)
                table.assign(fresh, zeros, versions=np.full(fresh.size, step))
        # A process that goes on from here counts what is there now, and what was used.
        assert (counted(table, **how) + census.left() == expected).all()
        census.look((1 << 32) * (at + 1) // slices)
    assert (census.counts() == expected).all()
    assert expected.sum()
    census.end()
    use(table, np.arange(IDS), step + 1)
    assert (census.counts() == expected).all()


def test_pushes_from_many_threads_between_the_looks_are_all_noted():
    table = filled(admit_after=2)
    expected = counted(table)
    census = Census(table, END)
    steps = threading.Lock()
    step = [STEPS]

    def work(worker):
        draw = np.random.default_rng(worker)
        for _ in range(40):
            with steps:
                step[0] += 1
                at = step[0]
            use(table, draw.integers(0, 2 * IDS, 100), at)

    def pull():
        for _ in range(40):
            table.lookup(np.arange(100))

    for at in range(4):
        together(*(partial(work, 10 * at + worker) for worker in range(3)), pull)
        census.look((1 << 30) * (at + 1))
    assert (census.counts() == expected).all()
    assert (counted(table) + census.left() == expected).all()


def test_ages_are_told_apart_to_a_sixteenth_up_to_the_greatest_there_is():
    ages = np.unique([*LEAST_AGES, *(LEAST_AGES[1:] - 1), 2**32 - 1, 2**32 - 2])
    end = 2**32
    table = store(DIM, "sgd", "zeros")
    zeros = np.zeros((ages.size, DIM), np.float32)
    table.assign(np.arange(ages.size), zeros, versions=end - 1 - ages)
    census = Census(table, end)
    census.look(1 << 32)
    assert (census.counts() == counted(table, end)).all()
    gaps = np.diff(LEAST_AGES)
    assert (gaps > 0).all()
    assert (gaps[16:] <= LEAST_AGES[16:-1] / 16).all()


def test_a_census_that_has_ended_looks_at_nothing():
    census = Census(filled(), END)
    census.end()
    with pytest.raises(ValueError, match="has ended"):
        census.look(1)


def test_a_census_of_a_table_that_nobody_has_any_more_is_collected_with_it():
    class Model:
        """One that has itself, as those of servers have."""

    collected = []
    for _ in range(50):
        model, planning = Model(), Model()
        planning.store = filled_little()
        planning.census = Census(planning.store, END)
        model.table, model.planning, planning.model = planning.store, planning, model
        weakref.finalize(model, collected.append, 1)
        del model, planning
    gc.collect()
    assert len(collected) == 50


def filled_little():
    table = store(DIM, "sgd", "zeros")
    use(table, np.arange(20), 1)
    return table
