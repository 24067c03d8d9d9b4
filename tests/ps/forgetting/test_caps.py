"""The numbers that tables are to have at most, while sweeps are planned and made."""

import numpy as np
import pytest

from shoal.proto import shoal_pb2 as pb
from shoal.ps.forgetting import planning
from shoal.ps.forgetting.caps import Caps, began_of
from tests.ps.forgetting.test_sweeps import filled

CAP = 3_200
"""Near is from 3,100 on."""


@pytest.fixture(autouse=True)
def in_slices(monkeypatch):
    monkeypatch.setattr(planning, "SLICE", 1_000)


def caps_of(rows, max_rows=CAP):
    """The caps of tables that have so many rows."""
    spec = pb.ModelSpec(tables=[pb.TableSpec(max_rows=max_rows) for _ in rows])
    return Caps(spec, [filled(np.ones(each)) for each in rows], 16_384)


@pytest.mark.parametrize(
    ("rows", "slots", "start", "most"),
    [
        (3_140, 16_384, 3_140, 3_200),
        (3_140, 8_192, 1_550, 1_600),
        (1_600, 16_384, 3_100, 3_200),
        (3_140, 4_096, 800, 800),
    ],
    ids=["as it began", "slots left", "slots came", "too few now"],
)
def test_a_plan_goes_along_with_the_room_and_is_complete_at_the_cap_of_now(
    rows, slots, start, most
):
    caps = caps_of([rows])
    began = caps.numbers()
    assert began == {0: (rows, 0)}
    caps.own(slots)
    for done in range(21):
        bounds = caps.planning(0, began, done, 20)
        assert bounds[0] == start + (most - start) * done // 20
        # Of counted ids there are none: no slice is due for them before they are near their cap.
        near = 4 * most * 31 // 32 if 4 * most > 1_100 else 4 * most
        assert bounds[1] == near + (4 * most - near) * done // 20


@pytest.mark.parametrize(
    ("rows", "part"),
    [([3_150, 3_120], 2), ([3_150, 3_120, 3_120], 3), ([3_150, 3_120, 100], 2)],
    ids=["one waits", "two wait", "one is not near"],
)
def test_a_sweep_takes_an_even_part_of_the_room_of_those_that_wait(rows, part):
    caps = caps_of(rows)
    began = caps.numbers()
    assert [caps.waiting(1, began, done, 40)[0] for done in range(41)] == [
        3_120 + 80 * done // (40 * part) for done in range(41)
    ]
    last = len(rows) - 1
    start = max(3_100, rows[last])
    assert caps.waiting(last, began, 40, 40)[0] == start + (3_200 - start) // part
    assert caps.waiting(1, {}, 0, 40) == (3_100, 12_400)


def test_the_sweep_of_a_table_that_has_least_of_its_cap_left_is_next():
    assert caps_of([3_000, 100]).fullest() is None
    assert caps_of([3_150, 3_000, 3_160]).fullest() == 2
    assert caps_of([3_150, 3_150]).fullest() == 0


def test_the_state_of_caps_says_what_they_were_and_how_sweeps_began():
    caps = caps_of([3_150, 100])
    saved = caps.state({0: (3_150, 0)})
    assert began_of(saved) == {0: (3_150, 0)}
    assert began_of(None) == began_of(caps.state({})) == {}
    assert caps.same(0, saved)
    assert caps.same(0, None)
    assert not caps_of([100], CAP * 2).same(0, saved)
    assert not caps_of([], CAP).same(0, saved)
