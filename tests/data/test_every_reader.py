"""What every format has in common: count, schema, exact ranges, and errors that name the place."""

import gzip
import json
import sqlite3

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.config.groups.data_format import DataFormat
from shoal.data import CsvReader, RecordIOWriter, open_reader
from shoal.data.blocks import BlockReader
from shoal.errors import UserError

ROWS = [{"id": i, "price": i / 4, "name": f"n{i}"} for i in range(60)]
TABLE = pa.Table.from_pylist(ROWS)
LINES = [json.dumps(row) for row in ROWS]
GROUP = 16
TYPED = {"id": "int64", "price": "double", "name": "string"}


def write_csv(path, bad=None):
    pacsv.write_csv(TABLE, path)
    if bad is not None:
        lines = path.read_text().split("\n")
        lines[bad + 1] = lines[bad + 1].replace(f"{bad},", f"{bad},1,2,", 1)
        path.write_text("\n".join(lines))


def write_csv_gz(path, bad=None):
    plain = path.with_suffix("")
    write_csv(plain, bad)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def write_parquet(path, bad=None):
    pq.write_table(TABLE, path, row_group_size=GROUP, compression="none")
    if bad is not None:  # the header of a page of the row group that has the record
        group = pq.ParquetFile(path).metadata.row_group(bad // GROUP)
        change(path, group.column(2).data_page_offset, b"\xff" * 8)


def write_feather(path, bad=None):
    with pa.ipc.new_file(path, TABLE.schema) as file:
        file.write_table(TABLE, max_chunksize=GROUP)


def write_arrow_stream(path, bad=None):
    with pa.ipc.new_stream(path, TABLE.schema) as file:
        file.write_table(TABLE, max_chunksize=GROUP)


def change(path, place, text):
    data = path.read_bytes()
    assert text not in data
    path.write_bytes(data[:place] + text + data[place + len(text) :])


def change_record(path, bad):
    """Change a byte within the record `bad`, which holds its line as it is."""
    if bad is not None:
        data = path.read_bytes()
        place = data.index(LINES[bad].encode())
        path.write_bytes(data[:place] + b"X" + data[place + 1 :])


def write_tfrecord(path, bad=None):
    with tf.io.TFRecordWriter(str(path)) as file:
        for line in LINES:
            file.write(line)
    change_record(path, bad)


def write_recordio(path, bad=None):
    with RecordIOWriter(path, chunk_bytes=400, compressor="none") as file:
        for line in LINES:
            file.write(line.encode())
    change_record(path, bad)


def write_lines(path, bad=None):
    lines = [line.encode() for line in LINES]
    if bad is not None:
        lines[bad] = lines[bad].replace(b":", b"=")
    path.write_bytes(b"\n".join(lines) + b"\n")


def write_sql(path, bad=None):
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, price REAL, name TEXT)")
    database.executemany("INSERT INTO t VALUES (:id, :price, :name)", ROWS)
    if bad is not None:
        database.execute("UPDATE t SET price = 'cheap' WHERE id = ?", [bad])
    database.commit()
    database.close()


BAD = 37

# Name -> how it is written, its schema, and what names the bad record.
FORMATS = {
    "a.csv": (write_csv, TYPED, rf"a\.csv: row {BAD + 1}: "),
    "a.csv.gz": (write_csv_gz, TYPED, rf"a\.csv\.gz: row {BAD + 1}: "),
    "a.parquet": (write_parquet, TYPED, r"a\.parquet: rows 33 to 48: cannot be read as Parquet"),
    "a.feather": (write_feather, TYPED, None),
    "a.arrows": (write_arrow_stream, TYPED, None),
    "a.tfrecord": (
        write_tfrecord,
        {"record": "binary"},
        rf"a\.tfrecord: row {BAD + 1}: .*checksum",
    ),
    "a.recordio": (
        write_recordio,
        {"record": "binary"},
        r"a\.recordio: row 34: .*chunk that begins here",
    ),
    "a.txt": (write_lines, {"line": "binary"}, None),  # any line is a record
    "a.jsonl": (write_lines, TYPED, rf"a\.jsonl: row {BAD + 1}"),
    "a.db": (write_sql, TYPED, rf"a\.db#t: row {BAD + 1} \(id = {BAD}\): column 'price'"),
}


def opened(path):
    given = f"sqlite:///{path}#t" if path.suffix == ".db" else str(path)
    return open_reader(given, "--training-data")


def records(reader, start, end):
    (source,) = reader.sources()
    return [row for batch in reader.read(source.name, start, end) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", FORMATS)
def test_count_schema_and_ranges(tmp_path, name):
    write, schema, _ = FORMATS[name]
    write(tmp_path / name)
    reader = opened(tmp_path / name)
    (source,) = reader.sources()
    assert source.records == len(ROWS)
    assert reader.metadata.column_types == schema
    expected = ROWS
    if len(schema) == 1:
        expected = [{next(iter(schema)): line.encode()} for line in LINES]
    for start, end in ((0, 60), (0, 1), (59, 60), (15, 33), (7, 7)):
        assert records(reader, start, end) == expected[start:end]
    with pytest.raises(UserError, match=f"{name}.*records 50 to 61 were asked for.*holds 60"):
        records(reader, 50, 61)


@pytest.mark.parametrize(
    "name", [name for name, (_, schema, _) in FORMATS.items() if schema == TYPED]
)
def test_a_reader_that_is_narrowed_reads_no_other_columns(tmp_path, name):
    write, *_ = FORMATS[name]
    write(tmp_path / name)
    reader = opened(tmp_path / name)
    assert reader.schema().names == list(TYPED)
    reader.narrow({"price", "name"})
    assert records(reader, 15, 33) == [
        {k: row[k] for k in ("price", "name")} for row in ROWS[15:33]
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": ("name", "price")},
        {"fill": (("price", "0.5"),), "masks": ("price",)},
    ],
    ids=["plain", "chosen", "shaped"],
)
@pytest.mark.parametrize(
    "name", [name for name, (_, schema, _) in FORMATS.items() if schema == TYPED]
)
def test_a_reader_that_is_widened_reads_all_columns_again(tmp_path, name, options):
    write, *_ = FORMATS[name]
    write(tmp_path / name)
    given = f"sqlite:///{tmp_path / name}#t" if name == "a.db" else str(tmp_path / name)
    reader = open_reader(given, "--training-data", data_format=DataFormat(**options))
    reader.widen()  # of what was never narrowed
    names = reader.schema().names
    first, expected = records(reader, 0, 3), records(reader, 15, 33)
    assert [row.keys() for row in expected] == [dict.fromkeys(names).keys()] * 18
    for some in ({names[-1]}, {"price"}, {"name"}):
        reader.narrow({"name", *some})
        reader.narrow(some)
        assert records(reader, 0, 3) == [{k: row[k] for k in some} for row in first]
        reader.widen()
        assert reader.schema().names == names
        assert records(reader, 15, 33) == expected


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [{}, {"fill": (("price", "0.5"),), "masks": ("price",)}])
def test_the_first_records_are_read_without_an_index(tmp_path, monkeypatch, name, shape):
    write, schema, _ = FORMATS[name]
    shape = shape if schema == TYPED else {}
    write(tmp_path / name)
    given = f"sqlite:///{tmp_path / name}#t" if name == "a.db" else str(tmp_path / name)
    expected = records(open_reader(given, "", data_format=DataFormat(**shape)), 0, 60)
    for kind in (BlockReader, CsvReader):
        monkeypatch.setattr(kind, "_index", None)
    reader = open_reader(given, "--training-data", data_format=DataFormat(**shape))
    for count, some in ((1, None), (20, None), (100, None), (3, list(schema)[-1:])):
        if some is not None:
            reader.narrow(some)
        source, batches = reader.head(count)
        found = [row for batch in batches for row in batch.to_pylist()]
        assert [row.keys() for row in found[:1]] == [dict.fromkeys(some or expected[0]).keys()]
        assert found == [{k: row[k] for k in some or row} for row in expected[:count]]
        assert source == reader.names()[0]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_the_first_records_are_those_of_the_first_file_that_has_some(tmp_path, name):
    write, *_ = FORMATS[name]
    (tmp_path / f"0{name}").write_text("id,price,name\n" if name == "a.csv" else "\n")
    write(tmp_path / name)
    reader = open_reader(str(tmp_path), "--training-data")
    source, batches = reader.head(3)
    assert source == str(tmp_path / name)
    assert sum(batch.num_rows for batch in batches) == 3
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match="--training-data"):
        open_reader(str(tmp_path), "--training-data").head(3)


@pytest.mark.parametrize("name", [name for name, (*_, words) in FORMATS.items() if words])
def test_a_bad_record_is_named_and_those_elsewhere_are_read(tmp_path, name):
    write, _, words = FORMATS[name]
    write(tmp_path / name, BAD)
    with pytest.raises(UserError, match=words):
        records(opened(tmp_path / name), 33, 45)


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_source_is_named_with_its_flag(tmp_path, name):
    with pytest.raises(UserError, match=f"^--training-data: .*{name}"):
        opened(tmp_path / name)
