"""Parquet: row groups, projection, errors."""

import gc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.data import open_reader
from shoal.errors import UserError

FLAG = "--training-data"


def rows(batches):
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_row_group_that_stays_open_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"a": range(100_000)}), path, row_group_size=50_000)
    reader = open_reader(str(path), FLAG)
    assert reader.sources()[0].units == ((50_000, 2),)
    begun = []
    iterate = pq.ParquetFile.iter_batches

    def iter_batches(self, **options):
        begun.append([*options["row_groups"]])
        return iterate(self, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    for start in range(0, 100_000, 3_000):
        end = min(start + 3_000, 100_000)
        assert rows(reader.read(str(path), start, end)) == [{"a": i} for i in range(start, end)]
    # The range from 48,000 on begins in the first row group, which is open, and ends in the second.
    assert begun == [[0], [1]]
    # Behind what was taken, the rest between is skipped; before it, all is read again.
    assert rows(reader.read(str(path), 60_000, 60_001)) == [{"a": 60_000}]
    assert rows(reader.read(str(path), 70_000, 70_001)) == [{"a": 70_000}]
    assert rows(reader.read(str(path), 69_999, 70_000)) == [{"a": 69_999}]
    assert begun == [[0], [1], [1], [1]]


def test_small_row_groups_are_decoded_by_few_calls(tmp_path, monkeypatch):
    """As many as are not much memory; where one lacks rows, no record of any is read."""
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"a": range(40_000)}), path, row_group_size=5_000)
    begun = []
    iterate = pq.ParquetFile.iter_batches

    def iter_batches(self, **options):
        begun.append([*options["row_groups"]])
        for batch in iterate(self, **options):
            yield batch.slice(0, len(batch) - (len(begun) > 2))

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    reader = open_reader(str(path), FLAG)
    assert rows(reader.read(str(path), 0, 40_000)) == [{"a": i} for i in range(40_000)]
    assert begun == [[0, 1, 2, 3, 4, 5], [6, 7]]
    found = open_reader(str(path), FLAG).read(str(path), 0, 40_000)
    with pytest.raises(
        UserError, match=r"rows 1 to 30000: .*row groups 0 to 5 have 29996 rows, an"
    ):
        next(found)


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
        open_reader(str(tmp_path), FLAG).sources()
    reader = open_reader(str(tmp_path), FLAG)
    with pytest.raises(UserError, match=r"'a': int64 in .*1\.parquet, string in .*2\.parquet"):
        list(reader.read(str(tmp_path / "2.parquet"), 0, 1))


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


def test_footers_of_files_that_were_read_are_not_held(tmp_path, monkeypatch):
    """Nor until Python looks for circles: those of thousands of files are gigabytes."""
    monkeypatch.setattr("shoal.data.readers.parquet_reader.FOOTER_BYTES", 1)
    for number in range(20):
        pq.write_table(pa.table({"a": [number]}), tmp_path / f"{number:02}.parquet")

    def held():
        # By their types: isinstance() asks objects for attributes, of which some warn.
        kinds = (pq.FileMetaData, pq.ParquetSchema)
        return sum(issubclass(type(each), kinds) for each in gc.get_objects())

    reader = open_reader(str(tmp_path), FLAG)
    gc.collect()
    before = held()
    gc.disable()
    try:
        for name in reader.names():
            assert reader.describe(name).records == 1
            assert rows(reader.read(name, 0, 1))
        assert held() - before <= 2
    finally:
        gc.enable()


def test_a_row_group_with_fewer_rows_than_its_footer_says_is_told(tmp_path):
    """As Arrow writes it: two rows in a page, of which it reads none."""
    path = tmp_path / "short.parquet"
    table = pa.table({"a": [[1], [2], [3], [4], [5]]})
    with pq.ParquetWriter(path, table.schema, data_page_size=1) as writer:
        for start, count in ((0, 1), (1, 4)):
            writer.write_table(table.slice(start, count))
    if pq.read_table(path).num_rows == 5:
        pytest.skip("this Arrow writes what it can read")
    reader = open_reader(str(path), FLAG)
    with pytest.raises(UserError, match=r"row groups? 0.* \d rows?, and the footer says \d"):
        rows(reader.read(str(path), 0, 5))


@pytest.mark.parametrize("group", [1, 3, 20])
def test_rows_are_counted_by_row_groups(tmp_path, monkeypatch, group):
    """Records are never shifted: a group that lacks one is refused, whatever the next one has."""
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"a": range(20)}), path, row_group_size=group)
    iterate = pq.ParquetFile.iter_batches

    def iter_batches(self, **options):
        for batch in iterate(self, **options):
            yield batch.slice(1)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    reader = open_reader(str(path), FLAG)
    with pytest.raises(UserError, match=r"rows \d+ to \d+: .* and the footer says 20"):
        rows(reader.read(str(path), 0, 20))
