"""What a sweep chooses by headers: what expired, exactly, and the rows that are worth least."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native.census import LEAST_AGES, Census
from shoal.native.choices import order_of
from shoal.proto import shoal_pb2 as pb
from shoal.ps.forgetting import sweeps
from shoal.ps.forgetting.sweeps import (
    EVEN,
    WEIGHTS,
    Candidates,
    Found,
    excess_of,
    expired_of,
    is_all,
    parts_of,
    planned,
)
from tests.examples import examples
from tests.native.strategies import store


def filled(steps, uses=None, *, counted=False, admit_after=1):
    """A store of the ids 0 to n - 1 with these last steps and use counts."""
    table = store(1, "sgd", admit_after=admit_after)
    steps = np.asarray(steps, np.int64)
    uses = np.ones(len(steps), np.uint32) if uses is None else np.asarray(uses, np.uint32)
    ids = np.arange(len(steps))
    if counted:
        table.assign_counting(ids, steps, uses)
    else:
        table.assign(ids, np.ones((len(ids), 1), np.float32), None, steps, uses)
    return table


def removed_by(table, plan):
    """The ids that a plan removes, as one set of each kind, and the sizes of its parts."""
    candidates = Candidates(table, plan)
    parts = [candidates.remove(part) for part in range(plan.parts)]
    rows, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    return set(rows.tolist()), set(counts.tolist()), [sum(map(len, part)) for part in parts]


def plan_of(rows=None, counts=None):
    nothing = Found(None, 0)
    return planned(0, 7, rows or nothing, counts or nothing, eviction=False)


@settings(max_examples=examples(50), deadline=None)
@given(
    steps=st.lists(st.integers(0, 50), min_size=1, max_size=200),
    cut=st.integers(0, 60),
    counted=st.booleans(),
)
def test_expired_is_all_that_was_last_used_before_the_cut(steps, cut, counted):
    table = filled(steps, counted=counted, admit_after=3 if counted else 1)
    rows, counts = sweeps.expired(table, cut)
    plan = plan_of(rows, counts)
    assert is_all(plan.rows, cut)
    assert is_all(plan.counts, cut)
    old = {key for key, step in enumerate(steps) if step < cut}
    expected = (set(), old) if counted else (old, set())
    assert (rows.count, counts.count) == tuple(map(len, expected))
    assert removed_by(table, plan)[:2] == expected


@pytest.mark.parametrize("counted", [False, True])
def test_of_much_that_expired_only_the_oldest_goes_at_once(counted):
    """A sixteenth of the table, if that is more than a part."""
    count = 16 * 5_000
    steps = np.arange(count) * 3 + 1
    table = filled(steps, counted=counted, admit_after=3 if counted else 1)
    found = sweeps.expired(table, 3 * count - 5)[counted]
    assert not found.all
    assert found.count == 5_000
    plan = plan_of(*((None, found) if counted else (found, None)))
    assert not is_all(plan.counts if counted else plan.rows, 3 * count - 5)
    gone = removed_by(table, plan)[counted]
    assert len(gone) == 5_000
    assert max(gone) < 5_000 + 3 * count // 4_000  # rows of a unit of steps are alike


def test_where_all_are_of_one_step_the_order_of_ids_decides():
    table = filled(np.full(200_000, 9))
    found, _ = sweeps.expired(table, 10)
    gone, _, _ = removed_by(table, plan_of(found))
    order = order_of(np.arange(200_000))
    assert abs(len(gone) - 12_500) < 600  # so many, about: 5 standard deviations
    assert max(order[sorted(gone)]) < min(order[sorted(set(range(200_000)) - gone)])


@settings(max_examples=examples(50), deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 3, 4, 9, 100, 2048])),
        min_size=1,
        max_size=300,
    ),
    share=st.floats(0.01, 1.0),
    now=st.integers(60, 5000),
)
def test_evicted_are_so_many_rows_of_the_greatest_age_by_their_worth(rows, share, now):
    """A row of u uses may be 1 + floor(log2(u)) times as old as one of a single use."""
    table = filled([step for step, _ in rows], [uses for _, uses in rows])
    wanted = max(1, int(share * len(rows)))
    found = sweeps.least_used(table, wanted, now)
    gone, _, _ = removed_by(table, plan_of(found))
    assert len(gone) == found.count
    worth = [(now + 1 - step) / (1 + int(np.log2(min(uses, 2048)))) for step, uses in rows]
    kept = set(range(len(rows))) - gone
    # Ages are counted in units; below that all rows are alike.
    unit = max(1, -(-(now + 1) // 4094))
    if kept and gone:
        assert min(worth[each] for each in gone) >= max(worth[each] for each in kept) - unit
    assert len(gone) == wanted


@settings(max_examples=examples(30), deadline=None)
@given(steps=st.lists(st.integers(0, 60), min_size=1, max_size=300), share=st.floats(0.01, 1.0))
def test_counted_ids_go_by_age_alone(steps, share):
    table = filled(steps, np.arange(len(steps)) % 3 + 1, counted=True, admit_after=9)
    wanted = max(1, int(share * len(steps)))
    found = sweeps.oldest_counts(table, wanted, 70)
    _, gone, _ = removed_by(table, plan_of(None, found))
    kept = [step for key, step in enumerate(steps) if key not in gone]
    assert len(gone) == found.count == wanted
    assert not kept or max(steps[key] for key in gone) <= min(kept)


def test_millions_of_steps_are_told_apart_where_the_old_rows_are():
    """The oldest rows may be of a hundredth of the job's steps."""
    random = np.random.default_rng(0)
    steps = 10**9 + random.permutation(30_000) * 100
    table = filled(steps)
    gone, _, _ = removed_by(table, plan_of(sweeps.least_used(table, 3_000, 10**9 + 3_100_000)))
    assert len(gone) == 3_000
    unit = 3_200_000 / 4_000
    kept = np.delete(steps, sorted(gone))
    assert steps[sorted(gone)].max() <= kept.min() + unit


def test_a_plan_is_the_same_in_a_process_that_places_rows_otherwise():
    """Stores place rows by a key that is drawn anew in each process."""
    script = (
        "import numpy as np\n"
        "from shoal.ps.forgetting import sweeps\n"
        "from tests.ps.forgetting.test_sweeps import filled, plan_of\n"
        "random = np.random.default_rng(5)\n"
        "table = filled(random.integers(0, 900, 90_000), random.integers(1, 2000, 90_000))\n"
        "found = sweeps.least_used(table, 9_000, 1_000)\n"
        "plan = plan_of(found)\n"
        "candidates = sweeps.Candidates(table, plan)\n"
        "import hashlib\n"
        "digest = hashlib.sha256(plan.SerializeToString())\n"
        "for part in range(plan.parts):\n"
        "    digest.update(candidates.remove(part)[0].tobytes())\n"
        "print(plan.parts, digest.hexdigest())\n"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
    assert runs.pop().startswith("3 ")


def test_parts_are_small_and_hold_each_id_once():
    table = filled(np.ones(400_000, np.int64))
    found, _ = sweeps.expired(table, 2)
    plan = plan_of(found)
    assert plan.parts == -(-found.count // 3500)
    gone, _, sizes = removed_by(table, plan)
    assert len(gone) == sum(sizes) == 400_000 - len(table)
    assert max(sizes) <= sweeps.PART_IDS
    assert set(parts_of(np.array(sorted(gone)), plan.parts).tolist()) == set(range(plan.parts))


def test_what_is_used_again_before_its_part_stays():
    table = filled(np.arange(100) + 1)
    plan = plan_of(*sweeps.expired(table, 50))
    candidates = Candidates(table, plan)
    table.update(np.array([3, 4]), np.ones((2, 1), np.float32), learning_rate=0.1, step=200)
    rows, _ = candidates.remove(0)
    assert rows.tolist() == [0, 1, 2, *range(5, 49)]


def test_a_choice_travels_whole():
    table = filled(np.full(70_000, 9))
    rows, counts = sweeps.expired(table, 10)
    plan = plan_of(rows, counts)
    again = pb.SweepPlan.FromString(plan.SerializeToString())
    assert removed_by(table, again)[0] == removed_by(filled(np.full(70_000, 9)), plan)[0]


def census_of(table, end, *, by_worth=False):
    """The counts of a table as it is."""
    census = Census(table, end, by_worth=by_worth)
    census.look(1 << 32)
    census.end()
    return census.counts()


@settings(max_examples=examples(50), deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 600), st.sampled_from([1, 2, 3, 4, 9, 100, 2048])),
        min_size=1,
        max_size=300,
    ),
    share=st.floats(0.01, 1.0),
    now=st.integers(601, 5000),
    counted=st.booleans(),
)
def test_the_excess_by_counts_is_that_of_the_greatest_age_by_worth(rows, share, now, counted):
    """No fewer than wanted; of the last age whole classes of orders, and no more than it takes."""
    uses = [min(uses, 9) if counted else uses for _, uses in rows]
    table = filled(
        [step for step, _ in rows], uses, counted=counted, admit_after=10 if counted else 1
    )
    wanted = max(1, int(share * len(rows)))
    counts = census_of(table, now, by_worth=True)[0 if counted else 1]
    found = excess_of(now, counts, wanted, EVEN if counted else WEIGHTS)
    gone = removed_by(table, plan_of(*((None, found) if counted else (found, None))))[counted]
    assert len(gone) == found.count >= wanted
    ages = np.array([now - 1 - step for step, _ in rows])
    if not counted:
        ages //= 1 + np.log2(uses).astype(np.int64)
    ages = np.searchsorted(LEAST_AGES, ages, "right")
    orders = (order_of(np.arange(len(rows))) >> np.uint64(60)).astype(np.int64)
    worth = [(-age, order) for age, order in zip(ages.tolist(), orders.tolist(), strict=True)]
    last = sorted(worth)[wanted - 1]
    assert gone == {key for key, each in enumerate(worth) if each <= last}


@pytest.mark.parametrize("uses", [1, 40])
def test_a_plan_by_counts_takes_the_oldest_first_and_in_the_end_all(uses):
    """Also where very many were last used at one step, of which a sweep takes a part."""
    steps = np.sort(np.random.default_rng(uses).choice([5, 40, 50, 60, 90, 200], 200_000))
    table = filled(steps, np.full(steps.size, uses))
    sweeps_made = 0
    while (steps_left := steps[there_of(table)]).min() < 100:
        sweeps_made += 1
        old = int((steps_left < 100).sum())
        found = expired_of(100, census_of(table, 100)[1], len(table))
        most = max(4096, len(table) // 16)
        assert found.count <= old
        assert found.all == (old <= most)
        # A sixteenth, but for a class of orders.
        assert found.count <= 1.2 * most
        plan = planned(0, 300, found, Found(None, 0), eviction=False)
        candidates, before = Candidates(table, plan), len(table)
        for part in range(plan.parts):
            candidates.remove(part)
        assert before - len(table) == found.count > 0
        # Nothing is left that is older than what is gone, but for the last step's others.
        gone = np.setdiff1d(np.arange(steps.size), there_of(table))
        assert steps[gone].max() <= steps[there_of(table)].min()
        assert sweeps_made < 60
    assert len(table) == (steps >= 100).sum()


def there_of(table):
    """The ids that have rows, int64 [n]."""
    return np.concatenate([piece[0] for piece in table.export()])
