"""Shuffled windows as a worker reads them: every record once, wherever a task is cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.groups.event_time import EventTime
from shoal.data.columns import ListColumn
from shoal.data.opening import open_reader
from shoal.data.pieces import taken
from shoal.errors import UserCodeError, UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.attribution import attributed
from shoal.worker.engines.tensorflow.input.feed import InputPipeline
from shoal.worker.input.modes import TRAINING
from shoal.worker.input.shuffling import Shuffled
from tests.worker.conftest import MODULE

EDGES = (0, 30, 60, 90, 100)


@pytest.fixture
def pipeline(module):
    def make(path, text=MODULE, **options):
        reader = open_reader(path, "--training-data")
        return InputPipeline(reader, module(text), TRAINING, "--training-data", 8, **options)

    return make


def order(path, edges=EDGES, epoch=0):
    return Shuffled(3, epoch, path, edges)


def read(made, path, start, end, shuffled=None):
    shuffled = shuffled or order(path)
    batches = made.batches(pb.Range(source=path, start=start, end=end), shuffled)
    return [
        np.concatenate([batch.features.numpy()[:, 0], batch.labels.numpy()[:, 0]])
        for batch in batches
    ]


def xs(found):
    return [int(x) for batch in found for x in batch[: len(batch) // 2]]


def test_a_task_has_the_records_of_its_positions(pipeline, numbers):
    made = pipeline(numbers)
    shuffled = order(numbers)
    whole = [shuffled.record(position) for position in range(100)]
    for start, end in ((0, 100), (0, 30), (13, 71), (59, 61), (99, 100), (71, 100)):
        assert xs(read(made, numbers, start, end)) == whole[start:end]
    assert sorted(whole) == list(range(100))
    assert xs(read(made, numbers, 0, 100, order(numbers, epoch=1))) != whole


def test_features_and_labels_stay_together_and_minibatches_cross_windows(pipeline, numbers):
    found = read(pipeline(numbers), numbers, 25, 60)
    assert [len(batch) // 2 for batch in found] == [8, 8, 8, 8, 3]
    for batch in found:
        x, y = np.split(batch, 2)
        np.testing.assert_array_equal(y, 2 * x)


def test_a_window_is_read_once_for_tasks_that_follow_one_another(pipeline, numbers, monkeypatch):
    made = pipeline(numbers)
    asked = []
    real = made._records.reader.read
    monkeypatch.setattr(
        made._records.reader,
        "read",
        lambda source, start, end: (asked.append((start, end)), real(source, start, end))[1],
    )
    for start in range(0, 60, 15):
        read(made, numbers, start, start + 15)
    assert asked == [(0, 30), (30, 60)]


def test_event_times_are_those_of_the_records(pipeline, parquet):
    path = parquet(x=np.arange(100), y=2 * np.arange(100), at=1_600_000_000 + np.arange(100))
    made = pipeline(path, event_time=EventTime.parse("at:s"))
    shuffled = order(path)
    batches = list(made.batches(pb.Range(source=path, start=10, end=50), shuffled))
    for batch in batches:
        records = sorted(int(x) for x in batch.features.numpy()[:, 0])
        middle = records[-(-len(records) // 2) - 1]
        assert batch.event_time == (1_600_000_000 + middle) * 1_000_000


def test_a_record_that_cannot_be_read_is_at_fault_alone(pipeline, parquet):
    values = [None if i in (7, 41) else i for i in range(100)]
    path = parquet(x=np.arange(100), y=values)
    made = pipeline(path)
    shuffled = order(path)
    positions = sorted(p for p in range(100) if shuffled.record(p) in (7, 41))
    good, start = [], 0
    for position in positions:
        with pytest.raises(UserError, match="column 'y': 1 missing values") as raised:
            read(made, path, start, 100)
        assert attributed(raised.value) == pb.Range(source=path, start=position, end=position + 1)
        good += xs(read(made, path, start, position)) if position > start else []
        start = position + 1
    good += xs(read(made, path, start, 100))
    assert sorted(good) == [x for x in range(100) if x not in (7, 41)]


def test_an_error_in_feed_names_the_record_and_not_its_position(pipeline, numbers):
    text = MODULE.replace(
        "return dataset.map(parse)",
        "return dataset.map(lambda r: parse(r | {'x': 1 // (r['x'] - 55) * 0 + r['x']}))",
    )
    shuffled = order(numbers)
    position = next(p for p in range(100) if shuffled.record(p) == 55)
    with pytest.raises(UserCodeError, match=r"record 55 raised") as raised:
        read(pipeline(numbers, text), numbers, 0, 100)
    assert attributed(raised.value) == pb.Range(source=numbers, start=position, end=position + 1)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), min_size=1), st.data()
)
def test_lists_of_lists_are_taken_whole(lists, data):
    inner = [each for outer in lists for each in outer]
    column = ListColumn(
        ListColumn(
            np.array([x for each in inner for x in each], np.int64),
            np.array([len(each) for each in inner], np.int64),
        ),
        np.array([len(each) for each in lists], np.int64),
    )
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    found = taken({"a": column}, np.array(rows, np.int64))["a"]
    values = iter(found.values.values.tolist())
    lengths = iter(found.values.row_lengths.tolist())
    back = [
        [[next(values) for _ in range(next(lengths))] for _ in range(length)]
        for length in found.row_lengths.tolist()
    ]
    assert back == [lists[row] for row in rows]
