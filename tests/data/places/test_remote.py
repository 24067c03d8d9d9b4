"""Files behind URLs: every format through fsspec, errors with the URL and without secrets."""

import gzip
import json
import logging
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.base import log
from shoal.data import RecordIOWriter, open_reader
from shoal.data.places.storage import Storage
from shoal.errors import UserCodeError, UserError, without_secrets
from tests.data.told import Told

FLAG = "--training-data"
ROWS = [{"id": i, "name": f"n{i}"} for i in range(50)]
TABLE = pa.Table.from_pylist(ROWS)
LINES = [json.dumps(row).encode() for row in ROWS]


def write_tfrecord(path):
    with tf.io.TFRecordWriter(path) as writer:
        for line in LINES:
            writer.write(line)


def write_recordio(path):
    with RecordIOWriter(path) as writer:
        for line in LINES:
            writer.write(line)


def write_lines(path):
    with open(path, "wb") as file:
        file.write(b"\n".join(LINES) + b"\n")


def write_gzip(path):
    pacsv.write_csv(TABLE, path[:-3])
    with open(path[:-3], "rb") as plain, gzip.open(path, "wb") as packed:
        packed.write(plain.read())


WRITERS = {
    "csv": lambda path: pacsv.write_csv(TABLE, path),
    "csv.gz": write_gzip,
    "parquet": lambda path: pq.write_table(TABLE, path, row_group_size=7),
    "jsonl": write_lines,
    "txt": write_lines,
    "tfrecord": write_tfrecord,
    "recordio": write_recordio,
}


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.mark.parametrize("scheme", ["memory", "file"])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_of_every_format(memory, tmp_path, scheme, kind):
    written = str(tmp_path / f"part.{kind}")
    WRITERS[kind](written)
    folder = str(tmp_path / "data") if scheme == "file" else "/data"
    remote = fsspec.filesystem(scheme)
    for name in ("b", "a", "_hidden/c", ".d"):
        remote.makedirs(f"{folder}/{name}".rpartition("/")[0], exist_ok=True)
        remote.pipe(f"{folder}/{name}.{kind}", Path(written).read_bytes())

    expected = [{"line": x} for x in LINES] if kind == "txt" else ROWS
    if kind in ("tfrecord", "recordio"):
        expected = [{"record": line} for line in LINES]
    url = f"{scheme}://{folder}"
    told = Told()
    for pattern in (url, f"{url}/*.{kind}", f"{url}/[ab].{kind}"):
        reader = open_reader(pattern, FLAG)
        told.describe(reader)
        assert [source.name for source in reader.sources()] == [
            f"{scheme}://{folder}/{name}.{kind}" for name in "ab"
        ]
        assert [source.records for source in reader.sources()] == [50, 50]
    for source in reader.sources():
        got = [row for b in reader.read(source.name, 13, 41) for row in b.to_pylist()]
        assert got == expected[13:41]
    again = told.to(open_reader(f"{url}/a.{kind}", FLAG))
    assert again.schema() == reader.schema()
    name = reader.names()[0]
    assert [row for b in again.read(name, 13, 41) for row in b.to_pylist()] == expected[13:41]


def test_an_index_is_used_until_the_file_changes(memory, tmp_path, monkeypatch):
    memory.pipe("/a.csv", b"x\n1\n2\n")
    told = Told()

    def reader():
        return told.to(open_reader("memory:///a.csv", FLAG))

    assert told.describe(reader())[0].records == 2
    with monkeypatch.context() as patch:
        patch.setattr("shoal.data.csv.csv_index.CsvIndex.build", None)
        assert reader().sources()[0].records == 2
    memory.pipe("/a.csv", b"x\n1\n2\n3\n")
    with pytest.raises(UserError, match=r"memory:///a\.csv: the file was changed .*3 rec"):
        reader().sources()
    assert told.describe(reader())[0].records == 3


def test_a_question_mark_is_part_of_a_files_name_but_on_the_web(memory):
    for number, name in enumerate(("a?1.csv", "a?2.csv", "b.csv?version=3"), 4):
        memory.pipe(f"/data/{name}", b"x\n%d\n" % number)
    reader = open_reader("memory:///data", FLAG)
    assert reader.names() == [f"memory:///data/{each}" for each in ("a?1.csv", "a?2.csv")]
    values = [b["x"].to_pylist() for name in reader.names() for b in reader.read(name, 0, 1)]
    assert values == [[4], [5]]
    assert open_reader("memory:///data/b.csv?version=3", FLAG).names() == ["memory:///data/b.csv"]
    urls = [f"https://h/get.csv?part={part}&sig=secret{part}" for part in (1, 2)]
    named = Storage(urls[0], FLAG, names=urls).names
    assert named == [f"https://h/get.csv?part={part}&sig=***" for part in (1, 2)]
    assert Storage(urls[0], FLAG, names=urls[:1]).names == ["https://h/get.csv"]
    with pytest.raises(UserError, match=r"two files are called https://h/get\.csv\?sig=\*\*\*"):
        Storage(urls[0], FLAG, names=["https://h/get.csv?sig=1", "https://h/get.csv?sig=2"])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory:///none.csv", "there is no file or folder memory:///none.csv"),
        ("memory:///data/*.csv", "no file matches memory:///data/"),
        ("memory:///data", "no file matches memory:///data, or none ends in .csv"),
        ("memory:///data/notes.md", "memory://.*notes.md has no known ending; shoal reads .csv"),
        ("nosuch://user:word@host/a.csv", r"nosuch://\*\*\*@host/a.csv: no filesystem for such"),
        ("abfs://bucket/a.csv", "abfs://bucket/a.csv: .*adlfs"),
    ],
)
def test_naming_nothing_is_an_error_with_the_url(memory, url, message):
    memory.pipe("/data/notes.md", b"")
    with pytest.raises(UserError, match=f"^--training-data: {message}"):
        open_reader(url, FLAG)


def test_a_bad_record_and_a_lost_file_are_told_with_the_url(memory):
    memory.pipe("/a.csv", b"x,y\n1,2\n1\n")
    with pytest.raises(UserError, match=r"^memory:///a\.csv: row 2: "):
        list(open_reader("memory:///a.csv", FLAG).read("memory:///a.csv", 0, 2))
    reader = open_reader("memory:///a.csv", FLAG)
    memory.rm("/a.csv")
    with pytest.raises(UserError, match=r"^memory:///a\.csv: the file is gone"):
        reader.sources()


class Broken(fsspec.AbstractFileSystem):
    """A service whose library raises errors of its own, with what it was called with."""

    protocol = "broken"

    def isfile(self, path):
        return True

    def info(self, path, **kwargs):
        return {"name": path, "size": 10, "type": "file"}

    def _open(self, path, *args, **kwargs):
        raise RuntimeError("403 for https://id:word@host/a.csv?X-Amz-Signature=abc&part=1")

    def ukey(self, path):
        return "1"


def test_a_services_error_is_the_files_without_its_secrets():
    fsspec.register_implementation("broken", Broken, clobber=True)
    with pytest.raises(UserError) as raised:
        open_reader("broken://id:word@host/a.csv", FLAG).sources()
    assert str(raised.value) == (
        "broken://***@host/a.csv: cannot be read: RuntimeError: 403 for "
        "https://***@host/a.csv?X-Amz-Signature=***&part=1"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a@b.c and /tmp/x:y@z", "a@b.c and /tmp/x:y@z"),
        ("read s3://bucket/a/b.csv", "read s3://bucket/a/b.csv"),
        ("ftp://me:p/w@d@host/a 'x://t0ken@h'", "ftp://***@host/a 'x://***@h'"),
        (f"ftp://me:{'p/' * 3000}@host/a", "ftp://***@host/a"),
        (f"https://{'t0ken' * 800}@host/a", "https://***@host/a"),
        ("x://me:a@b:8000,http://h:8000/c", "x://***@b:8000,http://h:8000/c"),
        ("https://h/a?sv=1&sig=x%2F&b=2#f", "https://h/a?sv=1&sig=***&b=2#f"),
        ("odbc://h/a?access_key=1&Password=2", "odbc://h/a?access_key=***&Password=***"),
        ("sqlite:///a.db#clicks&key=id", "sqlite:///a.db#clicks&key=id"),
    ],
)
def test_secrets_are_in_no_error_and_no_log_line(text, shown, capsys):
    assert without_secrets(text) == shown
    assert str(UserError(text)) == str(UserCodeError(text, "")) == shown
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        log.configure("worker", "info", index=0)
        try:
            raise ValueError(text)
        except ValueError:
            logging.getLogger("third.party").exception("in %s", text)
    finally:
        root.handlers[:], _ = before
        root.setLevel(before[1])
    written = capsys.readouterr().err
    assert written.count(shown) == 2
    assert (text in written) == (text == shown)
