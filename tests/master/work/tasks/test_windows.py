"""Windows of --shuffle buffer:N: whole, aligned with units, in one order for master and workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.shuffling import by_numbers, unit_edges, window_edges, window_order
from shoal.master.work.tasks.windows import Windows, with_windows
from shoal.master.work.units import Source, Span, Task
from shoal.proto import shoal_pb2 as pb
from shoal.worker.input.shuffling import Shuffled
from tests.master import strategies
from tests.master.strategies import board

sizes = st.integers(2, 20)


@given(strategies.sources, sizes)
def test_windows_are_whole_and_end_where_units_do_unless_within_one(sources, size):
    for source in sources:
        edges = window_edges(source.records, source.units, size)
        lengths = np.diff(edges)
        assert edges[0] == 0
        assert edges[-1] == source.records
        assert all(0 < length <= size for length in lengths)
        units = [0, *unit_edges(source.units).tolist()]
        for edge in edges[1:].tolist() if source.units else ():
            if edge not in units:
                begin = max(unit for unit in units if unit < edge)
                before = edges[edges < edge][-1]
                assert before >= begin, "a window that ends within a unit began in another one"


@given(strategies.sources, sizes)
def test_pieces_hold_units_and_windows_whole(sources, size):
    for source in sources:
        pieces = with_windows(source, size)
        assert replace(pieces, units=source.units) == source
        if not source.records:
            continue
        found = set(unit_edges(pieces.units).tolist())
        windows = set(window_edges(source.records, source.units, size)[1:].tolist())
        units = set(unit_edges(source.units).tolist()) if source.units else windows
        assert found == windows & units
        assert source.records in found


@given(st.integers(1, 60), sizes, st.integers(0, 3), st.integers(0, 2), st.data())
def test_positions_and_records_are_one_to_one_and_the_worker_s_are_the_same(
    records, size, seed, epoch, data
):
    source = Source("a", records)
    windows = Windows([source], size, seed)
    there = [windows.record(epoch, "a", position) for position in range(records)]
    assert sorted(there) == list(range(records))
    assert [windows.position(epoch, "a", record) for record in there] == list(range(records))
    start = data.draw(st.integers(0, records - 1))
    end = data.draw(st.integers(start + 1, records))
    span = Span("a", start, end)
    task = Task(1, pb.TRAIN, span, epoch, windows=windows.of(span))
    shuffled = Shuffled.of(task.to_message(), seed)
    assert [shuffled.record(position) for position in range(start, end)] == there[start:end]


def test_orders_differ_by_seed_epoch_source_and_window():
    orders = [
        window_order(seed, epoch, source, first, 100).tolist()
        for seed, epoch, source, first in (
            (0, 0, "a", 0),
            (1, 0, "a", 0),
            (0, 1, "a", 0),
            (0, 0, "b", 0),
            (0, 0, "a", 100),
        )
    ]
    assert len({tuple(order) for order in orders}) == 5
    # It stays what it is: the positions of a job that is resumed mean the same records.
    assert window_order(0, 0, "a", 0, 8).tolist() == [0, 1, 5, 7, 4, 2, 6, 3]


def drained(tasks):
    """(epoch, source, record) of all that is given out, in order, and the number of tasks."""
    found = []
    while (task := tasks.take()) is not None:
        order = Shuffled.of(task.to_message(), seed=4)
        for position in range(task.span.start, task.span.end):
            record = position if order is None else order.record(position)
            found.append((task.epoch, task.span.source, record))
        tasks.complete(task.id)
    return found


def test_without_shuffling_records_follow_one_another():
    tasks = board(25, 30, records_per_task=10, epochs=2, seed=4, shuffle_tasks=False)
    assert drained(tasks) == [
        (epoch, f"part-{part}", record)
        for epoch in range(2)
        for part, records in enumerate((25, 30))
        for record in range(records)
    ]


def test_records_are_shuffled_within_windows_anew_in_each_epoch():
    tasks = board(60, epochs=2, seed=4, shuffle_buffer=20, shuffle_tasks=False)
    found = [record for _, _, record in drained(tasks)]
    epochs = [found[:60], found[60:]]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        for first in (0, 20, 40):
            window = epoch[first : first + 20]
            assert sorted(window) == list(range(first, first + 20))
            assert window != sorted(window)


@settings(max_examples=60, deadline=None)
@given(strategies.sources, st.integers(1, 15), sizes, st.integers(1, 3), st.booleans(), st.data())
def test_records_that_are_given_up_are_left_out_of_every_epoch_once(
    sources, records_per_task, size, epochs, shuffle_tasks, data
):
    everything = [(each.name, record) for each in sources for record in range(each.records)]
    if not everything:
        return
    bad = data.draw(st.sampled_from(everything))
    source, first = bad
    end = data.draw(st.integers(first + 1, max(r for s, r in everything if s == source) + 1))
    tasks = board(
        *sources,
        records_per_task=records_per_task,
        epochs=epochs,
        seed=4,
        shuffle_buffer=size,
        shuffle_tasks=shuffle_tasks,
    )
    # The first lease meets it, as it were, at whatever place it is in the order.
    tasks.exclude(Span(source, first, end))
    found = drained(tasks)
    good = [each for each in everything if each[0] != source or not first <= each[1] < end]
    expected = {(epoch, *each) for epoch in range(epochs) for each in good}
    assert set(found) == expected
    assert len(found) == len(expected)
    ledger = tasks.ledger()
    assert (ledger.trained, ledger.failed, ledger.pending) == (
        len(expected),
        epochs * (end - first),
        0,
    )


def test_a_task_that_is_cut_goes_on_with_the_rest_of_the_same_order():
    tasks = board(40, records_per_task=16, seed=4, shuffle_buffer=16)
    task = tasks.take()
    order = Shuffled.of(task.to_message(), 4)
    whole = [order.record(position) for position in range(task.span.start, task.span.end)]
    tasks.progress(task.id, 5)
    tasks.give_back(task.id, 7)
    rest = tasks.take()
    assert rest.span == Span(task.span.source, task.span.start + 5, task.span.end)
    again = Shuffled.of(rest.to_message(), 4)
    assert [again.record(p) for p in range(rest.span.start, rest.span.end)] == whole[5:]


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        (["day=10/a", "day=2/a", "day=2/b"], ["day=2/a", "day=2/b", "day=10/a"]),
        (["x", "10", "9", "x1", ""], ["", "9", "10", "x", "x1"]),
        (["p-01", "p-1", "p-001"], ["p-001", "p-01", "p-1"]),
    ],
)
def test_names_are_sorted_by_their_numbers(names, ordered):
    assert sorted(names, key=by_numbers) == ordered
