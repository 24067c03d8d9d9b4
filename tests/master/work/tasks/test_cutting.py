"""Ranges and blocks of sources with units: nothing is left out, and units are read once."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.master.work.tasks.cutting import Ranges, cut, cut_units
from shoal.master.work.units import Requester, Source, Span
from tests.master import strategies
from tests.master.strategies import board

shapes = st.tuples(strategies.sources, st.integers(1, 5), st.integers(1, 4))


@given(shapes)
def test_ranges_cover_each_source_in_order_and_are_no_longer_than_told(shape):
    sources, minibatch, minibatches = shape
    spans = cut(sources, minibatch * minibatches, minibatch)
    for source in sources:
        own = [span for span in spans if span.source == source.name]
        assert [r for span in own for r in range(span.start, span.end)] == [*range(source.records)]
        assert all(0 < len(span) <= minibatch * minibatches for span in own)


@given(shapes)
def test_numbers_and_ranges_agree(shape):
    sources, minibatch, minibatches = shape
    ranges = Ranges(sources, minibatch * minibatches, minibatch)
    numbers = np.arange(ranges.count)
    spans = [ranges.span(number) for number in range(ranges.count)]
    assert ranges.lengths(numbers).tolist() == [len(span) for span in spans]
    for number, span in enumerate(spans):
        for record in (span.start, span.end - 1):
            assert ranges.number_of(span.source, record) == number
    for source in sources:
        assert ranges.number_of(source.name, source.records) is None
    firsts, ends = ranges.of_blocks(np.arange(ranges.blocks))
    assert [*itertools.chain(*map(range, firsts, ends))] == numbers.tolist()
    for block, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        assert {ranges.block_of(number) for number in range(first, end)} == {block}
        assert len({spans[number].source for number in range(first, end)}) == 1


@given(shapes)
def test_a_unit_that_several_ranges_share_is_in_one_block(shape):
    sources, minibatch, minibatches = shape
    ranges = Ranges(sources, minibatch * minibatches, minibatch)
    for source in sources:
        start = 0
        for length, times in source.units:
            for _ in range(times):
                blocks = {
                    ranges.block_of(ranges.number_of(source.name, record))
                    for record in range(start, start + length)
                }
                # Unless a block ends within it: only where the unit does.
                assert len(blocks) == 1
                start += length


def test_ranges_end_with_units_where_few_minibatches_are_short_by_that():
    # 244 ranges of a large unit, and what is left of it.
    ends, blocks = cut_units(2_000_000, ((1_000_000, 2),), 4096, 512)
    assert np.diff(blocks, prepend=0).tolist() == [245, 245]
    assert ends[244] == 1_000_000
    # Units of a tenth of a range: as many as fit in.
    ends, blocks = cut_units(40_000, ((400, 100),), 4096, 512)
    assert ends.tolist() == [*range(4000, 40_001, 4000)]
    assert len(blocks) == len(ends)
    # 600 records make one minibatch of 512 and one of 88: too short.
    ends, _ = cut_units(6000, ((600, 10),), 512, 512)
    assert ends[0] == 512


def test_units_that_hold_other_records_are_refused():
    with pytest.raises(ValueError, match="units of 20 records for 30"):
        cut_units(30, ((10, 2),), 10, 5)


def test_each_worker_stays_with_its_block_and_takes_of_others_when_none_is_left():
    tasks = board(Source("a", 80, ((40, 2),)))
    taken = defaultdict(list)
    for worker in (0, 1, 0, 1, 0, 0, 0, 1):
        task = tasks.take(Requester(worker))
        taken[worker].append(task.span.start)
        tasks.complete(task.id)
    first = taken[0][0]
    assert taken[0][:4] == [first, first + 10, first + 20, first + 30]
    # The fifth is of what worker 1 has left, from its second half.
    second = taken[1][0]
    assert taken[1] == [second, second + 10, second + 20]
    assert taken[0][4] == second + 30
    assert tasks.finished


def test_a_resumed_job_goes_on_by_blocks():
    tasks = board(Source("a", 400, ((100, 4),)))
    tasks.resume((), 1)
    starts = []
    while (task := tasks.take(Requester(0))) is not None:
        starts.append(task.span.start)
        tasks.complete(task.id)
    runs = [starts[i : i + 10] for i in range(0, 40, 10)]
    assert all(run == [*range(run[0], run[0] + 100, 10)] for run in runs)
    assert sorted(run[0] for run in runs) == [0, 100, 200, 300]


@given(shapes, st.integers(1, 3), st.data())
def test_workers_in_any_turn_do_every_record_once(shape, epochs, data):
    sources, minibatch, minibatches = shape
    tasks = board(
        *sources,
        records_per_task=minibatch * minibatches,
        batch_size=minibatch,
        epochs=epochs,
    )
    turns = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=30))
    seen = []
    for worker in itertools.cycle(turns):
        if (task := tasks.take(Requester(worker))) is None:
            break
        assert not tasks.waits(task.id)
        seen += [
            (task.epoch, Span(task.span.source, record, record + 1))
            for record in range(task.span.start, task.span.end)
        ]
        tasks.complete(task.id)
        tasks.check()
    assert len(seen) == len(set(seen)) == epochs * sum(source.records for source in sources)
    assert tasks.finished
