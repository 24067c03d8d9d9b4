"""Files that are written anew or removed while a reader has them open."""

import gzip
import json

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
