"""Reading ranges of Parquet files, by row groups.

Only the columns that are used are read. The row group that was read last stays open, at the record
behind the last one that was taken: a range that begins there goes on, and one behind it skips what
is between. So a row group is read once by a worker that does its tasks in their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.data.file_reader import FileReader
from shoal.data.plain_types import of_schema, plain_schema, same_meaning
from shoal.data.reader import CHUNK_ROWS, Source, check_range, units_of
from shoal.data.recent import Recent
from shoal.data.remote import RemoteError
from shoal.data.storage import ANEW, GONE
from shoal.errors import NOT_THERE, UnreadableError, UserError

FOOTER_BYTES = 4 << 20
"""Of footers, as they are in the files, that are kept; decoded they take eight times as much."""

WHOLE_BYTES = 32 << 20
"""Of a row group up to which its columns are read at once, and not piece by piece."""

PIECE_BYTES = 1 << 20
"""Of a column, that are read at a time of larger row groups."""


_FIELD_ID = b"PARQUET:field_id"


@dataclass
class _File:
    """A file and its row groups.

    names: of the file's columns, by what these are called here. ends: the position behind each
    row group's last record. stamp: of the file then.
    """

    footer: pq.FileMetaData
    names: dict[str, str]
    ends: npt.NDArray[np.int64]
    stamp: str

    def having(self, names: Sequence[str]) -> list[str]:
        """Those of the columns that the file has; one that tells the records, if it has none."""
        return [name for name in names if name in self.names] or [*self.names][:1]

    def source(self, path: str) -> Source:
        lengths = np.diff(self.ends, prepend=0).tolist()
        return Source(path, int(self.footer.num_rows), units_of(lengths))

    def group_of(self, record: int) -> int:
        return int(np.searchsorted(self.ends, record, "right"))

    def chunks(
        self, groups: Iterable[int], columns: Sequence[str] | None
    ) -> Iterator[tuple[int, int]]:
        """The bytes of the columns of some row groups."""
        wanted = None if columns is None else set(columns)
        places: list[int] | None = None
        for group in groups:
            row_group = self.footer.row_group(group)
            if places is None:
                places = [
                    place
                    for place in range(row_group.num_columns)
                    if wanted is None or _is_of(row_group.column(place).path_in_schema, wanted)
                ]
            for place in places:
                chunk = row_group.column(place)
                begin = chunk.data_page_offset
                if chunk.has_dictionary_page:
                    begin = min(begin, chunk.dictionary_page_offset)
                yield begin, begin + chunk.total_compressed_size


def _is_of(path: str, columns: Collection[str]) -> bool:
    """Whether the values of a path in the schema are of one of these columns."""
    parts = path.split(".")
    return any(".".join(parts[:end]) in columns for end in range(1, len(parts) + 1))


class _Reading:
    """The records of some row groups of a file, from the first on.

    position: of the next record.
    """

    def __init__(
        self, key: tuple[Any, ...], position: int, batches: Iterator[pa.RecordBatch]
    ) -> None:
        self.key = key
        self.position = position
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def skip(self, records: int) -> None:
        """Go on by so many records."""
        while records and (piece := self.take(records)) is not None:
            records -= piece.num_rows

    def take(self, most: int) -> pa.RecordBatch | None:
        """The next records, so many at most; None at the end."""
        rest = self._rest
        while rest is None or not rest.num_rows:
            rest = next(self._batches, None)
            if rest is None:
                return None
        piece = rest.slice(0, most)
        self._rest = rest.slice(piece.num_rows)
        self.position += piece.num_rows
        return piece


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
        self._files: Recent[str, _File] = Recent(
            FOOTER_BYTES, lambda file: file.footer.serialized_size
        )
        self._opened: tuple[str, pq.ParquetFile] | None = None
        self._inode = 0  # of the file that is open
        self._reading: _Reading | None = None
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
        """Yield RecordBatches of at most CHUNK_ROWS records."""
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
            first = position if self._reading is None else self._reading.position
            last = int(file.ends[file.group_of(end - 1)])
            self._reading = None  # nothing of it can be relied on
            return f"rows {first + 1} to {min(first + CHUNK_ROWS, last)}: "

        while position < end:
            try:
                with _reporting(source, place):
                    reading = self._at(source, file, position, end)
                    reading.skip(position - reading.position)
                    piece = reading.take(end - position)
            except UserError:
                self._check_unchanged(source, file)
                raise
            if self._written_in_place(source, file):
                self.reopen()  # what was read may be of both
                self._files.forget(source)
                file = self._file(source)
                continue
            if piece is None:  # the row groups that are open have ended
                self._reading = None
                continue
            position += piece.num_rows
            if self._table_types is not None:
                yield fitted(piece, self.schema(), file, source)
            else:
                with _reporting(source):
                    piece = of_schema(piece, self.schema())
                yield piece

    def _at(self, path: str, file: _File, record: int, end: int) -> _Reading:
        """What is being read, at a record or before it."""
        columns = self._columns
        if self._table_types is not None:
            columns = [file.names[name] for name in file.having(self.schema().names)]
        key = path, None if columns is None else tuple(columns)
        group = file.group_of(record)
        begin = int(file.ends[group - 1]) if group else 0
        reading = self._reading
        # Of an earlier row group, what is left of it would be decoded in vain.
        if reading is None or reading.key != key or not begin <= reading.position <= record:
            groups = range(group, file.group_of(end - 1) + 1)
            opened = self._open(path, file, groups)
            if not self._storage.local:
                self._storage.expect(path, file.chunks(groups, columns))
            reading = self._reading = _Reading(key, begin, _batches(opened, groups, columns, file))
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

    def _open(self, path: str, file: _File, groups: range) -> pq.ParquetFile:
        """A file. The last one stays open: opening costs as much as decoding a small row group."""
        if self._opened is None or self._opened[0] != path:
            local = self._storage.local
            large = max(map(file.footer.row_group, groups), key=lambda each: each.total_byte_size)
            opened = pq.ParquetFile(
                path if local else self._storage.open(path),
                metadata=file.footer,
                # Never mapped: an error of the disk would end the process, not raise.
                memory_map=False,
                buffer_size=PIECE_BYTES if large.total_byte_size > WHOLE_BYTES else 0,
            )
            self._opened = path, opened
            self._inode = os.stat(path).st_ino if local else 0
        return self._opened[1]

    def _check_unchanged(self, path: str, file: _File) -> None:
        """Raises UserError if the file is not any more as its footer said."""
        with _reporting(path):
            same = self._storage.stamp(path) == file.stamp
        if not same:
            self._files.forget(path)
            self._file(path)

    def _written_in_place(self, path: str, file: _File) -> bool:
        """Whether the file that is open has other bytes now; one that took its place has not."""
        try:
            return (
                self._storage.local
                and os.stat(path).st_ino == self._inode
                and self._storage.stamp(path) != file.stamp
            )
        except OSError:
            return False  # removed: what is open stays

    def _file(self, path: str) -> _File:
        return self._files.get(path, lambda: self._look(path))

    def _look(self, path: str) -> _File:
        with _reporting(path):
            stamp = self._storage.stamp(path)
            where = path if self._storage.local else self._storage.open(path)
            # Not `footer.schema`: it and the footer hold each other, which keeps both until Python
            # looks for such circles. Of thousands of files that is much memory.
            with pq.ParquetFile(where, memory_map=False) as opened:
                footer, found = opened.metadata, plain_schema(opened.schema_arrow)
            rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
            if min(rows, default=0) < 0 or sum(rows) != footer.num_rows:
                raise pa.ArrowInvalid(
                    f"the footer says {footer.num_rows} rows, and of its row groups {sum(rows)}"
                )
        if self._table_types is not None:
            pass
        elif self._types is None:
            if path != self._paths[0]:
                self._full_schema()
            else:
                self._types = found
        if self._types is not None:
            check_same(self._types, found, self._paths[0], path, self._flag, self._columns)
        file = _File(footer, self._names_in(found), np.cumsum(rows, dtype=np.int64), stamp)
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


def _batches(
    opened: pq.ParquetFile, groups: range, columns: Sequence[str] | None, file: _File
) -> Iterator[pa.RecordBatch]:
    """The records of row groups. Raises ArrowInvalid where these have not as many as they say.

    The pages tell how many there are, and the footer where the next group's records begin.
    """
    while groups:
        first = int(file.ends[groups[0] - 1]) if groups[0] else 0
        # Small ones together, which is faster.
        number = max(int(np.searchsorted(file.ends, first + CHUNK_ROWS, "right")) - groups[0], 1)
        together, groups = groups[:number], groups[number:]
        batches = opened.iter_batches(
            batch_size=CHUNK_ROWS, row_groups=together, columns=columns, use_threads=False
        )
        rows, said = 0, int(file.ends[together[-1]]) - first
        held: list[pa.RecordBatch] = []
        for batch in batches:
            rows += batch.num_rows
            if len(together) == 1:
                yield batch
            else:
                held.append(batch)  # none is taken before all are counted
        if rows != said:
            which = f"row groups {together[0]} to {together[-1]} have"
            if len(together) == 1:
                which = f"row group {together[0]} has"
            raise pa.ArrowInvalid(f"{which} {rows} rows, and the footer says {said}")
        yield from held


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


def fitted(batch: pa.RecordBatch, schema: pa.Schema, file: _File, path: str) -> pa.RecordBatch:
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


def check_same(
    first: pa.Schema,
    other: pa.Schema,
    first_path: str,
    other_path: str,
    flag: str,
    only: Collection[str] | None = None,
) -> None:
    """Raises UserError naming both files and the column in which they differ.

    The order of the columns may differ: they are read by name. So may types of one meaning.
    only: these columns; all of them where None.
    """
    if other.equals(first):
        return
    for name in dict.fromkeys((*first.names, *other.names)):
        kinds = [
            schema.field(name).type if name in schema.names else None for schema in (first, other)
        ]
        same = None not in kinds and same_meaning(kinds[0]) == same_meaning(kinds[1])
        if not same and (only is None or name in only):
            told = ["missing" if kind is None else str(kind) for kind in kinds]
            raise UserError(
                f"{flag}: the files differ in column {name!r}: {told[0]} in {first_path}, "
                f"{told[1]} in {other_path}"
            )
