"""Storage that fails or hangs: tried again, no record lost or repeated, and given up late."""

import io

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from shoal.data.opening import open_reader
from shoal.data.places.storage import reporting
from shoal.errors import StorageAwayError, UnreadableError, UserCodeError, UserError
from shoal.files import patience as files_patience
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import user_code
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.engines.tensorflow.input.feed import InputPipeline
from shoal.worker.input.modes import TRAINING
from shoal.worker.loop import failure_of
from shoal.worker.reports.progress import Progress
from tests.worker.conftest import MODULE
from tests.worker.engines.host.conftest import text_of
from tests.worker.storage import patience

COUNT = 4000
FILES: dict[str, bytes] = {}


class FlakyFile(io.BytesIO):
    """A file of which four reads of forty fail, one after the other, as the network may."""

    reads = 0

    def read(self, size=-1):
        FlakyFile.reads += 1
        if FlakyFile.reads % 40 < 4:
            raise ConnectionResetError(104, "Connection reset by peer")
        return super().read(size)


class Flaky(fsspec.AbstractFileSystem):
    protocol = "flaky"
    cachable = False

    def isfile(self, path):
        return path in FILES

    def info(self, path, **kwargs):
        return {"name": path, "size": len(FILES[path]), "type": "file"}

    def _open(self, path, *args, **kwargs):
        return FlakyFile(FILES[path])


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("shoal.proto.wire.backoff.STORAGE_FIRST", 0.001)
    monkeypatch.setattr("shoal.proto.wire.backoff.STORAGE_LIMIT", 0.01)


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize(
    ("pipeline", "text"),
    [
        (InputPipeline, MODULE),
        (HostPipeline, text_of('return columns["x"][:, None], columns["y"]')),
    ],
    ids=["tensorflow", "host"],
)
def test_every_record_comes_once_however_often_reading_fails(quick, module, ending, pipeline, text):
    table = pa.table({"x": list(range(COUNT)), "y": [2 * i for i in range(COUNT)]})
    sink = io.BytesIO()
    if ending == "csv":
        pacsv.write_csv(table, sink)
    elif ending == "parquet":
        pq.write_table(table, sink, row_group_size=500)
    else:
        sink.write(b"".join(b'{"x": %d, "y": %d}\n' % (i, 2 * i) for i in range(COUNT)))
    path = f"data.{ending}"
    FILES[path] = sink.getvalue()
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    waiting = patience()
    reader = waiting.call(lambda: open_reader(f"flaky://{path}", "--training-data"))
    FlakyFile.reads = 0
    loaded = module(text)
    made = waiting.call(
        lambda: pipeline(reader, loaded, TRAINING, "--training-data", 64, patience=waiting),
        reader.reopen,
    )
    (source,) = waiting.call(reader.sources, reader.reopen)
    assert source.records == COUNT
    seen = []
    for start in range(0, COUNT, 1000):
        records = pb.Range(source=source.name, start=start, end=start + 1000)
        for batch in made.batches(records):
            seen += [int(value) for value in np.asarray(batch.features)[:, 0]]
    assert seen == list(range(COUNT))
    assert FlakyFile.reads > 4


def test_a_damaged_file_is_no_trouble_of_the_storage(tmp_path):
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"x": list(range(100))}), path)
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    reader = open_reader(str(path), "--training-data")
    with pytest.raises(UserError, match="the file is damaged") as caught:
        list(reader.read(str(path), 0, 100))
    assert not isinstance(caught.value, UnreadableError)


@pytest.mark.parametrize(
    ("error", "mistake"),
    [
        (FileNotFoundError(2, "No such file"), True),
        (PermissionError(13, "Permission denied"), True),
        (OSError(5, "Input/output error"), False),
        (TimeoutError("no answer"), False),
    ],
)
def test_what_may_be_a_mistake_is_told_at_once_only_before_the_data_is_known(quick, error, mistake):
    def read():
        with reporting("data.csv"):
            if failures:
                raise failures.pop()
        return "read"

    failures = [error, error]
    assert patience(known=True).call(read) == "read"
    failures = [error, error]
    if not mistake:
        assert patience(known=False).call(read) == "read"
        return
    with pytest.raises(UnreadableError, match=r"data\.csv"):
        patience(known=False).call(read)
    assert len(failures) == 1


def test_the_patience_ends_and_the_failure_is_the_storages(quick):
    progress = Progress()
    again = []

    def read():
        raise OSError(5, "Input/output error", "s3://bucket/part-3")

    told = r"part-3.*--storage-patience-seconds"
    with pytest.raises(StorageAwayError, match=told) as caught, user_code("read()", reads=True):
        patience(0.05, progress=progress).call(read, lambda: again.append(1))
    assert again
    assert failure_of(caught.value).kind == pb.STORAGE
    assert not progress.take(0, 0).waits_for


def test_the_wait_is_told_while_it_lasts_and_ends_with_the_task(quick, monkeypatch):
    monkeypatch.setattr(files_patience, "TOLD_SECONDS", 0.0)
    progress = Progress()
    told = []

    def read():
        told.append(progress.take(0, 0).waits_for)
        if len(told) == 3:
            progress.stopped.set()
        raise OSError(5, "Input/output error", "part-3")

    with pytest.raises(StorageAwayError):
        patience(progress=progress).call(read)
    assert told[0] == ""
    assert "storage: OSError: [Errno 5] Input/output error: 'part-3'" in told[1:]
    assert not progress.take(0, 0).waits_for


@pytest.mark.parametrize(
    "error", [ValueError("no"), FileNotFoundError(2, "No such file", "words.txt")]
)
def test_errors_of_the_users_feed_are_not_the_storages(quick, error):
    def fail():
        with user_code("feed() of zoo.py"):
            raise error

    with pytest.raises(UserCodeError):
        patience().call(fail)


def test_an_oserror_of_the_users_reader_is_its_storages(quick):
    failures = [OSError(5, "Input/output error", "part-3")]

    def read():
        with user_code("custom_data_reader() of zoo.py", reads=True):
            if failures:
                raise failures.pop()
        return "read"

    assert patience().call(read) == "read"
