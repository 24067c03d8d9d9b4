"""Each reader against another library: random records, types, cuts, blocks and damage."""

from __future__ import annotations

import contextlib
import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.groups.data_format import FormatOptions
from shoal.data import blocks, open_reader
from shoal.data.csv import csv_index, csv_sample
from shoal.data.readers import arrow_reader, csv_reader, lines, row_groups, sql_reader
from shoal.data.readers import examples as example_reader
from shoal.errors import UserError
from tests.data.formats import FORMATS, with_numbers
from tests.examples import examples

SIZES = (
    (csv_index, "BLOCK_BYTES"),
    (csv_index, "STRIDE"),
    (csv_reader, "BLOCK_BYTES"),
    (blocks, "BLOCK_BYTES"),
    (blocks, "RUN_BYTES"),
    (lines, "BLOCK_BYTES"),
    (lines, "READ_BYTES"),
    (row_groups, "CHUNK_ROWS"),
    (row_groups, "TOGETHER_ROWS"),
    (arrow_reader, "CHUNK_ROWS"),
    (sql_reader, "BLOCK_ROWS"),
)
"""What is cut into pieces, which are small here, so that records lie across each border."""

SAMPLES = ((csv_sample, "SAMPLE_BYTES"), (lines, "SAMPLE_BYTES"), (example_reader, "SAMPLE_BYTES"))


@contextlib.contextmanager
def pieces(sizes, size):
    with pytest.MonkeyPatch.context() as patch:
        for module, name in sizes:
            patch.setattr(module, name, size)
        yield


def opened(path, options):
    given = f"sqlite:///{path}#t" if path.suffix == ".db" else str(path)
    return open_reader(given, "--data", data_format=FormatOptions(**options).format_of_data)


def in_ranges(reader, draw, rows=pa.RecordBatch.to_pylist):
    """All records, by ranges that follow one another."""
    (source,) = reader.sources()
    cuts = draw(st.lists(st.integers(0, source.records), max_size=4))
    return [
        row
        for start, end in itertools.pairwise([0, *sorted(cuts), source.records])
        for batch in reader.read(source.name, start, end)
        for row in rows(batch)
    ]


def same(found, expected):
    """Whether rows are equal, in their types, too: -0.0 is not 0.0, but NaN is NaN."""
    return [*map(repr, found)] == [*map(repr, expected)]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=examples(20))
@given(data=st.data(), size=st.integers(1, 60))
def test_ranges_are_what_another_library_wrote_and_reads(tmp_path, name, data, size):
    path, form = tmp_path / name, FORMATS[name]
    path.unlink(missing_ok=True)
    options = form.write(data.draw, path)
    reader = opened(path, options)
    schema = reader.schema()  # of samples of the usual size
    expected = form.read(path, schema, options)
    with pieces(SIZES, size):
        assert same(in_ranges(reader, data.draw), expected)
        # In any order, and of some columns.
        kept = data.draw(st.sets(st.sampled_from(schema.names), min_size=1))
        reader.narrow(kept)
        start = data.draw(st.integers(0, len(expected)))
        end = data.draw(st.integers(start, len(expected)))
        narrow = [{n: row[n] for n in schema.names if n in kept} for row in expected[start:end]]
        found = reader.read(*reader.names(), start, end)
        assert same([row for batch in found for row in batch.to_pylist()], narrow)


def damaged(draw, data):
    """Bytes with a place that is changed, cut out, doubled, or behind which nothing is left."""
    begin = draw(st.integers(0, len(data) - 1))
    end = min(begin + draw(st.integers(0, 8)), len(data))
    way = draw(st.sampled_from(["bit", "bit", "gone", "twice", "end", "other"]))
    if way == "end":
        return data[:begin]
    middle = data[begin:end] * 2 if way == "twice" else b""
    if way == "bit":
        end = begin + 1
        middle = bytes([data[begin] ^ 1 << draw(st.integers(0, 7))])
    elif way == "other":
        middle = draw(st.sampled_from([b"\0", b'"', b"\r", b"\n", b",", b"\xff", b"}", b"0x"]))
    return data[:begin] + middle + data[end:]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "a.db"])
@settings(max_examples=examples(30))
@given(data=st.data(), size=st.integers(1, 60), sample=st.sampled_from([1 << 20, 100]))
def test_damaged_files_are_refused_or_as_another_library_reads_them(
    tmp_path, name, data, size, sample
):
    path, form = tmp_path / name, FORMATS[name]
    options = form.write(data.draw, path)
    path.write_bytes(damaged(data.draw, path.read_bytes()))
    with pieces(SIZES, size), pieces(SAMPLES, sample):
        try:
            reader = opened(path, options)
            schema = reader.schema()
            found = in_ranges(reader, data.draw, with_numbers)
        except UserError:
            return
    assert same(found, (form.read_damaged or form.read)(path, schema, options))
