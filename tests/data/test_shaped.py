"""More columns than the files have, and values in place of missing ones."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.config.groups.data_format import FormatOptions
from shoal.data import open_reader
from shoal.data.opening import reads_csv
from shoal.errors import UserError

FLAG = "--training-data"


def opened(path, **fields):
    return open_reader(str(path), FLAG, data_format=FormatOptions(**fields).format_of_data)


def rows(reader, source=0):
    name = reader.names()[source]
    return [
        row
        for batch in reader.read(name, 0, reader.describe(name).records)
        for row in batch.to_pylist()
    ]


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def hive(tmp_path):
    for day, country in ((1, "de"), (2, "a%2Fb"), (10, "__HIVE_DEFAULT_PARTITION__")):
        write(tmp_path / "t" / f"day={day}" / f"country={country}" / "a.parquet", x=[day, day + 1])
    return tmp_path / "t"


def test_folders_are_columns(hive):
    reader = opened(hive)
    assert reader.metadata.column_types == {"x": "int64", "day": "int64", "country": "string"}
    assert rows(reader) == [
        {"x": 1, "day": 1, "country": "de"},
        {"x": 2, "day": 1, "country": "de"},
    ]
    assert rows(reader, 1)[0] == {"x": 10, "day": 10, "country": None}
    assert rows(reader, 2)[1] == {"x": 3, "day": 2, "country": "a/b"}
    assert rows(opened(hive, fill_missing="country=none"), 1)[0]["country"] == "none"


def test_folders_that_are_named_are_columns_too(hive):
    assert opened(hive / "day=1").schema().names == ["x", "day", "country"]
    assert opened(f"{hive}/day=*/country=de/*.parquet").schema().names == ["x", "day", "country"]


def test_a_column_of_a_folder_alone_can_be_read(hive):
    reader = opened(hive)
    reader.narrow({"day"})
    assert rows(reader) == [{"day": 1}, {"day": 1}]
    assert rows(opened(hive, columns="country,x")) == [
        {"country": "de", "x": 1},
        {"country": "de", "x": 2},
    ]


def test_values_that_are_no_integers_are_text(tmp_path):
    for day in ("01", "2"):
        write(tmp_path / f"day={day}" / "a.parquet", x=[1])
    assert [row["day"] for i in (0, 1) for row in rows(opened(tmp_path), i)] == ["01", "2"]


def test_folders_that_differ_are_told(tmp_path):
    write(tmp_path / "day=1" / "a.parquet", x=[1])
    write(tmp_path / "b.parquet", x=[1])
    with pytest.raises(UserError, match=r"b\.parquet is in no partition, .*a\.parquet in day"):
        opened(tmp_path)


def test_a_column_that_files_and_folders_have_is_the_files_and_told_where_it_is_used(tmp_path):
    write(tmp_path / "day=1" / "a.parquet", x=[1], day=[7])
    reader = opened(tmp_path)
    assert rows(reader) == [{"x": 1, "day": 7}]
    (fault,) = reader.faults().values()
    assert str(fault).startswith(
        "--training-data: column 'day' is in the files and also in the names of their folders"
    )


def test_missing_values_are_filled_and_masked(tmp_path):
    write(
        tmp_path / "a.parquet",
        number=pa.array([1, None, 3]),
        price=pa.array([None, float("nan"), 0.5]),
        name=pa.array(["a", None, "c"]).dictionary_encode(),
        tags=pa.array([[1, None], None, []]),
    )
    reader = opened(
        tmp_path,
        fill_missing="number=-1,price=2.5,name=?,tags=0",
        missing_mask="price,tags",
    )
    reader.narrow(reader.schema().names)
    assert rows(reader) == [
        {"number": 1, "price": 2.5, "name": "a", "tags": [1, 0]} | masks(True, False),
        {"number": -1, "price": 2.5, "name": "?", "tags": []} | masks(True, True),
        {"number": 3, "price": 0.5, "name": "c", "tags": []} | masks(False, False),
    ]
    assert rows(opened(tmp_path, fill_missing="tags=[]"))[1]["tags"] == []


def masks(price, tags):
    return {"price_missing": price, "tags_missing": tags}


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        (pa.array(["a", None, "b"]).dictionary_encode(), "x", ["a", "x", "b"]),
        (
            pa.array([["a", None], None], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
            "x",
            [["a", "x"], []],
        ),
        (pa.array([[[1, None]], None], pa.list_(pa.list_(pa.int64()))), "7", [[[1, 7]], []]),
        (
            pa.array([[1, None], None, [3, 4]], pa.list_(pa.int64(), 2)),
            "7",
            [[1, 7], [7, 7], [3, 4]],
        ),
        (pa.array(["a", None], pa.string_view()), "x", ["a", "x"]),
        (pa.array([["a", None], None], pa.list_(pa.string_view())), "x", [["a", "x"], []]),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "",
)
def test_missing_values_of_nested_types_are_filled(tmp_path, column, text, expected):
    path = tmp_path / "a.arrow"
    table = pa.table({"a": column})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    reader = opened(path, fill_missing=f"a={text}")
    assert [row["a"] for row in rows(reader)] == expected
    (batch,) = reader.read(str(path), 1, 2)
    assert batch["a"].to_pylist() == expected[1:2]
    assert not batch["a"].null_count


def test_zero_with_a_sign_is_another_value_of_a_partition(tmp_path):
    for value in ("-0", "0"):
        write(tmp_path / f"x={value}" / "a.parquet", y=[1])
    reader = opened(tmp_path)
    assert [rows(reader, source)[0]["x"] for source in (0, 1)] == ["-0", "0"]


def test_a_mask_alone_reads_its_column(tmp_path):
    write(tmp_path / "a.parquet", x=pa.array([1, None]), y=[1, 2])
    reader = opened(tmp_path, missing_mask="x")
    reader.narrow({"x_missing", "y"})
    assert rows(reader) == [{"y": 1, "x_missing": False}, {"y": 2, "x_missing": True}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fill_missing": "y=1"}, r"--fill-missing\): there is no column 'y'"),
        ({"fill_missing": "x=a"}, r"--fill-missing x=a: the column's type is int64, and 'a'"),
        ({"fill_missing": "x"}, "--fill-missing must be COLUMN=VALUE, not 'x'"),
        ({"fill_missing": "x=1,x=2"}, "--fill-missing names 'x' twice"),
        ({"missing_mask": "y"}, r"--missing-mask\): there is no column 'y'"),
        ({"missing_mask": "x,"}, "--missing-mask: 'x,' has an empty name"),
        ({"columns": "x,z"}, "--training-data: there is no column 'z'"),
        ({"missing_mask": "x"}, "--missing-mask x makes a column 'x_missing', and the data has"),
    ],
)
def test_wrong_values_are_told(tmp_path, fields, message):
    names = {"x": [1], "x_missing": [1]} if "has" in message else {"x": [1]}
    write(tmp_path / "a.parquet", **names)
    with pytest.raises(UserError, match=message):
        opened(tmp_path, **fields).schema()


def test_files_of_csv_are_known_as_such_in_any_shape(tmp_path):
    (tmp_path / "a.csv").write_text("x;y\n1;\n")
    write(tmp_path / "b.parquet", x=[1])
    fields = {"fill_missing": "x=0", "csv_separator": ";"}
    assert reads_csv(opened(tmp_path / "a.csv", **fields))
    assert reads_csv(opened(tmp_path / "a.csv"))
    assert not reads_csv(opened(tmp_path / "b.parquet", fill_missing="x=0"))
