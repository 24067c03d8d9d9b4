"""Tables of SQLite by key: any ranges that partition one give it back; refusals by name."""

import itertools
import sqlite3

import pyarrow as pa
import pytest

from shoal.data import as_columns, open_reader
from shoal.data.readers import sql_reader
from shoal.errors import UserError
from tests.data.told import Told

FLAG = "--training-data"
ROWS = [(key * 3 - 40, f"n{key}", key / 2, key % 2 == 0, bytes([key])) for key in range(103)]


@pytest.fixture
def database(tmp_path, monkeypatch):
    monkeypatch.setattr(sql_reader, "BLOCK_ROWS", 8)
    path = tmp_path / "clicks.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE clicks (id INTEGER PRIMARY KEY, name VARCHAR(9) UNIQUE NOT NULL, "
            "price NUMERIC(9, 2), clicked BOOLEAN NOT NULL, raw BLOB)"
        )
        connection.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?, ?)", reversed(ROWS))
        connection.execute("CREATE TABLE keyless (id INTEGER, twice INTEGER, day DATETIME)")
        connection.executemany(
            "INSERT INTO keyless VALUES (?, 1, '2026-01-01 00:00:00')", [(5,), (1,), (None,)]
        )
        connection.execute("CREATE TABLE pairs (a INTEGER, b INTEGER, PRIMARY KEY (a, b))")
        connection.execute("CREATE TABLE odd (id INTEGER PRIMARY KEY, other JSON)")
        connection.execute("CREATE VIEW some AS SELECT id, price FROM clicks WHERE id > 0")
        connection.execute(
            "CREATE TABLE large (id NUMERIC(20, 0) PRIMARY KEY, day DATETIME UNIQUE NOT NULL, "
            "flag BOOLEAN UNIQUE)"
        )
        connection.executemany(
            "INSERT INTO large VALUES (?, ?, ?)",
            [(2**53 + i, f"2026-01-01 00:00:{i:02}", i if i < 2 else None) for i in range(60)],
        )
        connection.execute("CREATE TABLE loose (id TEXT PRIMARY KEY)")
        connection.executemany("INSERT INTO loose VALUES (?)", [("a",), (None,)])
        connection.execute("CREATE TABLE half (id INTEGER PRIMARY KEY, number INTEGER)")
        connection.execute("INSERT INTO half VALUES (3, 1), (4, 2.5)")
        connection.execute(
            "CREATE TABLE wrong (id INTEGER PRIMARY KEY, number INTEGER, day DATETIME)"
        )
        connection.execute("INSERT INTO wrong VALUES (3, 1, NULL), (7, 'many', NULL)")
        connection.execute("CREATE TABLE empty (id INTEGER PRIMARY KEY)")
    connection.close()
    return f"sqlite:///{path}"


def rows_of(reader, start, end):
    (source,) = reader.sources()
    batches = reader.read(source.name, start, end)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("cuts", [[], [8, 16], [1, 7, 9, 50, 96, 102]], ids=str)
@pytest.mark.parametrize("key", ["", "&key=name", "&key=price"])
def test_ranges_in_the_order_of_the_key(database, cuts, key):
    reader = open_reader(f"{database}#clicks{key}", FLAG)
    (source,) = reader.sources()
    assert (source.name, source.records) == (f"{database}#clicks{key}", 103)
    column = {"": 0, "&key=name": 1, "&key=price": 2}[key]
    expected = sorted(ROWS, key=lambda row: row[column])
    got = [rows_of(reader, *each) for each in itertools.pairwise([0, *cuts, 103])]
    assert list(itertools.chain(*got)) == expected


@pytest.mark.parametrize("key", ["", "&key=day"])
def test_keys_are_asked_for_as_they_were_read(database, key):
    """Decimals beyond a float64, and times that SQLAlchemy would write with a fraction."""
    reader = open_reader(f"{database}#large{key}", FLAG, columns=["id"])
    assert reader.schema().types == [pa.int64()]
    for start, end in ((0, 60), (7, 9), (59, 60)):
        assert rows_of(reader, start, end) == [(2**53 + i,) for i in range(start, end)]


def test_rows_that_are_exchanged_for_others_are_told(database):
    reader = open_reader(f"{database}#clicks", FLAG)
    assert reader.sources()[0].records == 103
    path = database.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE clicks SET id = id + 1 WHERE id = ?", [ROWS[15][0]])
    connection.close()
    assert rows_of(reader, 0, 8) == ROWS[:8]
    with pytest.raises(UserError, match=r"8 rows .* from row 9 on, or with other keys: the table"):
        rows_of(reader, 8, 9)


def test_types_a_view_and_chosen_columns(database):
    reader = open_reader(f"{database}#clicks", FLAG)
    kinds = [pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.binary()]
    assert reader.schema().types == kinds
    assert reader.metadata.column_names == ("id", "name", "price", "clicked", "raw")
    view = open_reader(f"{database}#some&key=id", FLAG, columns=["price"])
    assert rows_of(view, 0, 2) == [(7.0,), (7.5,)]
    columns = as_columns(next(iter(reader.read(reader.sources()[0].name, 0, 1))))
    assert columns["raw"][0] == b"\0"


def test_the_index_is_made_once(database, tmp_path, monkeypatch):
    told = Told()

    def reader():
        return told.to(open_reader(f"{database}#clicks", FLAG))

    told.describe(reader())
    monkeypatch.setattr(sql_reader.SqlReader, "_build", None)
    assert rows_of(reader(), 9, 11) == ROWS[9:11]


def test_a_table_that_changes_meanwhile_is_told_but_new_rows_behind_are_not_read(database):
    reader = open_reader(f"{database}#clicks", FLAG)
    assert reader.sources()[0].records == 103
    path = database.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO clicks VALUES (9999, 'z', 0, 0, NULL)")
    connection.close()
    assert rows_of(reader, 95, 103) == ROWS[95:]
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM clicks WHERE id = ?", [ROWS[10][0]])
    connection.close()
    assert rows_of(reader, 0, 8) == ROWS[:8]
    with pytest.raises(
        UserError, match=r"7 rows where 8 were counted, from row 9 on, or .*: the table"
    ):
        rows_of(reader, 0, 16)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "name the table behind the URL: URL#TABLE"),
        ("#clicks&sort=id", "name the table behind the URL"),
        ("#click", r"there is no table click \(did you mean clicks\?\)"),
        ("#keyless", "the table has no primary key or unique column"),
        ("#pairs", "the table has no primary key or unique column"),
        ("#some", "the table has no primary key or unique column"),
        ("#keyless&key=id", "of its 3 values 1 are missing and 0 are repeated"),
        ("#keyless&key=twice", "of its 3 values 0 are missing and 2 are repeated"),
        ("#keyless&key=none", "there is no column 'none'; the columns are id, twice, day"),
        ("#odd", "column 'other' is of type JSON, which no tensor holds"),
        ("#loose", "column 'id' cannot be the key: it has missing values: name another"),
        ("#half", r"row 2 \(id = 4\): column 'number': 2\.5 is no int64"),
        ("#empty", "holds no records"),
        ("#wrong", r"row 2 \(id = 7\): column 'number': 'many' is no int64"),
    ],
)
def test_refusals_name_flag_table_and_row(database, table, message):
    def read():
        reader = open_reader(f"{database}{table}", FLAG)
        reader.schema()
        return rows_of(reader, 0, reader.sources()[0].records)

    with pytest.raises(UserError, match=f"sqlite:///.*{message}"):
        read()


def test_an_error_names_the_key_where_it_is_no_column_to_be_read(database):
    reader = open_reader(f"{database}#wrong", FLAG, columns=["number"])
    with pytest.raises(UserError, match=r"row 2 \(id = 7\): column 'number': 'many' is no int64"):
        rows_of(reader, 0, 2)


def test_a_value_that_its_type_cannot_parse_names_its_row(database):
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE wrong SET number = 2, day = 'monday' WHERE id = 7")
    connection.close()
    with pytest.raises(UserError, match=r"wrong: row 2: .*monday"):
        rows_of(open_reader(f"{database}#wrong", FLAG), 0, 2)


def test_a_missing_file_or_driver_is_told_without_the_password(tmp_path):
    with pytest.raises(UserError, match=r"--training-data: there is no file .*none\.db"):
        open_reader(f"sqlite:///{tmp_path}/none.db#clicks", FLAG)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"oracle://\*\*\*@host/db#clicks: install its driver"):
        open_reader("oracle://me:word@host/db#clicks", FLAG)
