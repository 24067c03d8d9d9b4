"""Segments of partitions: whatever is listed when, each offset is in one segment."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.readers.kafka.segments import (
    Position,
    Segment,
    arrived,
    ends_of,
    positions_of,
    remembered,
    token_of,
    with_beginnings,
)
from shoal.errors import UserError
from tests.examples import examples

# A listing: seconds since the one before (a clock may go back), new records by partition, and
# whether the process of the listing before is gone, with a token that no names came with.
LISTINGS = st.lists(
    st.tuples(
        st.floats(-2, 5),
        st.dictionaries(st.integers(0, 3), st.integers(0, 30), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(
    begins=st.dictionaries(st.integers(0, 3), st.integers(0, 50), min_size=1),
    listings=LISTINGS,
    rows=st.integers(1, 12),
    linger=st.floats(0, 4),
)
def test_each_offset_is_in_one_segment_in_order(begins, listings, rows, linger):
    highs, now = dict(begins), 100.0
    token = token_of({p: Position(at) for p, at in begins.items()})
    seen = {}
    found = []
    clock_went_back = any(seconds < 0 for seconds, *_ in listings)
    appeared = {}  # (partition, offset) -> when a listing could have seen it first
    for seconds, more, restarted in listings:
        now += seconds
        for partition, count in more.items():
            first = highs.get(partition, 0)
            highs[partition] = first + count
            appeared |= {(partition, at): now for at in range(first, first + count)}
        seen = {} if restarted else seen
        marks = {p: (0, high) for p, high in highs.items()}
        positions = remembered(positions_of(token), seen)
        segments, seen = arrived("t", positions, marks, rows=rows, linger=linger, now=now)
        assert all(1 <= len(each) <= rows for each in segments)
        for each in segments:
            # Fewer only where its first record was there for so long.
            if len(each) < rows:
                assert now - appeared[each.partition, each.first] >= linger or clock_went_back
        found += segments
        token = token_of(seen) if segments or not restarted else token
    # All that was left is told once it has waited.
    for wait in (0, linger + 1e-3):
        now += wait
        marks = {p: (0, high) for p, high in highs.items()}
        positions = positions_of(token)
        segments, after = arrived("t", positions, marks, rows=rows, linger=linger, now=now)
        found += segments
        token = token_of(after)
    for partition, high in highs.items():
        own = [each for each in found if each.partition == partition]
        edges = [begins.get(partition, 0), *itertools.chain(*((e.first, e.end) for e in own)), high]
        assert edges[::2] == edges[1::2], own
    assert ends_of(map(str, found), "t") == {
        each.partition: max(e.end for e in found if e.partition == each.partition) for each in found
    }
    assert [Segment.parse(str(each)) for each in found] == found


def test_a_record_does_not_wait_longer_for_others_that_come():
    positions = {0: Position(0)}
    segments, positions = arrived("t", positions, {0: (0, 1)}, rows=100, linger=2, now=10)
    assert (segments, positions) == ([], {0: Position(0, 10)})
    segments, positions = arrived("t", positions, {0: (0, 50)}, rows=100, linger=2, now=11)
    assert (segments, positions) == ([], {0: Position(0, 10)})
    segments, positions = arrived("t", positions, {0: (0, 60)}, rows=100, linger=2, now=12)
    assert segments == [Segment("t", 0, 0, 60)]
    assert positions == {0: Position(60)}


def test_records_behind_a_full_segment_wait_from_then_on():
    segments, positions = arrived("t", {0: Position(0, 1)}, {0: (0, 15)}, rows=10, linger=5, now=3)
    assert segments == [Segment("t", 0, 0, 10)]
    assert positions == {0: Position(10, 3)}


def test_another_process_knows_how_long_a_record_has_waited_by_the_token():
    _, positions = arrived("t", {0: Position(0)}, {0: (0, 1)}, rows=9, linger=2, now=10)
    told = positions_of(token_of(positions))
    assert arrived("t", told, {0: (0, 1)}, rows=9, linger=2, now=12)[0]
    # And where the token is not kept, as no names came with it, the process by itself.
    told = remembered({0: Position(0)}, positions)
    assert arrived("t", told, {0: (0, 1)}, rows=9, linger=2, now=12)[0]
    told = remembered({0: Position(1)}, positions)
    assert told == {0: Position(1)}


def test_what_is_deleted_before_it_was_listed_is_listed_all_the_same():
    segments, _ = arrived("t", {0: Position(5)}, {0: (20, 25)}, rows=10, linger=0, now=0)
    assert segments == [Segment("t", 0, 5, 15), Segment("t", 0, 15, 25)]
    # A new partition begins at 0.
    segments, _ = arrived("t", {0: Position(5)}, {0: (0, 5), 1: (2, 3)}, rows=9, linger=0, now=0)
    assert segments == [Segment("t", 1, 0, 3)]


def test_a_partition_that_ends_before_its_position_is_refused():
    with pytest.raises(
        UserError, match=r"partition 3 of topic t ends before offset 4, .* up to offset 9"
    ):
        arrived("t", {3: Position(9)}, {3: (0, 4)}, rows=9, linger=0, now=0)


def test_a_first_listing_names_every_partition():
    segments = [Segment("t", 1, 5, 8)]
    named = with_beginnings(segments, {0: 7, 1: 5}, "t")
    assert [str(each) for each in named] == ["t/0@7-7", "t/1@5-8"]
    assert ends_of([*map(str, named), "other/3@1-2", "a.csv"], "t") == {0: 7, 1: 8}


@pytest.mark.parametrize("name", ["t/0@5-4", "t/0@5", "t@1-2", "a b/0@1-2", "t/0@1-2/x"])
def test_names_of_another_form_are_refused(name):
    with pytest.raises(UserError, match="is no segment of a topic"):
        Segment.parse(name)
