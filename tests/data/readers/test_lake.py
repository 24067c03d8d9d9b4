"""Delta and Iceberg tables as their libraries write them: the files of a version and no others."""

from __future__ import annotations

import datetime
import decimal
import math

import pyarrow as pa
import pytest

from shoal.data import open_reader
from shoal.errors import UserError
from tests.data.told import Told

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg.catalog")

FLAG = "--training-data"


def rows(reader):
    return sorted(
        (
            row
            for name in reader.names()
            for batch in reader.read(name, 0, reader.describe(name).records)
            for row in batch.to_pylist()
        ),
        key=lambda row: row["id"],
    )


@pytest.fixture
def delta(tmp_path):
    """Three versions: two partitions, one more with a new column, and one row deleted."""
    path = str(tmp_path / "delta")
    table = pa.table({"id": [1, 2, 3], "day": ["a", "a", "b"]})
    deltalake.write_deltalake(path, table, partition_by=["day"])
    more = pa.table({"id": [4], "day": ["c d/e"], "price": [1.5]})
    deltalake.write_deltalake(path, more, mode="append", schema_mode="merge", partition_by=["day"])
    deltalake.DeltaTable(path).delete("id = 2")
    return path


def test_a_delta_table_has_its_newest_version_and_no_removed_file(delta):
    reader = open_reader(delta, FLAG)
    assert reader.metadata.column_types == {"id": "int64", "price": "double", "day": "string"}
    assert rows(reader) == [
        {"id": 1, "price": None, "day": "a"},
        {"id": 3, "price": None, "day": "b"},
        {"id": 4, "price": 1.5, "day": "c d/e"},
    ]
    reader = open_reader(f"file://{delta}", FLAG)
    reader.narrow({"id", "day"})
    assert rows(reader)[2] == {"id": 4, "day": "c d/e"}


@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"\x01a", b"x"]),
        pa.array([datetime.date(2024, 1, 1), None]),
        pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.00")]),
        pa.array([True, False]),
        pa.array([1.5, math.inf]),
        pa.array([2**62 + 1, -1]),
        pa.array(["a/b", None]),
    ],
    ids=lambda each: str(each.type),
)
def test_values_of_partitions_keep_their_types(tmp_path, values):
    path = str(tmp_path / "delta")
    table = pa.table({"id": [1, 2], "part": values})
    deltalake.write_deltalake(path, table, partition_by=["part"])
    told = Told()
    told.describe(open_reader(path, FLAG))
    for reader in (open_reader(path, FLAG), told.to(open_reader(path, FLAG))):
        assert rows(reader) == table.to_pylist()


def test_a_version_is_read_as_it_was(delta):
    assert [row["id"] for row in rows(open_reader(f"{delta}#version=0", FLAG))] == [1, 2, 3]
    assert [row["id"] for row in rows(open_reader(f"{delta}#version=1", FLAG))] == [1, 2, 3, 4]


def test_a_job_reads_the_version_that_it_was_told_of(delta):
    """Also by a worker that opens the table when it is another."""
    told = Told()
    sources = told.describe(open_reader(delta, FLAG))
    deltalake.write_deltalake(
        delta, pa.table({"id": [9], "day": ["z"]}), mode="overwrite", schema_mode="overwrite"
    )
    late = told.to(open_reader(delta, FLAG))
    read = [
        row
        for source in sources
        for batch in late.read(source.name, 0, source.records)
        for row in batch.to_pylist()
    ]
    assert sorted((row["id"], row["day"]) for row in read) == [(1, "a"), (3, "b"), (4, "c d/e")]


def test_an_iceberg_table_by_its_catalog_and_by_its_metadata(catalog):
    from pyiceberg.types import DoubleType

    first = pa.table({"id": [1, 2], "name": ["a", "b"]})
    table = catalog.create_table("web.clicks", schema=first.schema)
    table.append(first)
    snapshot = table.current_snapshot().snapshot_id
    with table.update_schema() as update:
        update.add_column("price", DoubleType())
    table.append(pa.table({"id": [3], "name": ["c"], "price": [0.5]}))
    expected = [
        {"id": 1, "name": "a", "price": None},
        {"id": 2, "name": "b", "price": None},
        {"id": 3, "name": "c", "price": 0.5},
    ]
    reader = open_reader("iceberg://shop/web.clicks", FLAG)
    assert rows(reader) == expected
    assert rows(open_reader(table.metadata_location, FLAG)) == expected
    old = open_reader(f"iceberg://shop/web.clicks#snapshot={snapshot}", FLAG)
    assert [row["id"] for row in rows(old)] == [1, 2]


def test_columns_of_an_iceberg_table_are_told_by_their_ids(catalog):
    """A new column has nothing of a removed one of its name, and a renamed one keeps its values."""
    from pyiceberg.types import LongType

    first = pa.table({"id": [1, 2], "count": [10, 20], "name": ["a", "b"]})
    table = catalog.create_table("web.clicks", schema=first.schema)
    table.append(first)
    with table.update_schema() as update:
        update.delete_column("count")
        update.rename_column("name", "title")
    with table.update_schema() as update:
        update.add_column("count", LongType())
    with table.update_schema() as update:
        update.add_column("name", LongType())
    table.append(pa.table({"id": [3], "title": ["c"], "count": [30], "name": [7]}))
    reader = open_reader("iceberg://shop/web.clicks", FLAG)
    assert rows(reader) == [
        {"id": 1, "title": "a", "count": None, "name": None},
        {"id": 2, "title": "b", "count": None, "name": None},
        {"id": 3, "title": "c", "count": 30, "name": 7},
    ]
    reader.narrow({"count"})
    assert [
        row["count"]
        for name in reader.names()
        for b in reader.read(name, 0, 1)
        for row in b.to_pylist()
    ].count(None) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{delta}#version=9", "the Delta table cannot be read: "),
        ("{delta}#snapshot=9", "of a Delta table, give #version=N"),
        ("iceberg://shop", "must be iceberg://CATALOG/NAMESPACE.TABLE"),
        ("iceberg://shop/web.none", "the Iceberg table cannot be read: NoSuchTableError"),
        ("iceberg://shop/web.none#version=1", "of an Iceberg table, give #snapshot=ID"),
    ],
)
def test_what_is_not_there_is_told(delta, catalog, value, message):
    with pytest.raises(UserError, match=f"^--training-data: .*{message}"):
        open_reader(value.format(delta=delta), FLAG)
