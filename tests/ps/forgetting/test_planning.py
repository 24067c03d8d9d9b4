"""Plans that are made in slices: those made at once, also by a server that was restored."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.ps.forgetting import planning, sweeps
from shoal.ps.forgetting.planning import EVERY, Planning
from tests.examples import examples
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


def copied(table, admit_after=1):
    made = store(1, "sgd", admit_after=admit_after)
    for piece in table.export_counting():
        made.assign_counting(*piece)
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


def parts_of(plan, table, candidates=None):
    """The ids that the parts of a plan remove, rows and counted ids of each."""
    candidates = candidates or sweeps.Candidates(table, plan)
    return [[ids.tolist() for ids in candidates.remove(part)] for part in range(plan.parts)]


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_sliced_plan_removes_what_one_made_at_once_does_whatever_is_between(data):
    """Also of rows that are new, gone or back, in tables that grew and were compacted meanwhile."""
    draw, admit_after = data.draw, data.draw(st.sampled_from([1, 3]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    table = store(1, "sgd", admit_after=admit_after)
    for step in range(1, 100):
        use(table, np.unique(random.zipf(1.3, 40) % ROWS), step)
    rows, counts = len(table), table.counting
    excess = (rows // draw(st.integers(2, 30)), counts // draw(st.integers(2, 30)))
    how = (100, 100, excess) if draw(st.booleans()) else (100, draw(st.integers(1, 99)))
    start = copied(table, admit_after)
    expected = Planning(0, start, *how, at_once=True).plan
    gone = [sum(map(len, kind)) for kind in zip(*parts_of(expected, start), strict=True)]
    if expected.eviction:
        # Of the last age there is a class of orders more, at most.
        assert all(0 <= more - wanted <= 60 for more, wanted in zip(gone, excess, strict=True))
    made, again, step = Planning(0, table, *how, at_once=False), None, 100
    restore_at = draw(st.integers(0, 3 * planning.slices_of(table)))
    while not made.complete:
        for what in draw(st.lists(st.sampled_from(["use", "new", "remove", "many"]), max_size=3)):
            step += 1
            ids = np.unique(random.integers(0, ROWS, 60))
            if what == "remove":
                table.remove(ids)
                table.compact()
            else:
                base = {"use": 0, "new": ROWS, "many": step * ROWS}[what]
                many = np.arange(4_000) if what == "many" else ids
                use(table, base + many, step)
        if made._done == restore_at:
            saved = json.loads(json.dumps(made.state()))
            again = Planning.restored(saved, copied(table, admit_after))
        made.look()
    again = again or Planning.restored(made.state(), copied(table, admit_after))
    assert made.plan == again.plan == expected
    assert made.end == again.end
    assert made.plan.eviction == (len(how) == 3)
    other = copied(table, admit_after)
    assert parts_of(made.plan, table, made.candidates) == parts_of(again.plan, other)


def test_for_a_cap_rows_of_little_use_go_although_others_are_older():
    """A row of 64 uses may be seven times as old as one of a single use; counted ids go by age."""
    ids = np.arange(ROWS)
    steps, uses = np.where(ids < 500, 20, 80), np.where(ids < 500, 64, 1)
    table = filled(steps, uses, admit_after=100)
    table.assign_counting(ids + ROWS, steps, uses.astype(np.uint32))
    made = Planning(0, table, 100, 100, (500, 500), at_once=True)
    gone = [np.concatenate(kind) for kind in zip(*parts_of(made.plan, table), strict=True)]
    assert set(gone[0]) == set(range(500, 1_000))
    assert set(gone[1]) == set(range(1_000, 1_500))
