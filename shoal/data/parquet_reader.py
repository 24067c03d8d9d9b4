"""Reading ranges of Parquet files, by row groups.

A range decodes only the row groups it touches. A task in the middle of a large row
group pays for decoding what stands before it, so files whose row groups are about
as long as a task (minibatch size times minibatches per task) read fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.data.file_reader import FileReader
from shoal.data.reader import CHUNK_ROWS, Source, check_range
from shoal.data.remote import RemoteError
from shoal.errors import NOT_THERE, UnreadableError, UserError


class ParquetReader(FileReader):
    """Reads the Parquet files that a pattern stands for; see FileReader. Needs no index."""

    def __init__(self, pattern: str, **options: Any) -> None:
        super().__init__(pattern, **options)
        self._footers: dict[str, pq.FileMetaData] = {}
        self._opened: tuple[str, pq.ParquetFile, npt.NDArray[np.int64]] | None = None

    def _count(self, path: str) -> int:
        return int(self._footer(path).num_rows)

    def _full_schema(self) -> pa.Schema:
        first = self._arrow_schema(self._paths[0])
        for path in self._paths[1:]:
            _check_same(first, self._arrow_schema(path), self._paths[0], path, self._flag)
        return first

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches of at most CHUNK_ROWS records."""
        if self._columns is not None:
            self.schema()  # so that a missing column is an error, not a missing key
        check_range(Source(source, self._footer(source).num_rows), start, end)
        left = end - start
        if left == 0:
            return
        with _reporting(source):
            file, ends = self._open(source)
        first, last = np.searchsorted(ends, [start, end - 1], "right")
        position = int(ends[first - 1]) if first else 0
        skip = start - position

        def place() -> str:
            return f"rows {position + 1} to {min(position + CHUNK_ROWS, int(ends[last]))}: "

        with _reporting(source, place):
            batches = file.iter_batches(
                batch_size=CHUNK_ROWS,
                row_groups=range(first, last + 1),
                columns=self._columns,
                use_threads=False,
            )
            for batch in batches:
                position += batch.num_rows
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                piece = batch.slice(skip, min(left, batch.num_rows - skip))
                skip = 0
                left -= piece.num_rows
                yield piece
                if left == 0:
                    return

    def reopen(self) -> None:
        """See DataReader."""
        super().reopen()
        self._opened = None

    def place(self, source: str, record: int) -> str:
        """See DataReader; with the row group."""
        _, ends = self._open(source)
        group = int(np.searchsorted(ends, record, "right"))
        return f"record {record} (row {record + 1}, row group {group})"

    def _open(self, path: str) -> tuple[pq.ParquetFile, npt.NDArray[np.int64]]:
        """A file, and the position behind each row group's last record.

        The last one stays open: opening costs as much as decoding a small row group.
        """
        if self._opened is None or self._opened[0] != path:
            footer = self._footer(path)
            local = self._storage.local
            file = pq.ParquetFile(
                path if local else self._storage.open(path),
                metadata=footer,
                # Never mapped: an error of the disk would end the process, not raise.
                memory_map=False,
                pre_buffer=not local,
            )
            rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
            self._opened = (path, file, np.cumsum(rows, dtype=np.int64))
        return self._opened[1:]

    def _footer(self, path: str) -> pq.FileMetaData:
        footer = self._footers.get(path)
        if footer is None:
            with _reporting(path):
                where = path if self._storage.local else self._storage.open(path)
                footer = self._footers[path] = pq.read_metadata(where)
        return footer

    def _arrow_schema(self, path: str) -> pa.Schema:
        with _reporting(path):
            return self._footer(path).schema.to_arrow_schema().remove_metadata()


@contextmanager
def _reporting(path: str, place: Callable[[], str] = str) -> Iterator[None]:
    """Turns Arrow's and the system's errors into a UserError naming the file.

    place: gives the rows that were being read, for the error.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableError(f"{path}: the file is gone", may_be_mistake=True) from error
    except (pa.ArrowException, OSError) as error:
        # What Arrow cannot decode is an OSError too, but none of the system's.
        if isinstance(error, RemoteError) or getattr(error, "errno", None) is not None:
            mistake = isinstance(error, NOT_THERE)
            message = f"{path}: cannot be read: {error}"
            raise UnreadableError(message, may_be_mistake=mistake) from error
        raise UserError(
            f"{path}: {place()}cannot be read as Parquet ({error}); "
            f"the file is damaged or not a Parquet file"
        ) from error


def _check_same(
    first: pa.Schema, other: pa.Schema, first_path: str, other_path: str, flag: str
) -> None:
    """Raises UserError naming both files and the column in which they differ.

    The order of the columns may differ: they are read by name.
    """
    for name in dict.fromkeys((*first.names, *other.names)):
        kinds = [
            str(schema.field(name).type) if name in schema.names else "missing"
            for schema in (first, other)
        ]
        if kinds[0] != kinds[1]:
            raise UserError(
                f"{flag}: the files differ in column {name!r}: {kinds[0]} in {first_path}, "
                f"{kinds[1]} in {other_path}"
            )
