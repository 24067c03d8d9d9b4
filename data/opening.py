"""Choosing the built-in reader for a path."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.data.blocks import BlockReader
from shoal.data.csv_reader import CsvReader
from shoal.data.files import find_files, format_of
from shoal.data.lines import JsonLinesReader, TextLineReader
from shoal.data.parquet_reader import ParquetReader
from shoal.data.reader import DataReader
from shoal.data.recordio import RecordIOReader
from shoal.data.tfrecord import TFRecordReader
from shoal.errors import UserError

BLOCK_READERS: dict[str, type[BlockReader]] = {
    "tfrecord": TFRecordReader,
    "recordio": RecordIOReader,
    "lines": TextLineReader,
    "jsonlines": JsonLinesReader,
}
"""Format -> reader, of those that are read by blocks."""


def open_reader(
    pattern: str,
    flag: str,
    columns: Sequence[str] | None = None,
    index_folder: str | None = None,
) -> DataReader:
    """A reader for a file, a folder or a glob pattern, by the files' endings.

    flag: the flag that the pattern came from; stands in every error.
    columns: read only these; all where None.
    index_folder: where indexes of the files are kept for other processes; in memory
        where None.

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
    (kind,) = kinds
    if kind == "csv":
        return CsvReader(pattern, flag=flag, columns=columns)
    if kind == "parquet":
        return ParquetReader(pattern, flag=flag, columns=columns)
    assert kind is not None
    return BLOCK_READERS[kind](pattern, flag=flag, columns=columns, index_folder=index_folder)
