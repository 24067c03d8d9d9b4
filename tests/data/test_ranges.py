"""Ranges of files behind URLs: exact bytes, fetched ahead, over failures and stalls."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import open_reader, ranges
from shoal.data.ranges import RangeFile, pieces_of
from tests.data.counting import counted
from tests.examples import examples

CONTENT = np.random.default_rng(0).bytes(3_000_000)
FLAG = "--training-data"


class Store:
    """Bytes that are fetched by range. fails: of which calls, by number; stalls: likewise."""

    def __init__(self, content=CONTENT, fails=(), stalls=()):
        self.content = content
        self.calls = []
        self.fails, self.stalls = set(fails), set(stalls)
        self.goes_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, begin, end):
        with self._lock:
            self.calls.append((begin, end))
            number = len(self.calls)
        if number in self.fails:
            raise OSError("not now")
        if number in self.stalls:
            self.goes_on.wait()
        return self.content[begin:end]

    def file(self):
        return RangeFile(self, len(self.content))


def spans(most):
    return st.tuples(st.integers(0, most), st.integers(0, most)).map(lambda each: sorted(each))


@settings(max_examples=examples(100), deadline=None)
@given(
    expected=st.lists(spans(len(CONTENT)), max_size=6),
    read=st.lists(spans(len(CONTENT)), min_size=1, max_size=6),
)
def test_whatever_was_expected_the_bytes_are_those_asked_for(expected, read):
    file = Store().file()
    file.expect(map(tuple, expected))
    for begin, end in read:
        file.seek(begin)
        assert file.read(end - begin) == CONTENT[begin:end]
        assert file.tell() == end


def test_ranges_that_are_expected_are_fetched_once_and_nothing_else_is():
    store = Store()
    file = store.file()
    wanted = [(10, 200_000), (200_100, 300_000), (2_000_000, 2_900_000)]
    file.expect(wanted)
    for begin, end in wanted:
        for start in range(begin, end, 70_000):
            file.seek(start)
            assert file.read(min(70_000, end - start)) == CONTENT[start : min(start + 70_000, end)]
    # The first two are neighbours: one request.
    assert sorted(store.calls) == [(10, 300_000), (2_000_000, 2_900_000)]


def test_columns_that_are_read_side_by_side_are_fetched_so(monkeypatch):
    monkeypatch.setattr(ranges, "AHEAD_BYTES", 1_000_000)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 100_000)
    found = pieces_of([(0, 1_000_000), (1_500_000, 2_500_000)])
    assert [(each.begin, each.end) for each in found] == [
        (base + begin, base + begin + 250_000)
        for begin in range(0, 1_000_000, 250_000)
        for base in (0, 1_500_000)
    ]


def test_no_more_is_fetched_ahead_than_is_allowed(monkeypatch):
    monkeypatch.setattr(ranges, "AHEAD_BYTES", 1_000_000)
    monkeypatch.setattr(ranges, "PIECE_BYTES", 250_000)
    store = Store()
    file = store.file()
    file.expect([(0, len(CONTENT))])
    for start in range(0, len(CONTENT), 250_000):
        file.seek(start)
        assert file.read(250_000) == CONTENT[start : start + 250_000]
        assert sum(end - begin for begin, end in store.calls) <= start + 1_250_000
    assert sum(end - begin for begin, end in store.calls) == len(CONTENT)


def test_a_request_that_fails_is_made_again_and_one_that_stalls_a_second_time(monkeypatch):
    monkeypatch.setattr(ranges, "PATIENCE_SECONDS", 0.01)
    store = Store(fails=[1, 2], stalls=[3])
    file = store.file()
    file.expect([(0, 1000)])
    try:
        assert file.read(1000) == CONTENT[:1000]
    finally:
        store.goes_on.set()
    assert store.calls == [(0, 1000)] * 4


def test_an_error_that_stays_is_raised_and_the_file_can_be_read_afterwards():
    store = Store(fails=range(1, 5))
    file = store.file()
    file.expect([(0, 1000)])
    with pytest.raises(OSError, match="not now"):
        file.read(1000)
    assert file.read(1000) == CONTENT[:1000]


@pytest.fixture
def counting():
    return counted()


def chunk_bytes(footer, columns):
    return sum(
        footer.row_group(group).column(column).total_compressed_size
        for group in range(footer.num_row_groups)
        for column in columns
    )


@pytest.mark.parametrize("group", [20_000, 300_000])
def test_tasks_of_a_row_group_read_it_once_and_its_used_columns_alone(
    counting, tmp_path, group, monkeypatch
):
    monkeypatch.setattr("shoal.data.readers.parquet_reader.WHOLE_BYTES", 10 << 20)
    draw = np.random.default_rng(0)
    table = pa.table({f"c{i}": draw.integers(0, 2**40, 300_000) for i in range(20)})
    pq.write_table(table, tmp_path / "big.parquet", row_group_size=group)
    footer = pq.read_metadata(tmp_path / "big.parquet")
    url = f"counting://{tmp_path}/big.parquet"
    reader = open_reader(url, FLAG)
    reader.narrow({"c3", "c4", "c11"})
    rows = 0
    for start in range(0, 300_000, 4_000):
        for batch in reader.read(url, start, start + 4_000):
            expected = table["c11"].slice(rows, batch.num_rows)
            assert batch["c11"].equals(expected.combine_chunks())
            rows += batch.num_rows
    assert rows == 300_000
    used = chunk_bytes(footer, (3, 4, 11))
    assert used <= counting.bytes_read <= 1.1 * used
