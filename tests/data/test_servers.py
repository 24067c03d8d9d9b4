"""Files behind real servers of the protocols that docs/guide/data.md names."""

from __future__ import annotations

import gzip
import socket
import sys

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from shoal.data import open_reader
from shoal.data.places.storage import Storage
from shoal.errors import UnreadableError
from tests.data import servers

pytestmark = pytest.mark.slow

FLAG = "--training-data"
TABLE = pa.table({"id": np.arange(5000), "name": [f"n{i}" for i in range(5000)]})
NAMES = ("a.parquet", "b.csv", "c.csv.gz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    pq.write_table(TABLE, folder / "a.parquet", row_group_size=500)
    pacsv.write_csv(TABLE, folder / "b.csv")
    (folder / "c.csv.gz").write_bytes(gzip.compress((folder / "b.csv").read_bytes()))
    return folder


@pytest.fixture(autouse=True)
def _fresh():
    """File systems are kept by fsspec, with the address of a server that is gone by then."""
    yield
    fsspec.get_filesystem_class("http").clear_instance_cache()


def read(url, start=700, end=2100):
    (source,) = (reader := open_reader(url, FLAG)).sources()
    assert source.records == TABLE.num_rows
    rows = [row for batch in reader.read(source.name, start, end) for row in batch.to_pylist()]
    assert rows == TABLE.slice(start, end - start).to_pylist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "handler", [servers.PlainHandler, servers.RangeHandler, servers.ChunkedHandler]
)
def test_a_web_server_with_and_without_ranges_and_sizes(folder, handler, name):
    with servers.web_server(folder, handler) as (served, url):
        read(f"{url}/{name}")
    with_ranges = handler is servers.RangeHandler
    assert bool(served.ranges) == with_ranges


def test_of_a_server_without_ranges_each_file_is_fetched_once(folder):
    with servers.web_server(folder, servers.PlainHandler) as (served, url):
        reader = open_reader(f"{url}/a.parquet", FLAG)
        (source,) = reader.sources()
        before = served.answered
        for start in range(0, 5000, 500):
            assert sum(b.num_rows for b in reader.read(source.name, start, start + 500)) == 500
        assert served.answered == before


@pytest.fixture(scope="module")
def s3(folder):
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    patch = pytest.MonkeyPatch()
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        patch.setenv(name, value)
    files = fsspec.filesystem("s3")
    files.mkdir("clicks")
    for name in NAMES:
        files.pipe(f"clicks/{name}", (folder / name).read_bytes())
        files.pipe(f"clicks/{name}.dir/{name}", (folder / name).read_bytes())
    yield "s3://clicks"
    server.stop()
    patch.undo()


@pytest.fixture(scope="module")
def gcs(folder):
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    patch = pytest.MonkeyPatch()
    # It imports another package whose name is that of a folder of this repository.
    patch.setattr(sys, "path", [each for each in sys.path if not servers.is_ours(each)])
    patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    pytest.importorskip("gcsfs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="clicks")
    server.start()
    patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    files = fsspec.filesystem("gs")
    for name in NAMES:
        files.pipe(f"clicks/{name}", (folder / name).read_bytes())
        files.pipe(f"clicks/{name}.dir/{name}", (folder / name).read_bytes())
    yield "gs://clicks"
    server.stop()
    patch.undo()


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_an_object_store(request, store):
    url = request.getfixturevalue(store)
    for name in NAMES:
        for pattern in (f"{url}/{name}", f"{url}/{name}.dir", f"{url}/{name}.d*/*{name[1:]}"):
            read(pattern)
    assert open_reader(f"{url}/*.parquet", FLAG).names() == [f"{url}/a.parquet"]


@pytest.mark.parametrize("came", [b"", b"1,2", b"1,2,3,4,5,6,7,8\n"])
def test_another_number_of_bytes_than_was_asked_for_is_never_taken(monkeypatch, came):
    memory = fsspec.filesystem("memory")
    memory.pipe("/short.csv", b"a,b\n1,2\n3,4\n")
    storage = Storage("memory:///short.csv", FLAG)
    monkeypatch.setattr(type(memory), "cat_file", lambda *_, **__: came)
    with pytest.raises(OSError, match=f"{len(came)} bytes came, and 8 were asked for"):
        storage.open("memory:///short.csv").read_at(8, 4)
    with pytest.raises(UnreadableError, match="bytes came"):
        open_reader("memory:///short.csv", FLAG).sources()
    memory.rm("/short.csv")
