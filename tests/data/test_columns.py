"""Chunks of every kind become arrays; custom readers get the full interface."""

import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data import (
    ListColumn,
    Source,
    as_columns,
    minibatches,
    open_custom_reader,
    read_columns,
)
from shoal.errors import UserError


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


class Reader:
    """A user's reader over a list of items, each one record."""

    def __init__(self, items):
        self.items = items

    def sources(self):
        return [("memory", len(self.items))]

    def read(self, source, start, end):
        yield from self.items[start:end]


def custom(items, **attributes):
    inner = Reader(items)
    for name, value in attributes.items():
        setattr(inner, name, value)
    return open_custom_reader(lambda pattern: inner, "here", "--training-data")


def test_scalars_keep_their_types_and_strings_become_bytes():
    columns = as_columns(
        batch(
            i=pa.array([1, 2], pa.int32()),
            f=pa.array([0.5, None], pa.float32()),
            b=[True, False],
            s=["ä", ""],
            d=pa.array(["x", "x"]).dictionary_encode(),
            t=pa.array([1, 2], pa.timestamp("us")),
        )
    )
    assert columns["i"].dtype == np.int32
    assert columns["f"].dtype == np.float32
    assert np.isnan(columns["f"][1])
    assert columns["b"].dtype == np.bool_
    assert columns["s"].tolist() == ["ä".encode(), b""]
    assert columns["d"].tolist() == [b"x", b"x"]
    assert columns["t"].tolist() == [1, 2]


def test_lists_become_values_and_lengths_also_in_a_slice():
    whole = batch(g=pa.array([[9], [1, 2], [], [3]]), s=[["a"], ["b"], [], ["c", "d"]])
    columns = as_columns(whole.slice(1))
    assert columns["g"].values.tolist() == [1, 2, 3]
    assert columns["g"].row_lengths.tolist() == [2, 0, 1]
    assert columns["s"].values.tolist() == [b"b", b"c", b"d"]


def test_lists_of_one_length_are_a_matrix_also_in_a_slice():
    whole = batch(m=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)))
    assert as_columns(whole.slice(1))["m"].tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, None]), "1 missing values"),
        (pa.array(["a", None]), "1 missing values"),
        (pa.array([[1], None]), "1 missing values"),
        (pa.array([[1], [None]]), "1 missing values"),
        (pa.array([{"x": 1}]), "no counterpart"),
        (pa.array([[{"x": 1}]]), "no counterpart"),
    ],
)
def test_what_cannot_be_a_tensor_is_refused_with_file_and_column(column, message):
    with pytest.raises(UserError, match=rf"^f\.parquet: column 'c': .*{message}"):
        as_columns(batch(c=column), "f.parquet")


def test_dicts_of_arrays_are_chunks():
    columns = as_columns({"a": np.arange(2), "s": ["x", "y"], "g": [[1], [2, 3]], "m": np.eye(2)})
    assert columns["a"].tolist() == [0, 1]
    assert columns["s"].tolist() == [b"x", b"y"]
    assert isinstance(columns["g"], ListColumn)
    assert columns["m"].shape == (2, 2)


def test_unequal_lengths_and_strange_chunks_are_refused():
    with pytest.raises(UserError, match="a: 1, b: 2"):
        as_columns({"a": [1], "b": [1, 2]})
    with pytest.raises(UserError, match="not int"):
        as_columns(3)
    with pytest.raises(UserError, match="column 'a': cannot be made an array"):
        as_columns({"a": [1, "x"]})


def test_single_dicts_are_gathered():
    reader = custom([{"a": i, "g": [i] * i} for i in range(3)])
    (columns,) = read_columns(reader, "memory", 0, 3)
    assert columns["a"].tolist() == [0, 1, 2]
    assert columns["g"].row_lengths.tolist() == [0, 1, 2]
    assert reader.metadata.column_types["a"] == "int64"


def test_tuples_take_the_readers_names():
    (columns,) = read_columns(custom([(1, "x")], column_names=["n", "s"]), "memory", 0, 1)
    assert columns["n"].tolist() == [1]
    (columns,) = read_columns(custom([(1, "x")]), "memory", 0, 1)
    assert list(columns) == ["0", "1"]


def test_many_records_come_in_several_chunks_and_mix_with_batches():
    items = [{"a": i} for i in range(1500)] + [batch(a=[1500])] + [{"a": 1501}]
    reader = custom(items)
    chunks = [c["a"] for c in read_columns(reader, "memory", 0, 1502)]
    assert np.concatenate(chunks).tolist() == list(range(1502))


def test_records_of_different_shape_are_refused():
    with pytest.raises(UserError, match="dicts of a"):
        list(read_columns(custom([{"a": 1}, {"b": 1}]), "memory", 0, 2))
    with pytest.raises(UserError, match="tuples of 1"):
        list(read_columns(custom([(1,), (1, 2)]), "memory", 0, 2))


def test_a_reader_that_yields_too_few_is_refused():
    with pytest.raises(UserError, match="yielded 1 records for the range 0 to 2"):
        list(read_columns(custom([{"a": 1}]), "memory", 0, 2))


def test_what_the_function_returns_is_checked():
    with pytest.raises(UserError, match="object has no sources"):
        open_custom_reader(lambda pattern: object(), "here", "--x")
    reader = custom([{"a": 1}])
    assert reader.sources() == [Source("memory", 1)]
    assert open_custom_reader(lambda pattern: reader, "here", "--x") is reader
    reader = custom([{"a": 1}], sources=lambda: ["memory"])
    with pytest.raises(UserError, match="pairs of a name"):
        reader.sources()
    with pytest.raises(UserError, match="--training-data: here holds no records"):
        custom([]).sources()


def test_decimals_and_times_are_numbers():
    found = as_columns(
        batch(
            price=pa.array([decimal.Decimal("1.25"), None]),
            day=pa.array([1, 2], pa.time32("s")),
            moment=pa.array([3, 4], pa.time64("us")),
        )
    )
    np.testing.assert_array_equal(found["price"], [1.25, np.nan])
    assert (found["day"].tolist(), found["day"].dtype) == ([1, 2], np.int32)
    assert (found["moment"].tolist(), found["moment"].dtype) == ([3, 4], np.int64)


def test_lists_of_lists_are_cut_and_joined():
    lists = [[[1, 2], [3]], [], [[], [4]], [[5]], [[6, 7]]]
    chunks = [as_columns(batch(x=pa.array(lists[:3]))), as_columns(batch(x=pa.array(lists[3:])))]
    pieces = list(minibatches(iter(chunks), 2))
    assert [nested(piece["x"]) for piece in pieces] == [lists[:2], lists[2:4], lists[4:]]


def nested(column):
    if not isinstance(column, ListColumn):
        return column.tolist()
    values = nested(column.values)
    ends = np.cumsum(column.row_lengths).tolist()
    return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def test_integers_of_decimals_and_bytes_of_numpy_are_kept_whole():
    large = [2**53 + 1, 2**53 + 2]
    columns = as_columns(batch(d=pa.array(map(decimal.Decimal, large), pa.decimal128(38, 0))))
    assert columns["d"].tolist() == large
    with pytest.raises(UserError, match=r"column 'd': a value of type .* is no int64"):
        as_columns(batch(d=pa.array([decimal.Decimal(2**63)], pa.decimal128(38, 0))))
    below = pa.array([decimal.Decimal(2**53 - 1), None], pa.decimal128(38, 2))
    assert as_columns(batch(d=below))["d"][0] == 2**53 - 1
    with pytest.raises(UserError, match=r"column 'd': a value of type .* is 2\*\*53 or more"):
        as_columns(batch(d=pa.array([decimal.Decimal(2**53 + 1)], pa.decimal128(38, 2))))
    digests = np.array([b"a\0b", b"a\0c"])
    columns = as_columns({"digest": digests, "pairs": digests.reshape(2, 1)})
    assert columns["digest"].tolist() == [b"a\0b", b"a\0c"]
    assert columns["pairs"].tolist() == [[b"a\0b"], [b"a\0c"]]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([{"a": np.arange(1)}, {"b": np.arange(1)}], "chunks differ in column 'a', .* record 1 on"),
        ([{"a": [2**64]}], "column 'a': cannot be made an array"),
        ([{"a": [[1], [[2]]]}], "column 'a': cannot be made an array"),
        (
            [{"a": np.array(["2024-01-01"], f"datetime64[{unit}]")} for unit in ("s", "ms")],
            r"column 'a' is datetime64\[ms\] here, and datetime64\[s\] elsewhere",
        ),
        ([{"a": pa.array([None, 1])}], r"fill them in custom_data_reader, or have feed not read"),
    ],
)
def test_what_a_custom_reader_may_not_yield_is_told(chunks, message):
    reader = custom(chunks)
    with pytest.raises(UserError, match=message):
        list(read_columns(reader, "memory", 0, len(chunks)))


LISTS = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=5)


def list_column(lists):
    values = np.array([x for each in lists for x in each], np.int64)
    return ListColumn(values, np.array([len(each) for each in lists], np.int64))


@given(LISTS, st.integers(0, 5), st.integers(-9, 9))
def test_lists_are_padded_to_one_length(lists, n, value):
    made = list_column(lists).padded(n, value)
    assert made.shape == (len(lists), n)
    assert made.dtype == np.int64
    assert made.tolist() == [(each + [value] * n)[:n] for each in lists]


@given(LISTS)
def test_offsets_are_where_each_list_begins(lists):
    column = list_column(lists)
    assert len(column) == len(lists)
    ends = [*column.offsets[1:], len(column.values)]
    found = [column.values[a:b].tolist() for a, b in zip(column.offsets, ends, strict=bool(lists))]
    assert found == lists


def test_texts_are_padded_with_empty_ones_or_the_given():
    column = as_columns(batch(s=[["a"], [], ["b", "c"]]))["s"]
    assert column.padded(2).tolist() == [[b"a", b""], [b"", b""], [b"b", b"c"]]
    assert column.padded(1, "ü").tolist() == [[b"a"], ["ü".encode()], [b"b"]]


def test_lists_of_lists_are_padded_from_the_inside():
    column = as_columns(batch(s=[[[1, 2], [3]], []]))["s"]
    with pytest.raises(UserError, match="pad the inner ones first"):
        column.padded(2)
    inner = ListColumn(column.values.padded(2), column.row_lengths)
    assert inner.padded(2).tolist() == [[[1, 2], [3, 0]], [[0, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("kind", "value", "good"),
    [
        ("int64", 0.5, False),
        ("int64", 2**63, False),
        ("uint8", -1, False),
        ("uint8", 255, True),
        ("int64", "a", False),
        ("bool", 1, True),
        ("bool", 2, False),
        ("float32", 0.1, True),
        ("float32", float("nan"), True),
        ("object", 3, False),
        ("object", b"x", True),
    ],
)
def test_a_padding_that_the_type_does_not_have_is_refused(kind, value, good):
    column = ListColumn(np.empty(0, kind), np.zeros(2, np.int64))
    if good:
        assert column.padded(1, value).shape == (2, 1)
        return
    with pytest.raises(UserError, match=r"padded\(n, .*\) of a column of .*none of these"):
        column.padded(1, value)
