"""Files that are written anew or removed while a reader has them open."""

import gzip
import json
import os

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.data import RecordIOWriter, open_reader
from shoal.errors import UnreadableError, UserError
from tests.data.told import Told

FLAG = "--training-data"
RECORDS = 50


def _table(records):
    return pa.table({"id": range(records)})


def _tfrecord(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in range(records):
            writer.write(b"%d" % i)


def _recordio(path, records):
    with RecordIOWriter(path) as writer:
        for i in range(records):
            writer.write(b"%d" % i)


def _json_lines(path, records):
    path.write_text("".join(json.dumps({"id": i}) + "\n" for i in range(records)))


def _packed(path, records):
    path.write_bytes(gzip.compress(b"id\n" + b"".join(b"%d\n" % i for i in range(records))))


WRITERS = {
    "csv": lambda path, records: pacsv.write_csv(_table(records), path),
    "csv.gz": _packed,
    "jsonl": _json_lines,
    "txt": lambda path, records: path.write_text("x\n" * records),
    "tfrecord": _tfrecord,
    "recordio": _recordio,
    "arrow": lambda path, records: feather.write_feather(_table(records), path),
    "parquet": lambda path, records: pq.write_table(_table(records), path, row_group_size=10),
}


def _reader(path, kind):
    """A reader with an index that another process has told, as workers have it."""
    WRITERS[kind](path, RECORDS)
    told = Told()
    told.describe(open_reader(str(path), FLAG))
    return told.to(open_reader(str(path), FLAG))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_was_written_anew_between_two_ranges_is_told(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    reader = _reader(path, kind)
    assert sum(len(batch) for batch in reader.read(str(path), 0, 10)) == 10
    # By another file in its place, so that what is open could still be read.
    WRITERS[kind](tmp_path / f"b.{kind}", RECORDS - 1)
    (tmp_path / f"b.{kind}").replace(path)
    if kind == "parquet":  # which has the file of the description open, and reads that
        assert sum(len(batch) for batch in reader.read(str(path), 10, 20)) == 10
        reader.reopen()
    with pytest.raises(UserError, match="the file was changed after the job had described it"):
        list(reader.read(str(path), 10, 20))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_was_removed_between_two_ranges_is_told(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    reader = _reader(path, kind)
    assert sum(len(batch) for batch in reader.read(str(path), 0, 10)) == 10
    path.unlink()
    if kind == "parquet":
        reader.reopen()
    with pytest.raises(UnreadableError, match=r"the file is gone; .* put it back, or begin a new"):
        list(reader.read(str(path), 10, 20))


def test_a_parquet_file_that_is_written_in_place_is_never_mixed(tmp_path):
    path = tmp_path / "a.parquet"
    for name, first in (("a", 0), ("b", 100_000)):
        table = pa.table({"id": range(first, first + 30_000)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=30_000)
    other = (tmp_path / "b.parquet").read_bytes()
    reader = open_reader(str(path), FLAG)
    batches = reader.read(str(path), 0, 30_000)
    assert next(batches)["id"][0].as_py() == 0
    status = path.stat()
    path.write_bytes(other)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    # As many records: from the new file, but for those that were read before.
    assert min(batch["id"][0].as_py() for batch in batches) >= 100_000
    path.write_bytes(other[: len(other) // 2])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 2))
    with pytest.raises(UserError, match=r"a\.parquet: "):
        list(reader.read(str(path), 0, 30_000))
