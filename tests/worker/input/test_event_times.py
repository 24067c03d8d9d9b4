"""Event times: the column, its unit, the median of each batch, and what is refused."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.groups.event_time import EventTime
from shoal.data.opening import open_reader
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.engines.tensorflow.input.feed import InputPipeline
from shoal.worker.input.event_times import RangeTimes, median
from shoal.worker.input.modes import TRAINING
from tests.worker.conftest import MODULE

pytestmark = pytest.mark.slow

SECOND, DAY = 10**6, 86_400 * 10**6
START = 1_700_000_000

BATCHED = MODULE.split("def feed(")[0] + (
    "def feed_batch(columns, mode, metadata):\n"
    "    x = tf.cast(columns['x'], tf.float32)[:, None]\n"
    "    return x if mode == 'prediction' else (x, 2 * x)\n"
)


@pytest.fixture
def times_of(parquet, module):
    """The event time of each batch of four of the records whose times are the column `at`."""

    def found(values, flag="at", text=MODULE, start=0, end=None):
        path = parquet(x=np.arange(len(values)), y=np.zeros(len(values)), at=values)
        reader = open_reader(path, "--training-data")
        event_time = EventTime.parse(flag)
        pipeline = InputPipeline(
            reader, module(text), TRAINING, "--training-data", 4, event_time=event_time
        )
        records = pb.Range(source=path, start=start, end=len(values) if end is None else end)
        return [batch.event_time for batch in pipeline.batches(records)]

    return found


@pytest.mark.parametrize("text", [MODULE, BATCHED])
def test_a_batch_has_the_lower_median_of_its_records(times_of, text):
    seconds = [START + each for each in (5, 1, 9, 3, 20, 22, 21)]
    expected = [(START + 3) * SECOND, (START + 21) * SECOND]
    assert times_of(seconds, "at:s", text) == expected
    assert times_of(seconds, "at:s", text, start=4) == expected[1:]
    assert times_of(seconds, "at:s", text, start=2, end=5) == [(START + 9) * SECOND]


@pytest.mark.parametrize(
    ("kind", "flag", "value", "expected"),
    [
        (pa.timestamp("s"), "at", START, START * SECOND),
        (pa.timestamp("ms", "UTC"), "at", START * 1000 + 7, START * SECOND + 7_000),
        (pa.timestamp("us"), "at:us", START * SECOND + 1, START * SECOND + 1),
        (pa.timestamp("ns"), "at", START * 10**9 + 1_999, START * SECOND + 1),
        (pa.date32(), "at", 19_000, 19_000 * DAY),
        (pa.date64(), "at", 19_000 * 86_400_000, 19_000 * DAY),
        (pa.int32(), "at:s", START, START * SECOND),
        (pa.uint64(), "at:ms", START * 1000, START * SECOND),
        (pa.int64(), "at:ns", START * 10**9, START * SECOND),
        (pa.int16(), "at:d", 19_000, 19_000 * DAY),
        (pa.float64(), "at:s", START + 0.25, START * SECOND + 250_000),
        (pa.int64(), "at:s", -5, -5 * SECOND),
        (pa.int64(), "at:s", 3, 3 * SECOND),  # data that somebody made up begin at 0
    ],
)
def test_the_unit_is_the_types_or_named(times_of, kind, flag, value, expected):
    assert times_of(pa.array([value], kind), flag) == [expected]


def test_where_feed_drops_records_it_is_the_median_of_those_read(times_of):
    """Nobody knows which records a batch was made of, then."""
    dropping = MODULE.replace(
        "return dataset.map(parse)",
        "return dataset.map(parse).filter(lambda *xy: tf.reduce_sum(xy[0]) >= 3)",
    )
    assert (
        times_of([START + each for each in range(8)], "at:s", dropping)
        == [(START + 3) * SECOND] * 2
    )


@pytest.mark.parametrize(
    ("values", "flag", "why"),
    [
        (
            [START],
            "when:s",
            r"--event-time: there is no column 'when' in .*; the columns are x, y, at",
        ),
        ([START], "att:s", r"no column 'att' \(did you mean at\?\)"),
        ([START], "at", "type int64, which does not tell its unit: add it, as at:s "),
        (["today"], "at", "of type string; a time is a number, a timestamp or a date"),
        (
            pa.array([START], pa.timestamp("us")),
            "at:ms",
            r"at:ms: the column is of type timestamp\[us\], which counts in us: use .* at$",
        ),
        (
            [START * 1000],
            "at:s",
            r"begins with the year 5\d,\d{3} in s; in ms it is 2023-11-14: use --event-time at:ms",
        ),
        ([START], "at:ms", r"begins with 1970-01-20 in ms; in s it is 2023-11-14: use .* at:s"),
        (
            [START, START + 9, START - 3 * 366 * 86_400],
            "at:s",
            r"go back by 3\.0 years, to 2020-11-11 in row 3: .* sort the records by 'at'",
        ),
        ([START, None], "at:s", "1 missing values, the first in row 2"),
        ([START * 1.0, None], "at:s", "in row 2 is nan, which is no time in s"),
        ([START, 2**62], "at:s", "in row 2 is 4611686018427387904, which is no time in s"),
        ([[START]], "at:s", "of type list<"),
    ],
)
def test_what_is_no_time_is_refused_by_column_and_row(times_of, values, flag, why):
    with pytest.raises(UserError, match=why):
        times_of(values, flag)


def test_a_wrong_time_further_on_names_its_row(times_of):
    values = [float(START)] * 9000 + [float("inf")]
    with pytest.raises(UserError, match="in row 9001 is inf, which is no time"):
        times_of(values, "at:s")


@given(
    st.lists(st.lists(st.integers(-(2**60), 2**60), max_size=9), max_size=9),
    st.integers(1, 7),
)
def test_medians_are_those_of_the_records_in_order(chunks, size):
    times = RangeTimes()
    for chunk in chunks:
        times.add(np.array(chunk, np.int64))
    joined = [each for chunk in chunks for each in chunk]
    for first in range(0, len(joined), size):
        part = sorted(joined[first : first + size])
        assert times.of(first, size) == part[(len(part) - 1) // 2] == median(part)
    assert median([]) is None


def test_a_date_is_told_in_the_calendar(times_of):
    day = datetime.date(2024, 2, 29)
    assert times_of(pa.array([day], pa.date32())) == [
        int(datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC).timestamp()) * SECOND
    ]
