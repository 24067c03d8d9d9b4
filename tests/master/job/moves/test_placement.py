"""Which server gets which slot: equal shares, by few moves, whatever the weights."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.master.job.moves.placement import balanced
from shoal.proto.values.routing import Routing


@given(before=st.integers(1, 12), after=st.integers(1, 12))
def test_equal_slots_for_each_server_and_no_slot_moves_for_nothing(before, after):
    owners = Routing.even(before).owners
    new = balanced(owners, after)
    counts = np.bincount(new, minlength=after)
    assert counts.max() - counts.min() <= 1 + (after < before)
    assert new.max() < after
    moved = (new != owners).sum()
    share = owners.size / after
    needed = max(0, after - before) * share if after > before else (owners >= after).sum()
    assert moved <= needed + 2 * max(before, after)


@given(
    weights=st.lists(st.floats(0, 1), min_size=64, max_size=64),
    servers=st.integers(1, 6),
    start=st.lists(st.integers(0, 7), min_size=64, max_size=64),
)
def test_no_server_has_much_more_than_the_mean_and_its_heaviest_slot(weights, servers, start):
    weights, owners = np.array(weights), np.array(start, np.uint16)
    new = balanced(owners, servers, weights)
    loads = np.bincount(new, weights, minlength=servers)
    assert loads.max() <= weights.sum() / servers + weights.max() + 1e-9
    before = np.bincount(owners, weights, minlength=8)
    if (owners < servers).all():
        assert loads.max() <= before.max() + 1e-9


@given(
    servers=st.integers(2, 8),
    absent=st.sets(st.integers(1, 7), max_size=3),
    start=st.lists(st.integers(0, 9), min_size=64, max_size=64),
)
def test_absent_servers_have_none_and_the_others_equal_shares(servers, absent, start):
    absent = sorted(each for each in absent if each < servers)
    new = balanced(np.array(start, np.uint16), servers, absent=absent)
    shares = np.bincount(new, minlength=servers)
    assert not shares[absent].any()
    there = np.delete(shares, absent)
    assert there.sum() == 64
    assert there.max() - there.min() <= 1


def test_within_the_tolerance_nothing_moves():
    owners = Routing.even(2).owners
    weights = np.ones(owners.size)
    weights[owners == 0] = 1.05
    assert np.array_equal(balanced(owners, 2, weights, tolerance=0.05), owners)
    weights[owners == 0] = 1.5
    new = balanced(owners, 2, weights, tolerance=0.05)
    loads = np.bincount(new, weights)
    assert loads.max() <= 1.05 * loads.mean() + 1.5


def test_a_slot_that_weighs_more_than_a_share_stays_and_the_others_go():
    owners = np.array([0] * 8 + [1] * 8, np.uint16)
    weights = np.ones(16)
    weights[0] = 100
    new = balanced(owners, 2, weights)
    assert new[0] == 0
    assert (new[1:] == 1).all()
