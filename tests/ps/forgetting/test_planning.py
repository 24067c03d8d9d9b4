"""Plans that are made in slices: those made at once, also by a server that was restored."""

import json

import numpy as np
import pytest

from shoal.ps.forgetting import planning, sweeps
from shoal.ps.forgetting.planning import EVERY, Planning
from tests.native.strategies import store
from tests.ps.forgetting.test_sweeps import filled

CUT, ROWS = 50, 1_000


@pytest.fixture(autouse=True)
def in_slices(monkeypatch):
    monkeypatch.setattr(planning, "SLICE", 100)
    monkeypatch.setattr(sweeps, "PART_IDS", 8)
    monkeypatch.setattr(sweeps, "PART_FILL", 4)


def use(table, ids, step):
    table.update(ids, np.ones((ids.size, 1), np.float32), learning_rate=0.1, step=step)


def copied(table):
    made = store(1, "sgd")
    for ids, values, _, steps, uses in table.export():
        made.assign(ids, values, None, steps, uses)
    return made


@pytest.mark.parametrize("slices", [0, 1, 5, 9, 12, 20])
@pytest.mark.parametrize("old", [30, 1_000], ids=["all go", "a part goes"])
def test_a_plan_is_that_of_its_beginning_whatever_was_used_and_whoever_ends_it(slices, old):
    draw = np.random.default_rng(slices)
    steps = np.where(np.arange(ROWS) < old, draw.integers(1, CUT, ROWS), 90)
    table = filled(steps)
    expected = Planning(0, copied(table), 100, CUT, at_once=True).plan
    made, restored = Planning(0, table, 100, CUT, at_once=False), None
    for at in range(20):
        if at == slices:
            saved = json.loads(json.dumps(made.state()))
            restored = Planning.restored(saved, copied(table))
        assert made.next == 100 + at * EVERY
        made.look()
        use(table, np.unique(draw.integers(0, ROWS, 40)), 101 + at)
    restored = restored or Planning.restored(made.state(), copied(table))
    assert made.complete
    assert restored.complete
    assert made.next == made.end == restored.end == restored.next == 100 + 20 * EVERY
    assert made.plan == restored.plan == expected
