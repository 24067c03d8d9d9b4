"""Frames of pandas and Polars, tables of Arrow and dicts of arrays: the same columns of each."""

from __future__ import annotations

import numpy as np
import pandas
import polars
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import ListColumn, as_columns, open_reader, read_columns
from shoal.data.frames import write_data
from tests.data.formats import BYTES, INT64, TEXT
from tests.examples import examples

VALUES = {
    "int64": INT64,
    "uint64": st.integers(0, 2**64 - 1),
    "int8": st.integers(-128, 127),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "bool": st.booleans(),
    "text": TEXT,
    "bytes": BYTES,
    "day": st.datetimes(pandas.Timestamp(1700, 1, 1), pandas.Timestamp(2200, 1, 1)),
    "list": st.lists(INT64, max_size=3),
    "texts": st.lists(TEXT, max_size=2),
    "lists": st.lists(st.lists(st.floats(width=32), max_size=2), max_size=2),
}
TYPES = {
    "float32": pa.float32(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "day": pa.timestamp("us"),
    "texts": pa.list_(pa.string()),
    "list": pa.list_(pa.int64()),
    "lists": pa.list_(pa.list_(pa.float32())),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 20))
    return pa.table(
        {
            name: pa.array(
                draw(st.lists(VALUES[name], min_size=rows, max_size=rows)),
                TYPES.get(name) or getattr(pa, name)(),
            )
            for name in sorted(draw(st.sets(st.sampled_from([*VALUES]), min_size=1, max_size=4)))
        }
    )


def arrays(table):
    """A dict of NumPy arrays; of lists where there is no such array."""
    plain = {"text", "bytes", "texts", "list", "lists"}
    return {
        name: column.to_pylist() if name in plain else column.to_numpy()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def told(column):
    """A column of shoal's as lists and Python's values."""
    if not isinstance(column, ListColumn):
        return column.tolist()
    values = iter(told(column.values))
    return [[next(values) for _ in range(length)] for length in column.row_lengths.tolist()]


def value(each):
    """A value as TensorFlow has it: bytes for text, microseconds for a time."""
    if isinstance(each, list):
        return [*map(value, each)]
    if isinstance(each, pandas.Timestamp) or hasattr(each, "timetuple"):
        return int(np.datetime64(each, "us").astype(np.int64))
    return each.encode() if isinstance(each, str) else each


@settings(max_examples=examples(15))
@given(table=tables(), cut=st.integers(0, 20))
def test_the_same_columns_of_each(tmp_path, table, cut):
    expected = {
        name: repr([*map(value, column.to_pylist())])
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    cut = min(cut, table.num_rows)
    kinds = {
        "pandas": table.to_pandas(),
        "pandas with types of Arrow": table.to_pandas(types_mapper=pandas.ArrowDtype),
        "Polars": polars.from_arrow(table),
        "a table in pieces": pa.concat_tables([table.slice(0, cut), table.slice(cut)]),
        "a stream": table.to_reader(max_chunksize=max(cut, 1)),
        "a dict": arrays(table),
    }
    path = tmp_path / "data.parquet"
    for kind, frame in kinds.items():
        write_data("training_data", frame, path, lambda _: None)
        reader = open_reader(str(path), "--data")
        (found,) = read_columns(reader, str(path), 0, table.num_rows)
        assert {name: repr(told(column)) for name, column in found.items()} == expected, kind
    for batch in (table, arrays(table)):
        found = as_columns(batch)
        assert {name: repr(told(column)) for name, column in found.items()} == expected
