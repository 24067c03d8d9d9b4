"""Numbers of ids of a stream from a sample: exact where all is known, else within intervals."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.samples.extrapolation import FITTED, IdCounts


@st.composite
def samples(draw):
    sampled = draw(st.integers(1, 40))
    counts = draw(st.lists(st.integers(1, sampled), max_size=30))
    return np.array(counts, np.int64), sampled


@given(samples(), st.integers(1, FITTED))
def test_the_whole_stream_as_sample_is_counted_exactly(sample, least):
    counts, sampled = sample
    found = IdCounts(counts, sampled).at_least(least, sampled)
    true = int((counts >= least).sum())
    assert (found.low, found.value, found.high) == pytest.approx((true,) * 3, abs=1e-5)


@given(samples(), st.integers(1, FITTED), st.integers(1, 400))
def test_intervals_hold_the_estimate_and_what_was_seen(sample, least, total):
    counts, sampled = sample
    found = IdCounts(counts, sampled).at_least(least, total)
    assert found.low <= found.value <= found.high
    if total >= sampled:
        assert found.low >= (counts >= least).sum() - 1e-6
        assert found.high <= counts.size + (total - sampled) * counts.sum() / sampled + 1e-6


@given(samples(), st.integers(1, 400))
def test_more_pushes_are_asked_of_fewer_ids(sample, total):
    counts, sampled = sample
    values = [IdCounts(counts, sampled).at_least(k, total).value for k in range(1, 6)]
    assert all(a >= b - 1e-6 for a, b in itertools.pairwise(values))


@given(samples(), st.integers(1, 100))
def test_a_vocabulary_bounds_the_interval(sample, vocabulary):
    counts, sampled = sample
    assert IdCounts(counts, sampled).at_least(1, 1000, vocabulary).high <= vocabulary


@given(st.lists(st.frozensets(st.integers(0, 8)), min_size=1, max_size=6), st.data())
def test_rarefaction_is_the_mean_over_all_choices(pushes, data):
    total = data.draw(st.integers(1, len(pushes)))
    least = data.draw(st.integers(1, 3))
    counts = [sum(each in push for push in pushes) for each in range(9)]
    seen = np.array([each for each in counts if each], np.int64)
    expected = np.mean(
        [
            sum(sum(each in push for push in chosen) >= least for each in range(9))
            for chosen in itertools.combinations(pushes, total)
        ]
    )
    found = IdCounts(seen, len(pushes)).at_least(least, total)
    assert found.value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("exponent", "ids"), [(1.05, 200_000), (0.8, 20_000), (0.0, 200_000)])
def test_streams_by_zipfs_law_are_within_their_intervals(exponent, ids):
    draw = np.random.default_rng(0)
    weights = np.cumsum(np.arange(1, ids + 1) ** -exponent)
    stream = np.searchsorted(weights, draw.random(400_000) * weights[-1])
    pushes = [np.unique(each) for each in stream.reshape(-1, 200)]
    true = np.unique(np.concatenate(pushes), return_counts=True)[1]
    counts = np.unique(np.concatenate(pushes[:200]), return_counts=True)[1]
    for least in (1, 2, 3, 5):
        found = IdCounts(counts, 200).at_least(least, len(pushes))
        assert found.low <= (true >= least).sum() <= found.high


@pytest.mark.parametrize("counts", [[0], [3]])
def test_counts_that_cannot_be_are_refused(counts):
    with pytest.raises(ValueError, match="from 1 to the number of pushes, 2"):
        IdCounts(np.array(counts), 2)


@pytest.mark.parametrize(("least", "total"), [(0, 1), (FITTED + 1, 1), (1, 0)])
def test_questions_that_cannot_be_are_refused(least, total):
    with pytest.raises(ValueError, match="pushes are 1 to"):
        IdCounts(np.array([1]), 1).at_least(least, total)
