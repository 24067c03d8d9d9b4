"""MaxCompute tables by pyodps itself, from a small local server in place of the service."""

import itertools

import pyarrow as pa
import pytest

from shoal.data import open_reader
from shoal.errors import UserError
from tests.data.fake_tunnel import FakeTunnel
from tests.data.told import Told

FLAG = "--training-data"
TABLE = pa.table(
    {"user": range(50), "price": [i / 2 for i in range(50)], "name": [f"n{i}" for i in range(50)]}
)


@pytest.fixture
def tunnel(monkeypatch):
    tables = {("clicks", None): TABLE, ("clicks", "day=monday"): TABLE.slice(0, 9)}
    tables["empty", None] = TABLE.slice(0, 0)
    with FakeTunnel(tables) as made:
        monkeypatch.setenv("ODPS_ACCESS_ID", "id")
        monkeypatch.setenv("ODPS_ACCESS_KEY", "key")
        monkeypatch.setenv("ODPS_ENDPOINT", made.endpoint)
        monkeypatch.setenv("ODPS_TUNNEL_ENDPOINT", made.endpoint)
        yield made


def rows_of(reader, start, end):
    (source,) = reader.sources()
    return [row for batch in reader.read(source.name, start, end) for row in batch.to_pylist()]


def test_ranges_of_a_table_and_of_a_partition(tunnel):
    reader = open_reader("odps://shop/clicks", FLAG)
    assert [(s.name, s.records) for s in reader.sources()] == [("odps://shop/clicks", 50)]
    assert reader.schema() == TABLE.schema
    got = [rows_of(reader, *each) for each in itertools.pairwise([0, 0, 1, 20, 50])]
    assert list(itertools.chain(*got)) == TABLE.to_pylist()

    monday = open_reader("odps://shop/clicks?partition=day=monday", FLAG, columns=["name"])
    assert monday.sources()[0].records == 9
    assert rows_of(monday, 3, 5) == [{"name": "n3"}, {"name": "n4"}]


def test_all_processes_of_a_job_read_one_session(tunnel, tmp_path):
    told = Told()

    def reader():
        return told.to(open_reader("odps://shop/clicks", FLAG))

    assert told.describe(reader())[0].records == 50
    tunnel.tables["clicks", None] = TABLE.slice(0, 20)  # written anew meanwhile
    assert rows_of(reader(), 40, 50) == TABLE.to_pylist()[40:]
    assert len(tunnel.sessions) == 1
    early = open_reader("odps://shop/clicks", FLAG)
    assert early.schema().names == TABLE.column_names
    assert len(tunnel.sessions) == 2  # before anything was told
    assert rows_of(told.to(early), 40, 50) == TABLE.to_pylist()[40:]

    tunnel.expired.add("session-0")
    with pytest.raises(UserError, match="20 records where 50 were counted: the table was changed"):
        reader().sources()
    tunnel.tables["clicks", None] = TABLE
    assert rows_of(reader(), 40, 50) == TABLE.to_pylist()[40:]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("odps://shop", "must be odps://PROJECT/TABLE"),
        ("odps://shop/clicks?day=monday", "must be odps://PROJECT/TABLE"),
        ("odps://shop/none", "odps://shop/none: .*there is no"),
        ("odps://shop/clicks?partition=day=never", r"day=never: .*there is no"),
        ("odps://shop/empty", "odps://shop/empty holds no records"),
    ],
)
def test_what_is_not_there_is_told(tunnel, value, message):
    with pytest.raises(UserError, match=message):
        open_reader(value, FLAG).sources()


def test_a_missing_variable_column_or_record_is_told(tunnel, monkeypatch):
    reader = open_reader("odps://shop/clicks", FLAG, columns=["nam"])
    with pytest.raises(UserError, match=r"there is no column 'nam' \(did you mean name\?\)"):
        reader.schema()
    reader = open_reader("odps://shop/clicks", FLAG)
    reader.schema()
    tunnel.short = 2
    with pytest.raises(UserError, match="the tunnel gave 8 records from record 10 on, not 10"):
        rows_of(reader, 10, 20)
    monkeypatch.delenv("ODPS_ACCESS_KEY")
    with pytest.raises(UserError, match="needs the environment variable ODPS_ACCESS_KEY"):
        open_reader("odps://shop/clicks", FLAG)
