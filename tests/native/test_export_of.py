"""Rows of some routing slots that changed since a step: what a move of slots sends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.native.ids import slot_of
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import NO_PART, RowStore

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60, unique=True)


def store(admit_after=1):
    return RowStore(3, OptimizerSpec("adam"), InitializerSpec("zeros"), 0, admit_after=admit_after)


def found(table, part_of, parts, since, counting=False):
    pieces = table.export_of(part_of, parts, since, counting=counting)
    return {int(key): part for part, (ids, *_) in pieces for key in ids}


@given(ids=IDS, steps=st.lists(st.integers(1, 5), min_size=1, max_size=6), since=st.integers(0, 7))
def test_each_chosen_row_that_changed_comes_once_in_its_part(ids, steps, since):
    table, last = store(), {}
    draw = np.random.default_rng(len(ids))
    for step in sorted(steps):
        some = np.array([each for each in ids if draw.random() < 0.5], np.int64)
        table.update(some, np.ones((some.size, 3), np.float32), learning_rate=0.1, step=step)
        last |= dict.fromkeys(some.tolist(), step)
    part_of = draw.integers(0, 3, 16384).astype(np.uint16)
    part_of[part_of == 2] = NO_PART
    expected = {
        key: int(part_of[slot_of(np.array([key], np.int64))[0]])
        for key, step in last.items()
        if step >= since
    }
    expected = {key: part for key, part in expected.items() if part != NO_PART}
    assert found(table, part_of, 2, since) == expected


def test_counted_ids_come_apart_from_rows():
    table = store(admit_after=2)
    ids = np.arange(10, dtype=np.int64)
    for step, some in ((1, ids), (2, ids[:4])):
        table.update(some, np.ones((some.size, 3), np.float32), learning_rate=0.1, step=step)
    everything = np.zeros(16384, np.uint16)
    assert set(found(table, everything, 1, 0)) == set(range(4))
    assert set(found(table, everything, 1, 0, counting=True)) == set(range(4, 10))
    assert found(table, everything, 1, 2, counting=True) == {}


def test_parts_that_are_none_are_refused():
    table = store()
    with pytest.raises(ValueError, match="below parts=1, or NO_PART"):
        table.export_of(np.ones(16384, np.uint16), 1, 0)
    with pytest.raises(ValueError, match="parts must be between 1 and 64"):
        table.export_of(np.zeros(16384, np.uint16), 0, 0)
