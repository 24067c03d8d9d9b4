"""Random records of each format: written by another library than shoal's, and read by another."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import cramjam
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from hypothesis import strategies as st

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from('",;\n\r ä😀#x0'),
    max_size=8,
)
FLOAT = st.floats(allow_nan=False)
BYTES = st.binary(max_size=12)


@dataclass
class Format:
    """How a format is written and read by others.

    write: draws records, writes them to a path, and gives the options with which shoal reads it.
    read: the records of a file, given the types that shoal tells, and the options. Raises whatever
    it likes where it refuses the file. read_damaged: the same of a file that was changed.
    """

    write: Callable
    read: Callable
    read_damaged: Callable | None = None


# ---------------------------------------------------------------------------------- CSV


def write_csv(draw, path):
    separator = draw(st.sampled_from([",", ";", "\t"]))
    records = draw(st.lists(st.tuples(INT64, TEXT, FLOAT), min_size=1, max_size=30))
    buffer = io.StringIO(newline="")
    writer = csv.writer(
        buffer,
        delimiter=separator,
        quoting=draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])),
        lineterminator=draw(st.sampled_from(["\n", "\r\n"])),
    )
    writer.writerows([("id", "text", "value"), *records])
    text = buffer.getvalue()
    if draw(st.booleans()):
        text = text.removesuffix("\n").removesuffix("\r")
    mark = draw(st.sampled_from(["", "\ufeff"]))
    path.write_bytes(packed(path, (mark + text).encode()))
    return {"csv_separator": "tab" if separator == "\t" else separator}


def read_csv(path, schema, options):
    separator = options["csv_separator"].replace("tab", "\t")
    text = unpacked(path).decode("utf-8-sig")
    names, *rows = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    if any(len(row) != len(names) for row in rows):
        raise ValueError("a row of another length")
    return [
        {
            name: in_type(word, schema.field(name).type)
            for name, word in zip(names, row, strict=True)
        }
        for row in rows
    ]


def in_type(word, kind):
    """A word of CSV as a value of a type of shoal's."""
    if pa.types.is_string(kind):
        return word
    word = word.strip(" \t")
    if word in ("", "NULL", "NA", "nan", "NaN", "null"):
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "1": True, "false": False, "0": False}[word.lower()]
    if not word.isascii() or "_" in word:
        raise ValueError(word)
    return int(word) if pa.types.is_integer(kind) else float(word)


def packed(path, data):
    if path.name.endswith(".gz"):
        half = len(data) // 2  # of two members, as other programs append them
        return gzip.compress(data[:half], mtime=0) + gzip.compress(data[half:], mtime=0)
    return bytes(cramjam.zstd.compress(data)) if path.name.endswith(".zst") else data


def unpacked(path):
    data = path.read_bytes()
    if path.name.endswith(".gz"):
        return gzip.decompress(data)
    return bytes(cramjam.zstd.decompress(data)) if path.name.endswith(".zst") else data


# ---------------------------------------------------------------------------------- lines

OBJECTS = st.fixed_dictionaries(
    {
        "id": INT64,
        "hash": st.integers(0, 2**64 - 1),
        "text": TEXT,
        "day": st.sampled_from(["2024-01-01", "2024-01-01 10:00:00", "x"]),
        "value": FLOAT.filter(lambda value: abs(value) < 1e308),
        "flag": st.booleans() | st.none(),
    },
    optional={
        "ids": st.lists(st.integers(0, 2**64 - 1) | st.none(), max_size=3),
        "lists": st.lists(st.lists(st.sampled_from(["a", "2024-01-01"]), max_size=2), max_size=2),
    },
)


def write_objects(draw, path):
    written = draw(st.lists(OBJECTS.map(json.dumps), min_size=1, max_size=20))
    blanks = draw(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["", " ", "\t"]))))
    for place, blank in blanks[:4]:
        written.insert(place, blank)
    text = draw(st.sampled_from(["\n", "\r\n"])).join(written) + draw(st.sampled_from(["\n", ""]))
    path.write_bytes(packed(path, text.encode()))
    return {}


def read_objects(path, schema, options):
    objects = [json.loads(line) for line in unpacked(path).split(b"\n") if line.strip(b" \t\r")]
    return [
        {field.name: of_type(each.get(field.name), field.type) for field in schema}
        for each in objects
    ]


def of_type(value, kind):
    """A value of JSON as one of a type of shoal's."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [of_type(each, kind.value_type) for each in value]
    expected = str if pa.types.is_string(kind) else bool if pa.types.is_boolean(kind) else int
    if pa.types.is_floating(kind):
        return float(value)
    if type(value) is not expected:
        raise ValueError(value)
    return value


def write_lines(draw, path):
    lines = draw(st.lists(BYTES.map(lambda b: b.replace(b"\n", b"")), min_size=1, max_size=30))
    path.write_bytes(packed(path, b"\n".join(lines) + b"\n"))
    return {}


def read_lines(path, schema, options):
    *lines, last = unpacked(path).split(b"\n")
    return [{"line": line.removesuffix(b"\r")} for line in lines + [last] * bool(last)]


# ---------------------------------------------------------------------------------- records


def write_tfrecord(draw, path):
    kind = "GZIP" if path.name.endswith(".gz") else ""
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(kind)) as file:
        for record in draw(st.lists(BYTES, min_size=1, max_size=30)):
            file.write(record)
    return {}


def read_tfrecord(path, schema, options):
    plain = path.with_suffix(".plain")
    plain.write_bytes(unpacked(path))
    return [{"record": each.numpy()} for each in tf.data.TFRecordDataset(str(plain))]


PACKERS = (
    (bytes, bytes),
    (cramjam.snappy.compress, cramjam.snappy.decompress),
    (cramjam.gzip.compress, cramjam.gzip.decompress),
)


def write_recordio(draw, path):
    data = b""
    for chunk in [[b"first"], *draw(st.lists(st.lists(BYTES, max_size=9), max_size=5))]:
        kind = draw(st.integers(0, 2))
        body = b"".join(struct.pack("<I", len(each)) + each for each in chunk)
        body = bytes(PACKERS[kind][0](body))
        data += struct.pack("<5I", 0x01020304, zlib.crc32(body), kind, len(body), len(chunk)) + body
    path.write_bytes(data)
    return {}


def read_recordio(path, schema, options):
    file, records = io.BytesIO(path.read_bytes()), []
    while head := file.read(20):
        magic, checksum, kind, length, count = struct.unpack("<5I", head)
        body = file.read(length)
        if (magic, checksum, len(body)) != (0x01020304, zlib.crc32(body), length):
            raise ValueError("damaged")
        chunk = io.BytesIO(PACKERS[kind][1](body))
        for _ in range(count):
            (size,) = struct.unpack("<I", chunk.read(4))
            records.append(chunk.read(size))
            if len(records[-1]) < size:
                raise ValueError("damaged")
        if chunk.read():
            raise ValueError("more records than are counted")
    return [{"record": each} for each in records]


FEATURES = {
    "a": st.lists(INT64, max_size=3),
    "b": st.lists(st.floats(width=32, allow_nan=False), max_size=3),
    "c": st.lists(BYTES, max_size=3),
}
LISTS = {"a": ("int64_list", tf.train.Int64List), "b": ("float_list", tf.train.FloatList)}
LISTS["c"] = ("bytes_list", tf.train.BytesList)


def write_examples(draw, path):
    records = draw(st.lists(st.fixed_dictionaries({}, optional=FEATURES), max_size=20))
    with tf.io.TFRecordWriter(str(path)) as file:
        for values in [{"a": [1]}, *records]:
            feature = {
                name: tf.train.Feature(**{LISTS[name][0]: LISTS[name][1](value=each)})
                for name, each in values.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            file.write(example.SerializeToString())
    return {"data_format": "example"}


def read_examples(path, schema, options):
    rows = []
    for record in read_tfrecord(path, schema, options):
        feature = tf.train.Example.FromString(record["record"]).features.feature
        rows.append({})
        for field in schema:
            values = None
            if field.name in feature:
                values = [*getattr(feature[field.name], LISTS[field.name][0]).value]
            if values is not None and not pa.types.is_list(field.type):
                (values,) = values
            rows[-1][field.name] = values
    return rows


# ---------------------------------------------------------------------------------- Arrow


def whole(kind):
    unsigned = pa.types.is_unsigned_integer(kind)
    bits = kind.bit_width - (not unsigned)
    return st.integers(0 if unsigned else -(1 << bits), (1 << bits) - 1)


VALUES = [(kind, whole(kind)) for kind in (pa.int8(), pa.int64(), pa.uint16(), pa.uint64())] + [
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), BYTES),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(20, 2), st.decimals(-(10**17), 10**17, places=2)),
    (pa.dictionary(pa.int32(), pa.string()), TEXT),
    (pa.list_(pa.int64()), st.lists(INT64 | st.none(), max_size=3)),
    (pa.list_(pa.list_(pa.string())), st.lists(st.lists(TEXT, max_size=2), max_size=2)),
    (pa.large_list(pa.float32()), st.lists(st.floats(width=32), max_size=3)),
]


def table(draw):
    rows = draw(st.integers(1, 30))
    columns = {}
    for number, (kind, values) in enumerate(
        draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=4))
    ):
        values = values | st.none() if draw(st.booleans()) else values
        made = draw(st.lists(values, min_size=rows, max_size=rows))
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        columns[f"c{number}"] = pa.array(made, plain).cast(kind)
    return pa.table(columns)


def write_parquet(draw, path):
    made, group = table(draw), draw(st.integers(1, 12))
    if draw(st.booleans()):
        polars.from_arrow(made).write_parquet(path, row_group_size=group)
    else:
        kind = draw(st.sampled_from(["none", "snappy", "zstd"]))
        version = draw(st.sampled_from(["1.0", "2.0"]))
        pq.write_table(
            made,
            path,
            row_group_size=group,
            compression=kind,
            data_page_version=version,
            use_dictionary=draw(st.booleans()),
        )
    return {}


def read_parquet(path, schema, options):
    return polars.read_parquet(path).to_dicts()


def write_arrow(draw, path):
    made = table(draw)
    if draw(st.booleans()):
        polars.from_arrow(made).write_ipc(path)
        return {}
    if path.name.endswith(".arrows"):
        fields = [f for f in made.schema if not pa.types.is_dictionary(f.type)]
        made = made.select([f.name for f in fields]) if fields else pa.table({"c": [1]})
    new = pa.ipc.new_stream if path.name.endswith(".arrows") else pa.ipc.new_file
    with new(path, made.schema) as file:
        file.write_table(made, max_chunksize=draw(st.integers(1, 12)))
    return {}


def read_arrow(path, schema, options):
    if path.read_bytes()[:6] != b"ARROW1":
        return polars.read_ipc_stream(path).to_dicts()
    return polars.read_ipc(path).to_dicts()


def with_numbers(table):
    """The rows of a table; days and times as numbers, as Python has not all of them."""
    kinds = {"date32[day]": pa.int32(), "timestamp[us]": pa.int64()}
    columns = {
        name: column.cast(kinds.get(str(column.type), column.type))
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }
    return pa.table(columns).to_pylist()


def read_damaged_parquet(path, schema, options):
    """By Arrow itself, in one piece: Polars panics."""
    return with_numbers(pq.ParquetFile(path).read(use_threads=False))


def read_damaged_arrow(path, schema, options):
    """As `read_damaged_parquet`."""
    new = pa.ipc.open_file if path.read_bytes()[:6] == b"ARROW1" else pa.ipc.open_stream
    made = new(path.read_bytes()).read_all()
    made.validate(full=True)
    return with_numbers(made)


# ---------------------------------------------------------------------------------- SQL


def write_sql(draw, path):
    rows = draw(st.dictionaries(INT64, st.tuples(TEXT, FLOAT | st.none(), BYTES), min_size=1))
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b REAL, c BLOB)")
        database.executemany(
            "INSERT INTO t VALUES (?, ?, ?, ?)", [(k, *v) for k, v in rows.items()]
        )
    database.close()
    return {}


def read_sql(path, schema, options):
    with sqlite3.connect(path) as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute("SELECT * FROM t ORDER BY id")]
    database.close()
    return rows


FORMATS = {
    "a.csv": Format(write_csv, read_csv),
    "a.csv.gz": Format(write_csv, read_csv),
    "a.csv.zst": Format(write_csv, read_csv),
    "a.jsonl": Format(write_objects, read_objects),
    "a.jsonl.gz": Format(write_objects, read_objects),
    "a.txt": Format(write_lines, read_lines),
    "a.txt.zst": Format(write_lines, read_lines),
    "a.tfrecord": Format(write_tfrecord, read_tfrecord),
    "a.tfrecord.gz": Format(write_tfrecord, read_tfrecord),
    "a.tfrecords": Format(write_examples, read_examples),
    "a.recordio": Format(write_recordio, read_recordio),
    "a.parquet": Format(write_parquet, read_parquet, read_damaged_parquet),
    "a.feather": Format(write_arrow, read_arrow, read_damaged_arrow),
    "a.arrows": Format(write_arrow, read_arrow, read_damaged_arrow),
    "a.db": Format(write_sql, read_sql),
}
"""Name of a file -> its format."""
