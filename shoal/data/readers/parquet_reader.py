"""Reading ranges of Parquet files, by row groups.

Only the columns that are used are read. The row group that was read last stays open, at the record
behind the last one that was taken: a range that begins there goes on, and one behind it skips what
is between. So a row group is read once by a worker that does its tasks in their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.data.file_reader import FileReader
from shoal.data.places.recent import Recent
from shoal.data.places.remote import RemoteError
from shoal.data.places.storage import ANEW, GONE
from shoal.data.plain_types import of_schema, plain_schema
from shoal.data.reader import Source, check_range
from shoal.data.readers.row_groups import Reading, RowGroups
from shoal.data.schemas import check_same
from shoal.errors import NOT_THERE, UnreadableError, UserError

FOOTER_BYTES = 4 << 20
"""Of footers, as they are in the files, that are kept; decoded they take eight times as much."""

WHOLE_BYTES = 32 << 20
"""Of a row group up to which its columns are read at once, and not piece by piece."""

PIECE_BYTES = 1 << 20
"""Of a column, that are read at a time of larger row groups."""

_FIELD_ID = b"PARQUET:field_id"


class ParquetReader(FileReader):
    """Reads the Parquet files that a pattern stands for; see FileReader. Needs no index.

    types: the columns, where somebody else knows them. Files may lack some of these, which are
        missing values then, and have narrower types. ids: of these columns by name, as the files
        have them too, whatever they call a column; none where names tell columns.
    """

    footers = True

    def __init__(
        self,
        pattern: str,
        *,
        types: pa.Schema | None = None,
        ids: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pattern, **options)
        self._table_types = types
        self._ids = dict(ids or {})
        self._files: Recent[str, RowGroups] = Recent(
            FOOTER_BYTES, lambda file: file.footer.serialized_size
        )
        self._opened: tuple[str, pq.ParquetFile] | None = None
        self._inode = 0  # of the file that is open
        self._reading: Reading | None = None
        self._types: pa.Schema | None = None

    def _count(self, path: str) -> int:
        return int(self._file(path).footer.num_rows)

    def describe(self, name: str) -> Source:
        """See DataReader; with the row groups."""
        self._files.forget(name)  # it may be told of a file that has changed
        return self._file(name).source(name)

    def _full_schema(self) -> pa.Schema:
        # The first file's; each other one is compared with it as its footer is read.
        if self._table_types is not None:
            return self._table_types
        if self._types is None:
            self._file(self._paths[0])
            assert self._types is not None
        return self._types

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches of at most `reader.CHUNK_ROWS` records."""
        if self._columns is not None:
            self.schema()  # so that a missing column is an error, not a missing key
        file = self._file(source)
        if self._opened is None or self._opened[0] != source:
            self._check_unchanged(source, file)
            file = self._file(source)
        check_range(Source(source, file.footer.num_rows), start, end)
        if start == end:
            return
        position = start

        def place() -> str:
            # Records before the range may be decoded with it.
            first, last = (position, end) if self._reading is None else self._reading.rows
            self._reading = None  # nothing of it can be relied on
            return f"rows {first + 1} to {last}: "

        while position < end:
            try:
                with _reporting(source, place):
                    reading = self._at(source, file, position, end)
                    piece = reading.take(position, end)
            except UserError:
                self._check_unchanged(source, file)
                raise
            if reading.fresh and self._written_in_place(source, file):
                self.reopen()  # what was read may be of both
                self._files.forget(source)
                file = self._file(source)
                continue
            position += piece.num_rows
            if self._table_types is not None:
                yield fitted(piece, self.schema(), file, source)
            else:
                with _reporting(source):
                    piece = of_schema(piece, self.schema())
                yield piece

    def _at(self, path: str, file: RowGroups, record: int, end: int) -> Reading:
        """The reading in progress, at a record or before it; a new one if that fits no more."""
        columns = self._columns
        if self._table_types is not None:
            columns = [file.names[name] for name in file.having(self.schema().names)]
        key = path, None if columns is None else tuple(columns)
        group = file.group_of(record)
        reading = self._reading
        # Of an earlier row group, what is left of it would be decoded in vain.
        if (
            reading is None
            or reading.key != key
            or not file.begin(group) <= reading.position <= record < reading.end
        ):
            groups = range(group, file.group_of(end - 1) + 1)
            opened = self._open(path, file, groups)
            if not self._storage.local:
                self._storage.expect(path, file.chunks(groups, columns))
            reading = self._reading = Reading(key, file, groups, opened, columns)
        return reading

    def reopen(self) -> None:
        """See DataReader."""
        super().reopen()
        self._opened = self._reading = None

    def place(self, source: str, record: int) -> str:
        """See DataReader; with the row group."""
        return (
            f"record {record} (row {record + 1}, row group {self._file(source).group_of(record)})"
        )

    def _open(self, path: str, file: RowGroups, groups: range) -> pq.ParquetFile:
        """A file. The last one stays open: opening costs as much as decoding a small row group."""
        if self._opened is None or self._opened[0] != path:
            local = self._storage.local
            largest = max(file.bytes[group] for group in groups)
            opened = pq.ParquetFile(
                path if local else self._storage.open(path),
                metadata=file.footer,
                # Never mapped: an error of the disk would end the process, not raise.
                memory_map=False,
                buffer_size=PIECE_BYTES if largest > WHOLE_BYTES else 0,
            )
            self._opened = path, opened
            self._inode = os.stat(path).st_ino if local else 0
        return self._opened[1]

    def _check_unchanged(self, path: str, file: RowGroups) -> None:
        """Raises UserError if the file is not any more as its footer said."""
        with _reporting(path):
            same = self._storage.stamp(path) == file.stamp
        if not same:
            self._files.forget(path)
            self._file(path)

    def _written_in_place(self, path: str, file: RowGroups) -> bool:
        """True if the open file was changed in place; a file that replaced it does not count."""
        try:
            return (
                self._storage.local
                and self._storage.stamp(path) != file.stamp
                and os.stat(path).st_ino == self._inode
            )
        except OSError:
            return False  # removed: what is open stays

    def _file(self, path: str) -> RowGroups:
        return self._files.get(path, lambda: self._look(path))

    def _look(self, path: str) -> RowGroups:
        with _reporting(path):
            stamp = self._storage.stamp(path)
            where = path if self._storage.local else self._storage.open(path)
            # Not `footer.schema`: it and the footer hold each other, which keeps both until Python
            # looks for such circles. Of thousands of files that is much memory.
            with pq.ParquetFile(where, memory_map=False) as opened:
                footer, found = opened.metadata, plain_schema(opened.schema_arrow)
            file = RowGroups.of(footer, self._names_in(found), stamp)
        if self._table_types is not None:
            pass
        elif self._types is None:
            if path != self._paths[0]:
                self._full_schema()
            else:
                self._types = found
        if self._types is not None:
            check_same(self._types, found, self._paths[0], path, self._flag, self._columns)
        self._store.check(file.source(path), stamp)
        return file

    def _names_in(self, found: pa.Schema) -> dict[str, str]:
        """The names of a file's columns, by what these are called here."""
        ids = {
            int(field.metadata[_FIELD_ID]): field.name
            for field in found
            if field.metadata and _FIELD_ID in field.metadata
        }
        if not self._ids or not ids:
            return {name: name for name in found.names}
        return {name: ids[number] for name, number in self._ids.items() if number in ids}


@contextmanager
def _reporting(path: str, place: Callable[[], str] = str) -> Iterator[None]:
    """Turns Arrow's and the system's errors into a UserError naming the file.

    place: gives the rows that were being read, for the error.
    """
    try:
        yield
    except FileNotFoundError as error:
        place()
        raise UnreadableError(f"{path}: {GONE}", may_be_mistake=True) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, IndexError) as error:
        where = place()
        # What Arrow cannot decode is an OSError too, but none of the system's.
        if isinstance(error, RemoteError) or getattr(error, "errno", None) is not None:
            mistake = isinstance(error, NOT_THERE)
            message = f"{path}: cannot be read: {error}"
            raise UnreadableError(message, may_be_mistake=mistake) from error
        raise UserError(
            f"{path}: {where}cannot be read as Parquet ({error}); "
            f"the file is damaged or not a Parquet file: {ANEW}"
        ) from error


def fitted(batch: pa.RecordBatch, schema: pa.Schema, file: RowGroups, path: str) -> pa.RecordBatch:
    """The columns of a schema: those that are not there are missing values.

    Raises UserError naming a column that cannot be made of the schema's type.
    """
    columns = []
    for field in schema:
        if field.name not in file.names:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        column = batch.column(file.names[field.name])
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise UserError(
                f"{path}: column {field.name!r} is {column.type} in the file, and {field.type} in "
                f"the table: {error}"
            ) from error
    return pa.record_batch(columns, schema=schema)
