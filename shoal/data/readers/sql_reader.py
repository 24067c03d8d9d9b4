"""Tables of SQL databases, through SQLAlchemy: ranges by a unique key, never by offset.

A flag's value is `URL#TABLE` or `URL#TABLE&key=COLUMN`. Records are in the order of the
key. An index of every BLOCK_ROWS-th key is made once per job, by the database; a range is
then read block by block between two keys, and each block must still have its rows.
SQLAlchemy and the database's driver are the user's to install.
"""

from __future__ import annotations

import datetime
import decimal
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa

from shoal.base.words import near
from shoal.config.url_variables import fill
from shoal.data.indexed_reader import IndexedReader
from shoal.data.reader import Source, check_not_empty, check_range
from shoal.errors import UnreadableError, UserError, without_credentials

BLOCK_ROWS = 4096
"""Rows between two keys of the index, and rows read at a time."""

DIALECTS = frozenset({"sqlite", "postgresql", "mysql", "mariadb", "oracle", "mssql"})
"""SQLAlchemy's own; those of other packages are known by the name of a table behind `#`."""

ARROW_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    decimal.Decimal: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us"),
    datetime.date: pa.date32(),
    datetime.timedelta: pa.duration("us"),
}
"""What SQLAlchemy says of a column -> what `feed` gets."""


@dataclass(frozen=True)
class _Index:
    """records: of the table. first, last: the keys of each block's first and last row."""

    records: int
    first: Sequence[Any]
    last: Sequence[Any]


def is_sql(pattern: str) -> bool:
    """True if a flag's value is the URL of a database."""
    scheme, separator, rest = pattern.partition("://")
    dialect = scheme.partition("+")[0].lower()
    if not separator or dialect in DIALECTS:
        return bool(separator)
    if "#" not in rest:
        return False
    try:
        from sqlalchemy.dialects import registry

        registry.load(dialect)
    except Exception:
        return False  # no SQLAlchemy, or no such dialect: a URL of files
    return True


class SqlReader(IndexedReader):
    """Reads a table, or a view with a unique column.

    pattern: URL#TABLE or URL#TABLE&key=COLUMN; TABLE may be SCHEMA.TABLE.
    options: see IndexedReader.

    Raises UserError if the table cannot be read or has no usable key.
    """

    def __init__(self, pattern: str, **options: Any) -> None:
        super().__init__(pattern, **options)
        self._index: _Index | None = None
        url, _, fragment = pattern.partition("#")
        self._name = without_credentials(pattern)
        table, _, more = fragment.partition("&")
        given = parse_qs(more, keep_blank_values=True)
        if not table or set(given) - {"key"}:
            raise UserError(
                f"{self._flag}: {self._name}: name the table behind the URL: URL#TABLE or "
                "URL#TABLE&key=COLUMN"
            )
        self._engine = self._connect(fill(url, self._flag, quoted=True).url)
        with self._reporting():
            self._table = self._reflect(table)
        self._key = self._key_column(given.get("key", [None])[-1])

    # ------------------------------------------------------------ the table

    def _connect(self, url: str) -> Any:
        try:
            import sqlalchemy
        except ImportError as error:
            raise UserError(
                f"{self._flag}: {self._name} needs SQLAlchemy; install it with: "
                "pip install 'shoal[sql]', and the database's driver"
            ) from error
        try:
            engine = sqlalchemy.create_engine(url)
        except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError) as error:
            raise UserError(
                f"{self._flag}: {self._name} is no URL of a database: {error}"
            ) from error
        except ImportError as error:
            raise UserError(f"{self._flag}: {self._name}: install its driver: {error}") from error
        file = engine.url.database if engine.dialect.name == "sqlite" else None
        # SQLite would make an empty one.
        if file and not file.startswith(("file:", ":memory:")) and not os.path.isfile(file):
            raise UserError(f"{self._flag}: there is no file {file}")
        return engine

    def _reflect(self, name: str) -> Any:
        import sqlalchemy

        schema, _, table = name.rpartition(".")
        try:
            return sqlalchemy.Table(
                table, sqlalchemy.MetaData(), schema=schema or None, autoload_with=self._engine
            )
        except sqlalchemy.exc.NoSuchTableError as error:
            known = sqlalchemy.inspect(self._engine).get_table_names(schema or None)
            hint = near(table, known, most=1)
            raise UserError(
                f"{self._flag}: {self._name}: there is no table {name}{hint}"
            ) from error

    def _key_column(self, given: str | None) -> Any:
        """A column whose values are all there and differ."""
        import sqlalchemy
        from sqlalchemy import func

        table = self._table
        unique = [list(table.primary_key.columns)]
        unique += [list(index.columns) for index in table.indexes if index.unique]
        unique += [
            list(constraint.columns)
            for constraint in table.constraints
            if isinstance(constraint, sqlalchemy.UniqueConstraint)
        ]
        single = [columns[0] for columns in unique if len(columns) == 1]
        if given is None:
            for column in single:
                if column.primary_key or not column.nullable:
                    return column
            raise UserError(
                f"{self._flag}: {self._name}: the table has no primary key or unique column by "
                "which ranges could be read; name a column whose values are all different: "
                "URL#TABLE&key=COLUMN"
            )
        if given not in table.columns:
            raise UserError(
                f"{self._flag}: {self._name}: there is no column {given!r}; the columns are "
                f"{', '.join(table.columns.keys())}"
            )
        column = table.columns[given]
        if not any(column is each and not each.nullable for each in single):
            query = sqlalchemy.select(
                func.count(), func.count(column), func.count(sqlalchemy.distinct(column))
            ).select_from(table)
            with self._reporting(), self._engine.connect() as connection:
                rows, present, distinct = connection.execute(query).one()
            if not rows == present == distinct:
                raise UserError(
                    f"{self._flag}: {self._name}: column {given!r} cannot be the key: of its "
                    f"{rows} values {rows - present} are missing and {present - distinct} are "
                    "repeated"
                )
        return column

    def sources(self) -> list[Source]:
        """The table."""
        found = [Source(self._name, self._blocks().records)]
        check_not_empty(found, self._name, self._flag)
        return found

    def _full_schema(self) -> pa.Schema:
        return pa.schema([(column.name, self._kind(column)) for column in self._wanted()])

    def _wanted(self) -> list[Any]:
        """The table's columns that are to be read; all where one is missing, for the error."""
        if self._columns is None or not set(self._columns) <= set(self._table.columns.keys()):
            return list(self._table.columns)
        return [self._table.columns[name] for name in self._columns]

    def _kind(self, column: Any) -> pa.DataType:
        try:
            kind = column.type.python_type
        except NotImplementedError:
            kind = None
        if kind not in ARROW_TYPES:
            raise UserError(
                f"{self._flag}: {self._name}: column {column.name!r} is of type {column.type}, "
                "which no tensor holds; read a view without it, with &key=COLUMN"
            )
        if kind is decimal.Decimal and column.type.scale == 0:
            return pa.int64()  # a float64 would merge large ones
        return ARROW_TYPES[kind]

    def _raw(self, column: Any) -> Any:
        """A column as the driver gives it, not converted by SQLAlchemy.

        What a key was read as is asked for again, and of a decimal no digit may be lost.
        """
        import sqlalchemy

        return sqlalchemy.type_coerce(column, sqlalchemy.types.NullType())

    # ------------------------------------------------------------ ranges

    def _blocks(self) -> _Index:
        """The number of rows, and the first and the last key of every BLOCK_ROWS rows."""
        if self._index is None:
            stamp = f"{self._key.name}/{BLOCK_ROWS}"
            with self._reporting():
                table = self._store.get("sql keys", self._name, stamp, self._build)
            records = int(table.schema.metadata[b"records"])
            self._index = _Index(records, table["first"].to_pylist(), table["last"].to_pylist())
        return self._index

    def _build(self) -> pa.Table:
        """One statement, so that count and keys are of one moment."""
        from sqlalchemy import func, or_, select

        key = self._raw(self._key)
        rows = select(
            key.label("key"),
            func.row_number().over(order_by=self._key).label("number"),
            func.count().over().label("records"),
        ).subquery()
        place = (rows.c.number - 1) % BLOCK_ROWS
        edges = (
            select(rows.c.key, rows.c.number, rows.c.records)
            .where(or_(place.in_((0, BLOCK_ROWS - 1)), rows.c.number == rows.c.records))
            .order_by(rows.c.number)
        )
        with self._engine.connect() as connection:
            found = connection.execute(edges).all()
        records = found[0][2] if found else 0
        if any(row[0] is None for row in found):
            raise self._bad_key("it has missing values")
        firsts = [row[0] for row in found if (row[1] - 1) % BLOCK_ROWS == 0]
        lasts = [row[0] for row in found if row[1] % BLOCK_ROWS == 0 or row[1] == records]
        try:
            table = pa.table({"first": firsts, "last": lasts})
        except (pa.ArrowException, OverflowError) as error:
            raise self._bad_key(str(error)) from error
        if table["first"].to_pylist() != firsts or table["last"].to_pylist() != lasts:
            raise self._bad_key("its values are of several types")
        return table.replace_schema_metadata({"records": str(records)})

    def _bad_key(self, why: str) -> UserError:
        return UserError(
            f"{self._flag}: {self._name}: column {self._key.name!r} cannot be the key: {why}: name "
            "another one with &key=COLUMN"
        )

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches of at most BLOCK_ROWS records."""
        index = self._blocks()
        check_range(Source(source, index.records), start, end)
        schema = self.schema()
        if start == end:
            return
        with self._reporting(), self._engine.connect() as connection:
            for block in range(start // BLOCK_ROWS, (end - 1) // BLOCK_ROWS + 1):
                first = block * BLOCK_ROWS
                count = min(BLOCK_ROWS, index.records - first)
                rows = self._rows(connection, index, block, count)
                edges = index.first[block], index.last[block]
                if len(rows) != count or (rows[0][-1], rows[-1][-1]) != edges:
                    raise UserError(
                        f"{self._name}: {len(rows)} rows where {count} were counted, from row "
                        f"{first + 1} on, or with other keys: the table was changed while the job "
                        "read it"
                    )
                low, high = max(start - first, 0), min(end - first, count)
                yield self._batch(rows[low:high], first + low, schema)

    def _rows(self, connection: Any, index: _Index, block: int, count: int) -> list[Any]:
        """The rows of a block: the columns, then the key."""
        from sqlalchemy import select

        key = self._raw(self._key)
        columns = [
            self._raw(each) if self._kind(each) == pa.int64() else each for each in self._wanted()
        ]
        query = select(*columns, key.label("shoal_key")).where(key >= index.first[block])
        if block + 1 < len(index.first):
            query = query.where(key < index.first[block + 1])
        else:
            query = query.limit(count)  # rows that were added behind are not of this job
        query = query.order_by(self._key)
        try:
            return list(connection.execute(query).all())
        except (ValueError, TypeError):
            self._name_bad_row(connection, query, block)
            raise

    def _name_bad_row(self, connection: Any, query: Any, block: int) -> None:
        """Raises UserError for the first row whose value its type cannot parse."""
        parsed = 0
        try:
            for _ in connection.execute(query):
                parsed += 1
        except (ValueError, TypeError) as error:
            row = block * BLOCK_ROWS + parsed + 1
            raise UserError(f"{self._name}: row {row}: {error}") from error

    def _batch(self, rows: list[Any], first: int, schema: pa.Schema) -> pa.RecordBatch:
        columns = list(zip(*rows, strict=True))
        arrays = []
        for field, values in zip(schema, columns[: len(schema)], strict=True):
            try:
                arrays.append(_array(values, field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                at = _first_bad(values, field.type)
                key = columns[-1][at]
                raise UserError(
                    f"{self._name}: row {first + at + 1} ({self._key.name} = {key!r}): column "
                    f"{field.name!r}: {values[at]!r} is no {field.type}"
                ) from error
        return pa.record_batch(arrays, schema=schema)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turns the database's errors into a UserError, without the statement."""
        import sqlalchemy

        try:
            yield
        except sqlalchemy.exc.DBAPIError as error:
            message = f"{self._flag}: {self._name}: {error.orig}"
            lost = sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError
            if isinstance(error, lost) or error.connection_invalidated:
                raise UnreadableError(message, may_be_mistake=True) from error
            raise UserError(message) from error
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise UserError(f"{self._flag}: {self._name}: {error}") from error


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of a column. Raises ArrowException, or ValueError for one that changes on its way."""
    if pa.types.is_floating(kind):
        # Decimals, and integers that no float64 equals: Arrow takes no number for another.
        return pa.array([None if value is None else float(value) for value in values], kind)
    array = pa.array(values, kind)
    # Arrow cuts 2.5 to 2, and the time off a date.
    if not pa.types.is_timestamp(kind) and array.to_pylist() != list(values):
        raise ValueError("a value is of another type")
    return array


def _first_bad(values: Sequence[Any], kind: pa.DataType) -> int:
    """The position of the first value that is not of its column's type."""
    for position, value in enumerate(values):
        try:
            _array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return position
    return 0
