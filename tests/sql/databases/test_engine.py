"""SELECTs of DuckDB, SQLite and a real PostgreSQL: the same rows give the same Parquet."""

import datetime
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.errors import UserError
from shoal.sql.databases import database, values
from shoal.sql.databases.database import opened
from shoal.sql.databases.engine import DuckEngine
from shoal.sql.errors import START, SqlError
from shoal.sql.tokens import Sql
from tests.sql.databases import postgres

TABLE = """
CREATE TABLE people (
    id BIGINT, small SMALLINT, pay DECIMAL(10, 2), height REAL, weight DOUBLE PRECISION,
    name VARCHAR(20), born DATE, seen TIMESTAMP, member BOOLEAN
)
"""

ROWS = (
    "(1, 7, 1234.50, 1.5, 70.25, 'Zoë; TO', '1990-02-28', '2026-01-02 03:04:05', TRUE)",
    "(2, -3, 0.07, 0.25, 1e300, '', '2000-01-01', '1999-12-31 23:59:59', FALSE)",
    "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(9007199254740993, 0, -1.25, -2.0, 0.1, '100% :x', '1970-01-01', '2000-02-29 00:00:00', TRUE)",
)

SELECT = (
    "SELECT id, small, pay, height, weight, name, born, seen, member, id + 1 AS next, "
    "name || '%:y' AS more FROM people ORDER BY coalesce(id, 0)"
)


def sql(text):
    return Sql(text, START)


def filled(engine):
    engine.answer(sql(TABLE))
    for row in ROWS:
        engine.answer(sql(f"INSERT INTO people VALUES {row}"))
    return engine


@pytest.fixture(scope="module")
def server():
    with postgres.running() as (url, process):
        yield url, process


@pytest.fixture
def of_postgres(server):
    engine = opened(server[0])
    for name in ("people", "answers", "part"):
        engine.answer(sql(f"DROP TABLE IF EXISTS {name}"))
    yield engine
    engine.close()


def of_sqlite(folder):
    sqlite3.connect(folder / "people.db").close()
    return opened(f"sqlite:///{folder}/people.db")


def test_the_same_rows_give_the_same_parquet(tmp_path, of_postgres):
    found = {}
    for name, engine in (
        ("duckdb", opened("")),
        ("file", opened(str(tmp_path / "people.duckdb"))),
        ("sqlite", of_sqlite(tmp_path)),
        ("postgres", of_postgres),
    ):
        saved = filled(engine).save(sql(SELECT), tmp_path / f"{name}.parquet")
        assert saved.records == 4
        found[name] = pq.read_table(saved.path)
        assert found[name].schema == saved.schema
    first = found.pop("duckdb")
    assert first.column("pay").to_pylist() == [None, 1234.5, 0.07, -1.25]
    assert first.column("born")[1].as_py() == datetime.date(1990, 2, 28)
    assert first.column("id")[3].as_py() == 9007199254740993
    for name, table in found.items():
        assert table.schema == first.schema, name
        assert table.to_pylist() == first.to_pylist(), name


def test_types_of_postgres_and_duckdb_beyond_sqlites_are_the_same(tmp_path, of_postgres):
    text = (
        "SELECT ARRAY[1, 2] AS some, ARRAY['a', NULL] AS words, "
        "CAST('2026-01-02 03:04:05+00' AS TIMESTAMPTZ) AS zoned, CAST(12 AS NUMERIC(9, 0)) AS big, "
        "CAST('0f9f42b2-8a0f-4fd5-8d3f-0b0f9f1b0c11' AS UUID) AS key, ARRAY[0.5, 2] AS parts"
    )
    tables = [
        pq.read_table(engine.save(sql(text), tmp_path / f"{at}.parquet").path)
        for at, engine in enumerate((opened(""), of_postgres))
    ]
    assert [field.type for field in tables[0].schema] == [
        pa.list_(pa.int64()),
        pa.list_(pa.string()),
        pa.timestamp("us", "UTC"),
        pa.int64(),
        pa.string(),
        pa.list_(pa.float64()),
    ]
    assert tables[0].to_pylist() == tables[1].to_pylist()
    assert [f.type for f in tables[1].schema] == [f.type for f in tables[0].schema]


@pytest.mark.parametrize("name", ["duckdb", "sqlite", "postgres"])
def test_a_table_is_written_and_replaced(name, tmp_path, request):
    if name == "postgres":
        engine = request.getfixturevalue("of_postgres")
    else:
        engine = opened("") if name == "duckdb" else of_sqlite(tmp_path)
    table = pa.table(
        {
            "id": [1, None],
            "chance": [0.5, None],
            "word": ["a", None],
            "day": pa.array([datetime.date(2026, 1, 2), None]),
            "time": pa.array([datetime.datetime(2026, 1, 2, 3), None], pa.timestamp("us")),
            "known": [True, None],
            "parts": pa.array([[0.5, 0.25], None]),
        }
    )
    assert not engine.has("answers")
    engine.write("answers", table.schema, iter(table.to_batches()))
    twice = pa.concat_tables([table, table])
    engine.write("answers", twice.schema, iter(twice.to_batches()))
    assert engine.has("answers")
    saved = engine.save(sql("SELECT * FROM answers"), tmp_path / "again.parquet")
    wanted = twice.to_pylist()
    if name == "sqlite":  # which has no lists
        for row in wanted:
            row["parts"] = row["parts"] and "[0.5, 0.25]"
    assert pq.read_table(saved.path).to_pylist() == wanted

    def breaks():
        yield from table.to_batches()
        raise RuntimeError("in the middle")

    with pytest.raises((RuntimeError, SqlError)):
        engine.write("answers", table.schema, breaks())
    assert engine.save(sql("SELECT * FROM answers"), tmp_path / "kept.parquet").records == 4
    assert not engine.has("shoal_new_answers")


@pytest.mark.parametrize("name", ["duckdb", "sqlite", "postgres"])
def test_mistakes_are_told_at_their_words(name, tmp_path, request):
    if name == "postgres":
        engine = request.getfixturevalue("of_postgres")
    else:
        engine = opened("") if name == "duckdb" else of_sqlite(tmp_path)
    filled(engine)
    for text, column, message in (
        ("SELECT id, nmae FROM people", 12, "nmae"),
        ("SELECT id FROM peopel", 16, "peopel"),
        ("SELECT id FROM people WHERE id > 100 AND id < 0", 1, "gives no row"),
        ("SELECT id, name AS id FROM people", 1, "'id' is there twice"),
    ):
        with pytest.raises(SqlError, match=message) as raised:
            engine.save(sql(text), tmp_path / "none.parquet")
        assert raised.value.place.column == column, text
        assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("*none*"))


def test_a_type_that_no_model_gets_is_refused_by_name(tmp_path):
    for text in ("SELECT TIME '10:00' AS t", "SELECT {'a': 1} AS t", "SELECT [[1]] AS t"):
        with pytest.raises(SqlError, match=r"column t is of type .* CAST it"):
            opened("").save(sql(text), tmp_path / "a.parquet")
    huge = sql("SELECT 170141183460469231731687303715884105::HUGEINT AS t")
    with pytest.raises(SqlError, match="column t: "):
        opened("").save(huge, tmp_path / "a.parquet")


def test_values_of_another_type_than_those_before_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "PIECE", 2)
    engine = of_sqlite(tmp_path)
    engine.answer(sql("CREATE TABLE loose (a)"))
    engine.answer(sql("INSERT INTO loose VALUES (1), (2), ('three')"))
    with pytest.raises(SqlError, match="column a has a value that is no int64"):
        engine.save(sql("SELECT a FROM loose"), tmp_path / "a.parquet")
    assert values.of_declared("BLOB") is None  # as newer versions of SQLite say of it


def test_a_parquet_file_is_read_in_its_place(tmp_path):
    plain, other = tmp_path / "plain.parquet", tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), plain)
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int8())}), other)
    for text, path in (
        (f"SELECT * FROM '{plain}'", plain),
        (f"FROM '{plain}'", plain),
        (f"SELECT * FROM '{plain}' LIMIT 1", None),
        (f"SELECT * FROM '{other}'", None),
    ):
        saved = opened("").save(sql(text), tmp_path / "saved.parquet")
        assert saved.path == (path or tmp_path / "saved.parquet")
        assert saved.schema == pa.schema({"a": pa.int64()})


def test_frames_are_tables_unless_the_database_has_such_a_one():
    frames = {"people": pd.DataFrame({"a": [1, 2]}), "more": pl.DataFrame({"a": [3]}), "number": 3}
    engine = DuckEngine("", lambda: frames)
    both = sql("SELECT * FROM people UNION ALL SELECT * FROM more ORDER BY a")
    assert engine.answer(both).rows() == [(1,), (2,), (3,)]
    frames["people"] = pa.table({"a": [9]})
    assert engine.answer(sql("FROM people")).rows() == [(9,)]
    engine.answer(sql("CREATE TABLE people AS SELECT 5 AS a"))
    assert engine.answer(sql("FROM people")).rows() == [(5,)]
    for name in ("number", "frames", "engine"):  # no variable of any code is a table
        with pytest.raises(SqlError, match=name):
            engine.answer(sql(f"FROM {name}"))


def test_wrong_databases_are_refused(tmp_path):
    (tmp_path / "text.duckdb").write_text("no database")
    for url in (
        f"sqlite:///{tmp_path}/none.db",
        "nodialect://host/db",
        "people.db",
        str(tmp_path / "text.duckdb"),
    ):
        with pytest.raises(UserError, match="--database"):
            opened(url)
    with pytest.raises(SqlError) as raised:
        opened("postgresql+psycopg://me:secret@localhost:1/db").save(
            sql("SELECT 1"), tmp_path / "a"
        )
    assert "secret" not in str(raised.value)


def test_a_database_that_goes_away_in_the_middle_is_one_error(tmp_path):
    with postgres.running() as (url, process):
        engine = opened(url)
        rows = engine.batches(sql("SELECT i FROM generate_series(1, 3000000) AS t(i)"))[1]
        assert next(rows).num_rows == database.PIECE
        path = tmp_path / "a.parquet"

        def go_on():
            process.send_signal(signal.SIGQUIT)
            process.wait()
            yield from rows

        engine.batches = lambda select: (None, go_on())
        with pytest.raises(SqlError, match="connection") as raised:
            engine.save(sql("SELECT 1"), path)
        assert raised.value.place == START
        assert list(tmp_path.iterdir()) == []
        engine.close()


STREAM = """
import re, sys
from pathlib import Path
from shoal.sql.databases.database import opened
from shoal.sql.errors import START
from shoal.sql.tokens import Sql

_, url, select, path = sys.argv
saved = opened(url).save(Sql(select, START), Path(path))
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(saved.records, int(peak[1]) // 1024)
"""

COLUMNS = (
    "i AS id, i % 1000 AS user, i * 0.5 AS price, 'name' || (i % 100000) AS word, i % 7 AS day"
)
SERIES = {
    "duckdb": f"SELECT {COLUMNS} FROM range({{}}) AS t(i)",
    "postgres": f"SELECT {COLUMNS} FROM generate_series(1, {{}}) AS t(i)",
    "sqlite": "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t WHERE i < {}) "
    f"SELECT {COLUMNS} FROM t",
}


def streamed(url, select, path):
    """Rows, and MB of memory of a process that saves a SELECT."""
    done = subprocess.run(
        [sys.executable, "-c", STREAM, url, select, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(map(int, done.stdout.split()))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SERIES))
def test_a_select_is_streamed(name, tmp_path, request):
    """`python -m tests.sql.databases.test_engine` does so with ten million rows."""
    url = {"duckdb": "", "sqlite": "sqlite://"}.get(name)
    if url is None:
        url = request.getfixturevalue("server")[0]
    # DuckDB has buffers of its own up to some hundred thousand rows.
    few, many = (300_000, 1_500_000) if name == "duckdb" else (70_000, 300_000)
    found = [
        streamed(url, SERIES[name].format(count), tmp_path / "a.parquet") for count in (few, many)
    ]
    assert [rows for rows, _ in found] == [few, many]
    assert found[1][1] < 300
    assert found[1][1] - found[0][1] < 15  # MB


def main():
    """Print rows and memory of ten million rows of each database."""
    with postgres.running() as (of_postgres, _):
        for name, url in (("duckdb", ""), ("sqlite", "sqlite://"), ("postgres", of_postgres)):
            path = Path("/tmp/shoal-stream.parquet")
            print(name, *streamed(url, SERIES[name].format(10_000_000), path), flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
