"""Arrow files and streams: what is special to them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from shoal.data import open_reader
from shoal.errors import UserError
from tests.data.counting import counted
from tests.data.told import Told

FLAG = "--training-data"


def rows(reader, start, end):
    (name,) = reader.names()
    return [row for batch in reader.read(name, start, end) for row in batch.to_pylist()]


@pytest.mark.parametrize("compression", ["lz4", "zstd", "uncompressed"])
def test_feather_as_pandas_writes_it(tmp_path, compression):
    table = pa.table({"id": range(1000), "kind": pa.array(["a", "b"] * 500).dictionary_encode()})
    path = str(tmp_path / "a.feather")
    feather.write_feather(table, path, compression=compression, chunksize=300)
    reader = open_reader(path, FLAG)
    (source,) = reader.sources()
    assert source.units == ((300, 3), (100, 1))
    assert rows(reader, 290, 310) == table.slice(290, 20).to_pylist()


def test_a_stream_under_the_ending_of_a_file(tmp_path):
    """As the library datasets writes its cache. Other processes need not read it again."""
    table = pa.table({"id": range(1000), "text": [str(i) for i in range(1000)]})
    path = str(tmp_path / "a.arrow")
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table, max_chunksize=300)
    told = Told()
    (source,) = told.describe(open_reader(path, FLAG))
    assert source.units == ((300, 3), (100, 1))
    reader = told.to(open_reader(path, FLAG))
    assert rows(reader, 299, 901) == table.slice(299, 602).to_pylist()
    reader.narrow({"text"})
    assert rows(reader, 0, 1) == [{"text": "0"}]


def test_the_used_columns_alone_are_read(tmp_path):
    draw = np.random.default_rng(0)
    table = pa.table({f"c{i}": draw.integers(0, 2**60, 50_000) for i in range(20)})
    path = str(tmp_path / "a.arrow")
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=10_000)
    counting = counted()
    told = Told()
    told.describe(open_reader(f"counting://{path}", FLAG))
    counting.bytes_read = 0
    reader = told.to(open_reader(f"counting://{path}", FLAG))
    reader.narrow({"c3"})
    assert rows(reader, 0, 1) == [{"c3": table["c3"][0].as_py()}]
    assert rows(reader, 9_999, 10_000) == [{"c3": table["c3"][9_999].as_py()}]
    # Of one batch, and some of the file's end and of the batch's head.
    assert counting.bytes_read < 80_000 + 4 * 65_536


def test_what_cannot_be_read_is_told(tmp_path):
    path = tmp_path / "a.arrow"
    path.write_bytes(b"ARROW1 and nothing else")
    with pytest.raises(UserError, match=r"a\.arrow: cannot be read as Arrow"):
        open_reader(str(path), FLAG).sources()
    whole = pa.table({"x": range(100_000)})
    feather.write_feather(whole, str(path), compression="uncompressed")
    path.write_bytes(path.read_bytes()[:400_000])
    with pytest.raises(UserError, match=r"a\.arrow: cannot be read as Arrow"):
        open_reader(str(path), FLAG).sources()
    table = pa.table({"kind": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table)
    with pytest.raises(UserError, match="a stream with dictionaries; write it as a file"):
        open_reader(str(path), FLAG).sources()
    path.write_bytes(b"FEA1" + bytes(100))
    with pytest.raises(UserError, match="Feather of version 1"):
        open_reader(str(path), FLAG).sources()


def test_files_of_other_columns_are_told(tmp_path):
    for name, columns in (("a", {"x": [1]}), ("b", {"x": [1.5]})):
        feather.write_feather(pa.table(columns), str(tmp_path / f"{name}.feather"))
    with pytest.raises(UserError, match=r"column 'x': int64 in .*a\.feather, double in .*b\.feat"):
        open_reader(str(tmp_path), FLAG).sources()


def test_offsets_beyond_the_values_are_refused_with_the_batch(tmp_path):
    path = tmp_path / "offsets.arrow"
    with pa.ipc.new_file(path, pa.schema([("a", pa.string())])) as writer:
        writer.write_table(pa.table({"a": ["xy", "zzz"]}))
    content = path.read_bytes()
    offsets = np.array([0, 2, 5], np.int32).tobytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 2, 1 << 30], np.int32).tobytes()))
    with pytest.raises(UserError, match=r"offsets\.arrow: rows 1 to 2: cannot be read as Arrow"):
        rows(open_reader(str(path), FLAG), 0, 2)


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    schema = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    with pa.ipc.new_file(tmp_path / "twice.arrow", schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([1])] * 2, schema=schema))
    with pytest.raises(UserError, match=r"twice\.arrow: .*the name 'a' is there twice"):
        open_reader(str(tmp_path / "twice.arrow"), FLAG).sources()
