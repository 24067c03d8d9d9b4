"""Choosing the built-in reader for a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.config.data_format import DataFormat
from shoal.data.csv_reader import CsvReader
from shoal.data.file_reader import FileReader
from shoal.data.files import format_of
from shoal.data.lines import JsonLinesReader, TextLineReader
from shoal.data.odps_reader import SCHEME, OdpsReader
from shoal.data.parquet_reader import ParquetReader
from shoal.data.reader import DataReader
from shoal.data.recordio import RecordIOReader
from shoal.data.sql_reader import SqlReader, is_sql
from shoal.data.storage import Storage
from shoal.data.tfrecord import TFRecordReader
from shoal.errors import UserError

FORMATS: dict[str, type[FileReader]] = {
    "csv": CsvReader,
    "parquet": ParquetReader,
    "tfrecord": TFRecordReader,
    "recordio": RecordIOReader,
    "lines": TextLineReader,
    "jsonlines": JsonLinesReader,
}
"""Format -> reader."""


BY_NAME = DataFormat()
"""What is said of files by their names and first lines alone."""


def open_reader(
    pattern: str,
    flag: str,
    columns: Sequence[str] | None = None,
    data_format: DataFormat = BY_NAME,
) -> DataReader:
    """A reader for files (a file, a folder or a glob pattern, path or URL) or a table (SQL, ODPS).

    flag: the flag that the pattern came from; stands in every error.
    columns: read only these; all where None.
    data_format: of files, where their names and first lines do not tell it.

    Opens no file yet. Raises UserError if nothing is found, if an ending is unknown
    or if the files are of two formats.
    """
    if pattern.startswith(SCHEME):
        return OdpsReader(pattern, flag=flag, columns=columns)
    if is_sql(pattern):
        return SqlReader(pattern, flag=flag, columns=columns)
    storage = Storage(pattern, flag, data_format.kind)
    kinds = {data_format.kind or format_of(name): name for name in reversed(storage.names)}
    if len(kinds) > 1:
        raise UserError(
            f"{flag}: {pattern} holds files of different formats, such as "
            f"{' and '.join(sorted(kinds.values()))}; name one kind, for example with *.parquet"
        )
    (kind,) = kinds
    assert kind is not None
    options: dict[str, Any] = {}
    if kind == "csv":
        options = {
            "separator": data_format.separator,
            "column_names": data_format.column_names,
            "quotes": data_format.quotes,
        }
    return FORMATS[kind](
        pattern,
        flag=flag,
        columns=columns,
        storage=storage,
        **options,
    )
