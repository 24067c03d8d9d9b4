"""Engines, which run SELECTs: DuckDB in this process, or a database elsewhere (database.py).

A SELECT's result goes to a Parquet file in pieces, so that it may be larger than the memory. Tables
of predictions are written in pieces, too, and are there whole or not at all.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.disk.wholefile import replacing
from shoal.errors import UserError
from shoal.sql.databases import values
from shoal.sql.errors import SqlError, place_at
from shoal.sql.tokens import Sql, moved, tables

try:
    import duckdb
except ImportError as error:
    raise UserError(
        "shoal sql needs duckdb; install it with: pip install 'shoal[sql-front]'"
    ) from error

PIECE = 32_768
"""Rows that are in memory at once."""

GROUP_ROWS = 65_536
"""Rows of a row group: a task reads the groups that it touches."""

_IN_PLACE = re.compile(r"(?:SELECT\s+\*\s+)?FROM\s+'([^'*?\[]+\.parquet)'\s*", re.IGNORECASE)

_LINE = re.compile(r"\s*\nLINE \d+: .*\n *\^\S*")
"""A database's own line and caret, which counts in another text."""

_NAMED = re.compile(
    r"""(?:no such \w+: |near |column |relation |function |with name )["']?([\w.]+)""",
    re.IGNORECASE,
)
"""The word that an error names."""


@dataclass(frozen=True)
class Saved:
    """A SELECT's result in a Parquet file."""

    path: Path
    schema: pa.Schema
    records: int


Rows = Iterator[pa.RecordBatch]


class Answer:
    """The rows of a statement, found when they are asked for: a part of them may be enough.

    Its methods raise SqlError.
    """

    def __init__(self, relation: Any, statement: Sql | None) -> None:
        self._relation = relation
        self._statement = statement

    @classmethod
    def of(cls, table: pa.Table) -> Answer:
        """A table that is known."""
        return cls(duckdb.from_arrow(table), None)

    def text(self) -> str:
        """The answer as DuckDB draws it; of many rows the first and the last."""
        with reporting(self._statement):
            return str(self._relation).rstrip("\n")

    def frame(self) -> Any:
        """The answer as a DataFrame of pandas."""
        with reporting(self._statement):
            return self._relation.df()

    def rows(self) -> list[tuple[Any, ...]]:
        """The answer as rows of Python's values."""
        with reporting(self._statement):
            return list(self._relation.fetchall())


@contextmanager
def reporting(statement: Sql | None) -> Iterator[None]:
    """DuckDB's errors as one of ours, at the word of the statement that they name."""
    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except (duckdb.Error, OSError, pa.ArrowException) as error:
        raise mistake(str(error), statement) from error
    except RuntimeError as error:
        if "interrupted" in str(error):
            raise KeyboardInterrupt from error
        raise


class Engine(ABC):
    """A database. dialect: sqlglot's name of its SQL."""

    dialect: str

    @abstractmethod
    def batches(self, select: Sql) -> tuple[pa.Schema | None, Rows]:
        """The result of a SELECT in pieces, and its schema if known before. Raises SqlError."""

    @abstractmethod
    def answer(self, statement: Sql) -> Answer | None:
        """The answer of a statement, which is run; None if there is none. Raises SqlError."""

    @abstractmethod
    def has(self, table: str) -> bool:
        """True if there is a table of this name, with dots between its parts."""

    @abstractmethod
    def write(self, table: str, schema: pa.Schema, rows: Rows) -> None:
        """Make a table, or replace it; a failure leaves what was there. Raises SqlError."""

    def save(self, select: Sql, path: Path) -> Saved:
        """Write the result of a SELECT to a Parquet file, in the types that models get.

        Raises SqlError, also if there is no row; OSError if the file cannot be written.
        """
        schema, rows = self.batches(select)
        records = 0
        writer: pq.ParquetWriter | None = None
        with replacing(path) as temporary:
            try:
                for batch in rows:
                    if writer is None:
                        schema = values.plain_schema(schema or batch.schema, select.place)
                        writer = pq.ParquetWriter(temporary, schema)
                    for each in values.in_plain_types([batch], schema, select.place):
                        writer.write_batch(each, row_group_size=GROUP_ROWS)
                        records += each.num_rows
            finally:
                if writer is not None:
                    writer.close()
            if not records:
                raise SqlError("this SELECT gives no row", select.place)
        return Saved(path, schema, records)


class DuckEngine(Engine):
    """DuckDB in this process, in memory or in a file."""

    dialect = "duckdb"

    def __init__(self, path: str, frames: Callable[[], Mapping[str, Any]] = dict) -> None:
        try:
            self._connection = duckdb.connect(path or ":memory:")
        except duckdb.Error as error:
            raise UserError(f"--database: {error}") from error
        # It would take any variable of the code here for a table.
        self._connection.execute("SET python_enable_replacements=false")
        # It is on standard output; a notebook without widgets has none, and fails to say so.
        with suppress(duckdb.InvalidInputException):
            self._connection.execute("SET enable_progress_bar=false")
        self._frames = frames
        self._registered: list[str] = []

    def batches(self, select: Sql) -> tuple[pa.Schema | None, Rows]:
        """See Engine."""
        with reporting(select):
            relation = self._relation(select)
            fetch = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
            reader = fetch(PIECE)

        def read() -> Rows:
            with reporting(select):
                yield from reader

        return reader.schema, read()

    def save(self, select: Sql, path: Path) -> Saved:
        """See Engine. A Parquet file that is selected as it is, is read in its place."""
        if found := _IN_PLACE.fullmatch(select.text):
            file = Path(found[1]).absolute()
            with suppress(OSError, pa.ArrowException, SqlError):
                schema, records = pq.read_schema(file), pq.read_metadata(file).num_rows
                if records and values.plain_schema(schema, None) == schema.remove_metadata():
                    return Saved(file, schema.remove_metadata(), records)
        return super().save(select, path)

    def answer(self, statement: Sql) -> Answer | None:
        """See Engine."""
        with reporting(statement):
            relation = self._relation(statement)
        if relation is None or relation.columns in (["Count"], ["Success"]):
            return None
        return Answer(relation, statement)

    def has(self, table: str) -> bool:
        """See Engine."""
        with suppress(duckdb.CatalogException):
            self._connection.table(_quoted(table))
            return True
        return False

    def write(self, table: str, schema: pa.Schema, rows: Rows) -> None:
        """See Engine. Makes the schema of the table, too."""
        folder, dot, _ = table.rpartition(".")
        self._connection.register("shoal_rows", pa.RecordBatchReader.from_batches(schema, rows))
        try:
            if dot:
                self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(folder)}")
            self._connection.execute(
                f"CREATE OR REPLACE TABLE {_quoted(table)} AS SELECT * FROM shoal_rows"
            )
        except duckdb.Error as error:
            raise SqlError(f"table {table}: {error}") from error
        finally:
            self._connection.unregister("shoal_rows")

    def _relation(self, statement: Sql) -> Any:
        self._register(statement)
        return self._connection.sql(statement.text)

    def _register(self, statement: Sql) -> None:
        """Make tables of the frames that a statement names, where the database has no such."""
        for name in self._registered:
            self._connection.unregister(name)
        self._registered = []
        frames = self._frames()
        if not frames:
            return
        for name in tables(statement.text, self.dialect, statement.place):
            frame = frames.get(name)
            is_frame = hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__dataframe__")
            if is_frame and not isinstance(frame, type) and not self.has(name):
                self._connection.register(name, frame)
                self._registered.append(name)


def mistake(message: str, statement: Sql | None) -> SqlError:
    """A database's error as one of ours, at the word of the statement that it names."""
    message = " ".join(_LINE.sub("", message).split())
    if statement is None:
        return SqlError(message)
    place = statement.place
    if found := _NAMED.search(message):
        word = re.search(rf"(?<![\w.]){re.escape(found[1])}(?!\w)", statement.text)
        if word is not None:
            place = moved(place_at(statement.text, word.start()), place)
    return SqlError(message, place)


def _quoted(table: str) -> str:
    """A table's name with dots in it, for DuckDB."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
