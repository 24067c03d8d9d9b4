"""Databases behind a URL of SQLAlchemy: SELECTs are streamed from there, tables made there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import pyarrow as pa

from shoal.config.url_variables import fill
from shoal.errors import UserError, without_credentials
from shoal.sql.databases import values
from shoal.sql.databases.engine import PIECE, Answer, DuckEngine, Engine, Rows, mistake
from shoal.sql.errors import SqlError
from shoal.sql.tokens import Sql, is_query, known_dialect

SHOWN = 10_000
"""Rows of an answer that are fetched to be shown."""

_DIALECTS = {"postgresql": "postgres", "mariadb": "mysql", "mssql": "tsql"}
"""SQLAlchemy's names that are others of sqlglot."""


def opened(database: str, frames: Callable[[], Mapping[str, Any]] = dict) -> Engine:
    """The database of --database: "" for DuckDB in memory, FILE.duckdb or a URL.

    frames: gives the DataFrames that are tables for DuckDB, by name. Raises UserError.
    """
    if "://" in database:
        return DatabaseEngine(database)
    if database and not database.endswith((".duckdb", ".ddb")) and not os.path.isfile(database):
        raise UserError(
            f"--database: {database} is neither a URL nor a file that ends in .duckdb; there is no "
            "such file"
        )
    return DuckEngine(database, frames)


class DatabaseEngine(Engine):
    """A database behind a URL of SQLAlchemy; the SELECT runs there, in its own SQL."""

    def __init__(self, url: str) -> None:
        named = without_credentials(url)
        try:
            import sqlalchemy
        except ImportError as error:
            raise UserError(
                f"--database: {named} needs SQLAlchemy; install it with: pip install "
                "'shoal[sql-front,sql]', and the database's driver"
            ) from error
        self._sqlalchemy = sqlalchemy
        try:
            self._engine = sqlalchemy.create_engine(fill(url, "--database", quoted=True).url)
        except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError) as error:
            raise UserError(f"--database: {named} is no URL of a database: {error}") from error
        except ImportError as error:
            raise UserError(f"--database: {named}: install its driver: {error}") from error
        self._name = self._engine.dialect.name
        file = self._engine.url.database if self._name == "sqlite" else None
        if file and not file.startswith(("file:", ":memory:")) and not os.path.isfile(file):
            raise UserError(f"--database: there is no file {file}")  # SQLite would make one
        self.dialect = known_dialect(_DIALECTS.get(self._name, self._name))

    def batches(self, select: Sql) -> tuple[pa.Schema | None, Rows]:
        """See Engine."""
        return None, self._batches(select)

    def _batches(self, select: Sql) -> Rows:
        with self._reporting(select), self._engine.connect() as connection:
            declared = self._declared(connection, select)
            streaming = connection.execution_options(
                stream_results=True, max_row_buffer=PIECE, no_parameters=True
            )
            with closing(streaming.exec_driver_sql(select.text)) as result:
                yield from self._pieces(result, declared)

    def _pieces(self, result: Any, declared: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        names = list(result.keys())
        values.refuse_twice(names, None)
        if self._name == "postgresql":
            kinds = [values.of_postgres(column) for column in result.cursor.description]
        else:
            kinds = [values.of_declared(declared.get(name, "")) for name in names]
        while rows := result.fetchmany(PIECE):
            batch = values.batch_of(rows, names, kinds)
            # What the first values say holds for the rest.
            kinds = [kind or array.type for kind, array in zip(kinds, batch.columns, strict=True)]
            yield batch

    def _declared(self, connection: Any, select: Sql) -> dict[str, str]:
        """The declared types of a SELECT's columns, by name: SQLite has dates as text."""
        if self._name != "sqlite" or not is_query(select.text, "sqlite"):
            return {}
        run = connection.exec_driver_sql
        run(f"CREATE TEMP VIEW shoal_select AS {select.text}")
        try:
            return {row[1]: row[2] for row in run("PRAGMA temp.table_info(shoal_select)")}
        finally:
            run("DROP VIEW temp.shoal_select")

    def answer(self, statement: Sql) -> Answer | None:
        """See Engine. Of many rows the first."""
        with self._reporting(statement), self._engine.begin() as connection:
            running = connection.execution_options(no_parameters=True)
            result = running.exec_driver_sql(statement.text)
            if not result.returns_rows:
                return None
            names = list(result.keys())
            rows = result.fetchmany(SHOWN)
            batch = values.batch_of(rows, names, [None] * len(names))
            return Answer.of(pa.Table.from_batches([batch]))

    def has(self, table: str) -> bool:
        """See Engine."""
        schema, _, name = table.rpartition(".")
        with self._reporting(None):
            return bool(self._sqlalchemy.inspect(self._engine).has_table(name, schema or None))

    def write(self, table: str, schema: pa.Schema, rows: Rows) -> None:
        """See Engine. The table has another name until it is whole."""
        folder, _, name = table.rpartition(".")
        made = self._table(f"shoal_new_{name}", folder or None, schema)
        old = self._sqlalchemy.Table(name, self._sqlalchemy.MetaData(), schema=folder or None)
        try:
            with self._reporting(None):
                made.drop(self._engine, checkfirst=True)
                made.create(self._engine)
                for batch in rows:
                    with self._engine.begin() as connection:
                        connection.execute(made.insert(), self._dicts(batch))
                quote = self._engine.dialect.identifier_preparer
                with self._engine.begin() as connection:
                    old.drop(connection, checkfirst=True)
                    connection.exec_driver_sql(
                        f"ALTER TABLE {quote.format_table(made)} RENAME TO {quote.quote(name)}"
                    )
        except BaseException:
            with suppress(self._sqlalchemy.exc.SQLAlchemyError):
                made.drop(self._engine, checkfirst=True)
            raise

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    def _table(self, name: str, folder: str | None, schema: pa.Schema) -> Any:
        columns = [self._sqlalchemy.Column(each.name, self._type(each.type)) for each in schema]
        return self._sqlalchemy.Table(name, self._sqlalchemy.MetaData(), *columns, schema=folder)

    def _type(self, kind: pa.DataType) -> Any:
        sql, types = self._sqlalchemy, pa.types
        if types.is_list(kind) and self._name == "postgresql":
            return sql.ARRAY(self._type(kind.value_type))
        known = (
            (types.is_integer, sql.BigInteger),
            (types.is_floating, sql.Double),
            (types.is_boolean, sql.Boolean),
            (types.is_date, sql.Date),
            (types.is_binary, sql.LargeBinary),
        )
        if types.is_timestamp(kind):
            return sql.DateTime(timezone=kind.tz is not None)
        return next((made() for holds, made in known if holds(kind)), sql.Text())

    def _dicts(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Rows for SQLAlchemy; lists are JSON where the database has no lists."""
        rows: list[dict[str, Any]] = batch.to_pylist()
        if self._name != "postgresql":
            for name in (each.name for each in batch.schema if pa.types.is_list(each.type)):
                for row in rows:
                    row[name] = row[name] if row[name] is None else json.dumps(row[name])
        return rows

    @contextmanager
    def _reporting(self, statement: Sql | None) -> Iterator[None]:
        """The database's errors as one of ours, at the place that it gives, if any."""
        try:
            yield
        except self._sqlalchemy.exc.DBAPIError as error:
            lost = "the connection is lost: " if error.connection_invalidated else ""
            raise mistake(f"{lost}{error.orig}", statement) from error
        except self._sqlalchemy.exc.SQLAlchemyError as error:
            place = statement.place if statement is not None else None
            raise SqlError(f"the database: {error}", place) from error
        except SqlError as error:
            if error.place is None and statement is not None:
                raise SqlError(error.message, statement.place) from error
            raise
