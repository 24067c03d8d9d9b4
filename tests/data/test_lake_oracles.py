"""Delta and Iceberg tables of random courses, each version as its own library reads it.

Between versions rows come and go, columns are added, renamed, widened and removed, and files are
compacted. A version is read in random ranges: by a reader that was opened when it was the newest,
by one that names it later, and by one that is told of its files.
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import open_reader
from shoal.errors import UserError
from tests.data.formats import BYTES, INT64, TEXT
from tests.data.told import Told
from tests.examples import examples

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg.catalog")

from deltalake import DeltaTable, write_deltalake
from pyiceberg import expressions, types

pytestmark = pytest.mark.slow

DAYS = st.dates(datetime.date(1, 1, 2), datetime.date(9999, 1, 1))
# The Delta library cannot write a partition of a negative one.
PRICES = st.decimals(0, 999, places=2)
COLUMNS = {
    "id": (pa.int64(), st.integers(0, 20)),
    "text": (pa.string(), TEXT),
    # Of a partition it is part of a file's name, with all digits.
    "value": (pa.float64(), st.floats(width=32)),
    "day": (pa.date32(), DAYS),
    "price": (pa.decimal128(10, 2), PRICES),
    "raw": (pa.binary(), BYTES),
    "flag": (pa.bool_(), st.booleans()),
    "list": (pa.list_(pa.int64()), st.lists(INT64, max_size=3)),
    "small": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
}
NUMBERS = itertools.count()  # of Iceberg tables
PARTITIONS = ["text", "value", "day", "price", "flag", "small"]


def drawn(draw, kinds):
    """A table of columns of these kinds, names in COLUMNS; all but `id` may lack values."""
    count = draw(st.integers(1, 8))
    columns = {}
    for name, of in kinds.items():
        kind, values = COLUMNS[of]
        some = values if name == "id" else values | st.none()
        drawn = draw(st.lists(some, min_size=count, max_size=count))
        columns[name] = pa.array(drawn, kind)
    return pa.table(columns)


def counted(table):
    """The rows, in no order. By their texts: NaN is NaN, and -0.0 is not 0.0."""
    return Counter(map(repr, table.to_pylist()))


def in_ranges(reader, sources, rng):
    """All rows of a reader's sources, which are read in any order and in random ranges.

    rng: a random.Random, as the files have random names.
    """
    ranges = []
    for source in sources:
        cuts = sorted(rng.choices(range(source.records + 1), k=rng.randrange(4)))
        bounds = itertools.pairwise([0, *cuts, source.records])
        ranges += [(source.name, *each) for each in bounds]
    rng.shuffle(ranges)
    schema = reader.schema()
    return pa.Table.from_batches([batch for each in ranges for batch in reader.read(*each)], schema)


def check(rng, opened, named, expected):
    """A version: by a reader that was opened then, and by its name, now, as others are told."""
    if not expected.num_rows:
        with pytest.raises(UserError, match="holds no records"):
            open_reader(named, "--data").sources()
        return
    told = Told()
    late = open_reader(named, "--data")
    sources = told.describe(late)
    readers = [opened, late, told.to(open_reader(named, "--data"))]
    for reader in readers:
        found = in_ranges(reader, sources, rng)
        assert {*found.schema.names} == {*expected.schema.names}
        assert counted(found) == counted(expected.select(found.schema.names))
    few = {*rng.choices(expected.schema.names, k=2)}
    late.narrow(few)
    found = in_ranges(late, sources, rng)
    assert counted(found) == counted(expected.select(found.schema.names))
    assert {*found.schema.names} == few


# ------------------------------------------------------------------------------ Delta Lake


def next_delta(draw, path, partitions):
    """One more version of a Delta table."""
    have = DeltaTable(path).schema().to_arrow().names if DeltaTable.is_deltatable(path) else []
    what = draw(st.sampled_from(["append", "append", "delete", "update", "compact", "overwrite"]))
    if not have or what in ("append", "overwrite"):
        more = draw(st.sets(st.sampled_from([*COLUMNS][1:])))
        names = {"id", *partitions, *have, *more}
        mode = "overwrite" if what == "overwrite" else "append"
        table = drawn(draw, {each: each for each in COLUMNS if each in names})
        write_deltalake(path, table, mode=mode, schema_mode="merge", partition_by=partitions)
        return
    table, number = DeltaTable(path), draw(st.integers(0, 20))
    if what == "delete":
        table.delete(f"id < {number}")
    elif what == "update":
        table.update({"id": "id + 1"}, predicate=f"id > {number}")
    else:
        table.optimize.compact()
        if draw(st.booleans()):
            table.create_checkpoint()


@settings(max_examples=examples(40))
@given(data=st.data(), rng=st.randoms(use_true_random=True))
def test_every_version_of_a_delta_table(tmp_path_factory, data, rng):
    path = str(tmp_path_factory.mktemp("table"))
    partitions = data.draw(st.lists(st.sampled_from(PARTITIONS), max_size=2, unique=True))
    readers = []
    for _ in range(data.draw(st.integers(1, 5))):
        next_delta(data.draw, path, partitions)
        table = DeltaTable(path)
        newest = None
        if table.to_pyarrow_table().num_rows:
            newest = open_reader(path, "--data")
        readers.append((table.version(), newest))
    for version, reader in readers:
        expected = DeltaTable(path, version=version).to_pyarrow_table()
        check(rng, reader, f"{path}#version={version}", expected)


# ------------------------------------------------------------------------------ Iceberg


def evolve(draw, table, kinds):
    """Change the columns or the partitions. kinds: of each column, its name in COLUMNS."""
    partitioned = {each.source_id for each in table.spec().fields}
    free = [
        each.name
        for each in table.schema().fields
        if each.name != "id" and each.field_id not in partitioned
    ]
    what = draw(st.sampled_from(["add", "rename", "delete", "widen", "partition"]))
    if what == "partition":
        names = [name for name in kinds if kinds[name] in PARTITIONS and name in free]
        if names:
            with table.update_spec() as update:
                update.add_identity(draw(st.sampled_from(names)))
        return
    with table.update_schema() as update:
        if what == "widen":
            for name in (name for name in free if kinds[name] == "small"):
                update.update_column(name, types.LongType())
        elif what == "add":
            new = draw(st.sets(st.sampled_from([*COLUMNS]), max_size=3)) - {*kinds}
            update.union_by_name(pa.schema([(name, COLUMNS[name][0]) for name in sorted(new)]))
            kinds |= {name: name for name in new}
        elif free:
            name = draw(st.sampled_from(free))
            kind = kinds.pop(name)
            if what == "rename":
                other = draw(st.sampled_from([*{*COLUMNS, "other"} - {*kinds}]))
                kinds[other] = kind
                update.rename_column(name, other)
            else:
                update.delete_column(name)


def next_iceberg(draw, table, kinds):
    """One more snapshot of an Iceberg table."""
    what = draw(st.sampled_from(["append", "append", "delete", "overwrite"]))
    below = expressions.LessThan("id", draw(st.integers(0, 20)))
    if what == "delete" and table.current_snapshot() is not None:
        table.delete(below)
        return
    for _ in range(draw(st.integers(0, 3))):
        evolve(draw, table, kinds)
    schema = table.schema().as_arrow()
    rows = drawn(draw, kinds).select(schema.names).cast(schema)
    if what == "overwrite":
        table.overwrite(rows, below)
    else:
        table.append(rows)


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@settings(max_examples=examples(40))
@given(data=st.data(), rng=st.randoms(use_true_random=True))
def test_every_snapshot_of_an_iceberg_table(catalog, data, rng):
    name = f"web.t{next(NUMBERS)}"
    kinds = {"id": "id"} | {
        each: each
        for each in data.draw(st.lists(st.sampled_from([*COLUMNS]), min_size=1, unique=True))
    }
    schema = pa.schema([(each, COLUMNS[each][0]) for each in kinds])
    table = catalog.create_table(name, schema=schema)
    readers = []
    for _ in range(data.draw(st.integers(1, 4))):
        next_iceberg(data.draw, table, kinds)
        table.refresh()
        newest = None
        if table.scan().to_arrow().num_rows:
            newest = open_reader(f"iceberg://shop/{name}", "--data")
        readers.append((table.current_snapshot().snapshot_id, newest))
    for snapshot, reader in readers:
        expected = table.scan(snapshot_id=snapshot).to_arrow()
        check(rng, reader, f"iceberg://shop/{name}#snapshot={snapshot}", expected)
