"""Parquet: ranges over row groups equal slices, projection, errors."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data import Source, open_reader
from shoal.errors import UserError
from tests.data.strategies import RECORDS, ranges

FLAG = "--training-data"


def rows(batches):
    return [row for batch in batches for row in batch.to_pylist()]


@given(records=RECORDS, group=st.integers(1, 20), data=st.data())
def test_ranges_over_row_groups_equal_slices(tmp_path, records, group, data):
    path = tmp_path / "records.parquet"
    table = pa.table(
        {
            "id": [record[0] for record in records],
            "text": [record[1] for record in records],
            "tags": [[record[0]] * (abs(record[0]) % 3) for record in records],
        }
    )
    pq.write_table(table, path, row_group_size=group)
    reader = open_reader(str(path), FLAG)
    assert reader.sources() == [Source(str(path), len(records))]
    start, end = data.draw(ranges(len(records)))
    assert rows(reader.read(str(path), start, end)) == table.to_pylist()[start:end]


def test_only_the_columns_asked_for_are_read(tmp_path):
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"], "c": [[1], []]}), path)
    reader = open_reader(str(path), FLAG, columns=["c", "a"])
    assert reader.metadata.column_types == {"c": "list<element: int64>", "a": "int64"}
    assert rows(reader.read(str(path), 1, 2)) == [{"a": 2, "c": []}]


def test_a_missing_column_is_named_with_its_nearest(tmp_path):
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"label": [1], "user": [2]}), path)
    with pytest.raises(UserError, match=r"--training-data.*'labels' \(did you mean label\?\)"):
        list(open_reader(str(path), FLAG, columns=["labels"]).read(str(path), 0, 1))


def test_files_of_different_types_are_both_named(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "2.parquet")
    with pytest.raises(UserError, match=r"'a': int64 in .*1\.parquet, string in .*2\.parquet"):
        open_reader(str(tmp_path), FLAG).schema()


def test_a_file_that_is_not_parquet_is_named(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(UserError, match=r"bad\.parquet: cannot be read as Parquet"):
        open_reader(str(tmp_path), FLAG).sources()


def test_damage_inside_a_file_is_found_when_it_is_read(tmp_path):
    path = tmp_path / "hurt.parquet"
    pq.write_table(pa.table({"a": list(range(10_000))}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    reader = open_reader(str(path), FLAG)
    with pytest.raises(UserError, match=r"hurt\.parquet: rows 1 to 8192: cannot be read"):
        list(reader.read(str(path), 0, 10_000))


def test_a_file_that_goes_away_is_named(tmp_path):
    path = tmp_path / "gone.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    reader = open_reader(str(path), FLAG)
    path.unlink()
    with pytest.raises(UserError, match="the file is gone"):
        reader.sources()
