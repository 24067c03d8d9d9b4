"""Reading ranges of Parquet files, by row groups.

A range decodes only the row groups it touches. A task in the middle of a large row
group pays for decoding what stands before it, so files whose row groups are about
as long as a task (minibatch size times minibatches per task) read fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.data.files import find_files
from shoal.data.reader import (
    CHUNK_ROWS,
    DataReader,
    Source,
    check_not_empty,
    check_range,
    selected,
)
from shoal.errors import UserError


class ParquetReader(DataReader):
    """Reads the Parquet files that a pattern stands for.

    pattern: file, folder or glob. flag: named in errors.
    columns: read only these; all where None.

    Raises UserError if no file is found.
    """

    def __init__(
        self,
        pattern: str,
        *,
        flag: str = "custom_data_reader",
        columns: Sequence[str] | None = None,
    ) -> None:
        self._pattern = pattern
        self._flag = flag
        self._columns = None if columns is None else list(columns)
        self._paths = find_files(pattern, flag)
        self._schema: pa.Schema | None = None
        self._footers: dict[str, pq.FileMetaData] = {}

    def sources(self) -> list[Source]:
        """Counts from the files' footers."""
        found = [Source(path, self._footer(path).num_rows) for path in self._paths]
        check_not_empty(found, self._pattern, self._flag)
        return found

    def schema(self) -> pa.Schema:
        """The columns to be read, in the files' order."""
        if self._schema is None:
            first = self._arrow_schema(self._paths[0])
            for path in self._paths[1:]:
                _check_same(first, self._arrow_schema(path), self._paths[0], path, self._flag)
            self._schema = selected(first, self._columns, self._flag)
        return self._schema

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches of at most CHUNK_ROWS records."""
        if self._columns is not None:
            self.schema()  # so that a missing column is an error, not a missing key
        footer = self._footer(source)
        check_range(Source(source, footer.num_rows), start, end)
        groups: list[int] = []
        first = 0
        skip = 0
        for index in range(footer.num_row_groups):
            rows = footer.row_group(index).num_rows
            if first < end and first + rows > start:
                if not groups:
                    skip = start - first
                groups.append(index)
            first += rows
        left = end - start
        if left == 0:
            return
        with _reporting(source), pq.ParquetFile(source, metadata=footer, memory_map=True) as file:
            batches = file.iter_batches(
                batch_size=CHUNK_ROWS, row_groups=groups, columns=self._columns, use_threads=False
            )
            for batch in batches:
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                piece = batch.slice(skip, min(left, batch.num_rows - skip))
                skip = 0
                left -= piece.num_rows
                yield piece
                if left == 0:
                    return

    def _footer(self, path: str) -> pq.FileMetaData:
        footer = self._footers.get(path)
        if footer is None:
            with _reporting(path):
                footer = self._footers[path] = pq.read_metadata(path)
        return footer

    def _arrow_schema(self, path: str) -> pa.Schema:
        with _reporting(path):
            return self._footer(path).schema.to_arrow_schema().remove_metadata()


@contextmanager
def _reporting(path: str) -> Iterator[None]:
    """Turns Arrow's and the system's errors into a UserError naming the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: the file is gone") from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path}: cannot be read as Parquet ({error}); "
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
