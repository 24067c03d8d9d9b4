"""Choosing the built-in reader for a path."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.data.csv_reader import CsvReader
from shoal.data.files import find_files, format_of
from shoal.data.parquet_reader import ParquetReader
from shoal.data.reader import DataReader
from shoal.errors import UserError


def open_reader(pattern: str, flag: str, columns: Sequence[str] | None = None) -> DataReader:
    """A reader for a file, a folder or a glob pattern, by the files' endings.

    flag: the flag that the pattern came from; stands in every error.
    columns: read only these; all where None.

    Opens no file yet. Raises UserError if nothing is found, if an ending is unknown
    or if the files are of two formats.
    """
    files = find_files(pattern, flag)
    kinds = {format_of(path): path for path in reversed(files)}
    if len(kinds) > 1:
        raise UserError(
            f"{flag}: {pattern} holds files of different formats, such as "
            f"{' and '.join(sorted(kinds.values()))}; name one kind, for example with *.parquet"
        )
    reader = CsvReader if "csv" in kinds else ParquetReader
    return reader(pattern, flag=flag, columns=columns)
