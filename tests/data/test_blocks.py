"""TFRecord, RecordIO, text and JSON lines: what is special to them, and errors."""

import gzip
import json
import struct
import zlib

import cramjam
import pyarrow as pa
import pytest
import tensorflow as tf

from shoal.data import JsonLinesReader, RecordIOWriter, Source, blocks, open_reader
from shoal.errors import UserError
from tests.data.told import Told

FLAG = "--training-data"


def write_tfrecord(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def write_recordio(path, records, **options):
    with RecordIOWriter(path, **options) as writer:
        for record in records:
            writer.write(record)


def write_lines(path, records):
    path.write_bytes(b"".join(record + b"\n" for record in records))


def values(reader, source, start, end):
    return [
        value
        for batch in reader.read(source, start, end)
        for value in (batch.column(0).to_pylist() if batch.num_columns == 1 else batch.to_pylist())
    ]


def test_large_files_have_several_blocks(tmp_path):
    records = [bytes([i % 251]) * 1000 for i in range(3000)]
    write_tfrecord(tmp_path / "a.tfrecord", records)
    write_recordio(tmp_path / "a.recordio", records)
    write_lines(tmp_path / "a.txt", [b"%d" % i * 200 for i in range(3000)])
    for name in ("a.tfrecord", "a.recordio"):
        assert (
            values(open_reader(str(tmp_path / name), FLAG), str(tmp_path / name), 900, 2900)
            == (records[900:2900])
        )
    text = open_reader(str(tmp_path / "a.txt"), FLAG)
    assert values(text, str(tmp_path / "a.txt"), 2998, 3000) == [b"2998" * 200, b"2999" * 200]


def test_recordio_as_another_program_would_write_it(tmp_path):
    """The head by hand, the body by another implementation of Snappy's frames."""
    body = b"".join(struct.pack("<I", len(r)) + r for r in (b"Hello", b"", b"World!" * 20_000))
    packed = bytes(cramjam.snappy.compress(body))
    head = struct.pack("<5I", 0x01020304, zlib.crc32(packed), 1, len(packed), 3)
    path = tmp_path / "a.recordio"
    path.write_bytes((head + packed) * 2)
    read = values(open_reader(str(path), FLAG), str(path), 1, 4)
    assert read == [b"", b"World!" * 20_000, b"Hello"]


def test_recordio_is_written_as_another_program_reads_it(tmp_path):
    path = tmp_path / "a.recordio"
    records = [b"Hello", b"", b"World!" * 20_000]
    write_recordio(path, records)
    data = path.read_bytes()
    magic, checksum, compressor, length, count = struct.unpack_from("<5I", data)
    assert (magic, compressor, length, count) == (0x01020304, 1, len(data) - 20, 3)
    assert checksum == zlib.crc32(data[20:])
    assert bytes(cramjam.snappy.decompress(data[20:])) == b"".join(
        struct.pack("<I", len(r)) + r for r in records
    )


def test_an_index_is_built_once_for_all_processes(tmp_path, monkeypatch):
    path, told = tmp_path / "a.tfrecord", Told()
    write_tfrecord(path, [b"one", b"two"])
    assert told.describe(open_reader(str(path), FLAG)) == [Source(str(path), 2)]
    with monkeypatch.context() as patch:
        patch.setattr(blocks.BlockReader, "_build", None)  # would raise if called
        again = told.to(open_reader(str(path), FLAG))
        assert values(again, str(path), 1, 2) == [b"two"]
    write_tfrecord(path, [b"one", b"two", b"three"])
    changed = told.to(open_reader(str(path), FLAG))
    with pytest.raises(UserError, match=r"a\.tfrecord: the file was changed .*3 records, and 2 th"):
        values(changed, str(path), 1, 2)
    assert told.describe(open_reader(str(path), FLAG)) == [Source(str(path), 3)]


@pytest.mark.parametrize(
    ("name", "text", "records"),
    [
        ("a.tfrecord.gz", None, [b"x", b"y"]),
        ("a.txt.gz", b"x\r\n\ny", [b"x", b"", b"y"]),
    ],
)
def test_gzip_is_read_as_what_is_in_it(tmp_path, name, text, records):
    if text is None:
        write_tfrecord(tmp_path / "plain", records)
        text = (tmp_path / "plain").read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(text))
    reader = open_reader(str(tmp_path / name), FLAG)
    assert values(reader, str(tmp_path / name), 0, len(records)) == records


def read_all(path):
    reader = open_reader(str(path), FLAG)
    for source in reader.sources():
        list(reader.read(source.name, 0, source.records))


def refused(path):
    with pytest.raises(UserError) as caught:
        read_all(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("byte", "message"),
    [
        (-1, "row 3: the checksum of the record's data is wrong"),
        (-6, "row 3: the checksum of the record's data is wrong"),
        (19, "row 2: the checksum of the record's length is wrong"),
    ],
)
def test_a_damaged_tfrecord_is_named(tmp_path, byte, message):
    path = tmp_path / "a.tfrecord"
    write_tfrecord(path, [b"abc"] * 3)
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    assert message in refused(path)


def test_files_that_end_early_are_named(tmp_path):
    write_tfrecord(tmp_path / "a.tfrecord", [b"abc"] * 3)
    write_recordio(tmp_path / "a.recordio", [b"abc"] * 3, chunk_bytes=1)
    for name in ("a.tfrecord", "a.recordio"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-2])
        assert "row 3: the file ends within" in refused(path)


def test_a_damaged_recordio_is_named(tmp_path):
    path = tmp_path / "a.recordio"
    write_recordio(path, [b"abc"] * 3, chunk_bytes=1)
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-1] + b"?")
    assert "row 3: the checksum of the chunk" in refused(path)
    path.write_bytes(b"not a recordio file at all")
    assert "row 1: no chunk begins" in refused(path)
    write_recordio(path, [b"abc"] * 3)
    for count in (2, 0):
        data = bytearray(path.read_bytes())
        data[16] = count
        path.write_bytes(data)
        assert "row 1: the chunk that begins here has more records than its head" in refused(path)


def test_a_bad_json_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    good = b'{"a": 1}\n'
    path.write_bytes(good * 3 + b"\n  \n" + b"{nothing\n" + good)
    assert "row 4: not a JSON object" in refused(path)
    path.write_bytes(good * 200_000 + b'{"a": "x"}\n' + good)
    assert "row 200001: column 'a' is of type string here" in refused(path)
    # Within what the types are guessed from, too.
    path.write_bytes(good * 700 + b'{"a": "x"}\n' + good * 300)
    assert "row 701: column 'a' is of type string here, and of type number elsewhere" in refused(
        path
    )


@pytest.mark.parametrize("depth", [101, 5_000, 100_000])
@pytest.mark.parametrize("before", [b"", b'{"a": 1}\n' * 200_000], ids=["first", "late"])
def test_deep_json_lines_are_refused_before_anybody_parses_them(tmp_path, depth, before):
    path = tmp_path / "deep.jsonl"
    path.write_bytes(before + b'{"a": ' + b"[" * depth + b"]" * depth + b"}\n")
    row = before.count(b"\n") + 1
    assert f"row {row}: there are more than 100 brackets within" in refused(path)


def test_brackets_in_texts_and_of_other_lines_are_not_deep(tmp_path):
    objects = [{"a": '"[{' * 200, "b": [[[1]]]}, {"a": "\\[" * 200, "b": []}]
    write_lines(tmp_path / "a.jsonl", [json.dumps(each).encode() for each in objects * 60])
    reader = open_reader(str(tmp_path / "a.jsonl"), FLAG)
    assert values(reader, *reader.names(), 0, 120) == objects * 60


def test_json_lists_without_a_value_are_lists_of_nothing(tmp_path):
    objects = [{"a": [None, None], "b": [[]]}, {"a": [], "b": [[], None]}]
    write_lines(tmp_path / "a.jsonl", [json.dumps(each).encode() for each in objects])
    reader = open_reader(str(tmp_path / "a.jsonl"), FLAG)
    assert [str(each) for each in reader.schema().types] == [
        "list<item: string>",
        "list<item: list<item: string>>",
    ]
    assert values(reader, *reader.names(), 0, 2) == objects


def test_json_integers_that_no_type_holds_are_doubted(tmp_path):
    write_lines(tmp_path / "a.jsonl", [b'{"id": [-1], "x": 1}', b'{"id": [9223372036854775808]}'])
    (doubt,) = open_reader(str(tmp_path / "a.jsonl"), FLAG).doubts()
    assert "a.jsonl: column 'id' is read as floats, as it holds 9223372036854775808, which" in doubt


def test_types_of_json_lines_can_be_given(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"price": 10, "b": 1}\n' * 100_000 + b'{"price": 10.5}\n')
    assert (
        "row 100001: column 'price' holds 10.5 here, and is of type int64 elsewhere: mend the "
        "line, or say its type; see JsonLinesReader(column_types=...)" in refused(path)
    )
    reader = JsonLinesReader(str(path), column_types={"price": pa.float64()})
    assert values(reader, str(path), 99_999, 100_001) == [
        {"price": 10.0, "b": 1},
        {"price": 10.5, "b": None},
    ]
    assert reader.schema().names == ["price", "b"]


def test_types_of_json_lines_are_those_of_all_files(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "day": "2024-01-02", "gap": null}\n')
    (tmp_path / "b.jsonl").write_text('{"n": 1.5, "day": "x", "gap": [1]}\n')
    reader = open_reader(str(tmp_path), FLAG)
    assert reader.schema() == pa.schema(
        [("n", pa.float64()), ("day", pa.string()), ("gap", pa.list_(pa.int64()))]
    )
    (tmp_path / "c.jsonl").write_text('{"n": "text"}\n')
    with pytest.raises(UserError, match=r"'n': double in .*a\.jsonl, string in .*c\.jsonl"):
        read_all(tmp_path)
