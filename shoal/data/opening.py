"""Choosing the built-in reader for a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.config.groups.data_format import DataFormat, split_options, with_options
from shoal.data.file_reader import FileReader
from shoal.data.places.files import format_of
from shoal.data.places.partitions import partitions_of
from shoal.data.places.storage import Storage
from shoal.data.reader import DataReader
from shoal.data.readers.arrow_reader import ArrowReader
from shoal.data.readers.csv_reader import CsvReader
from shoal.data.readers.examples import ExampleReader, SequenceExampleReader
from shoal.data.readers.kafka.kafka_reader import KafkaReader
from shoal.data.readers.kafka.place import SCHEME as KAFKA
from shoal.data.readers.lake import LakeReader, open_table
from shoal.data.readers.lines import JsonLinesReader, TextLineReader
from shoal.data.readers.odps_reader import SCHEME as ODPS
from shoal.data.readers.odps_reader import OdpsReader
from shoal.data.readers.parquet_reader import ParquetReader
from shoal.data.readers.recordio import RecordIOReader
from shoal.data.readers.sql_reader import SqlReader, is_sql
from shoal.data.readers.tfrecord import TFRecordReader
from shoal.data.shaped import ShapedReader, shaped
from shoal.errors import UserError

FORMATS: dict[str, type[FileReader]] = {
    "csv": CsvReader,
    "parquet": ParquetReader,
    "arrow": ArrowReader,
    "tfrecord": TFRecordReader,
    "example": ExampleReader,
    "sequence-example": SequenceExampleReader,
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
    """A reader for files (file, folder or glob, path or URL), a table (SQL, ODPS) or a topic.

    flag: the flag that the pattern came from; stands in every error.
    columns: read only these; all where None.
    data_format: of files, where their names and first lines do not tell it.

    Opens no file yet. Raises UserError if nothing is found, if an ending is unknown
    or if the files are of two formats.
    """
    if columns is None and data_format.columns:
        columns = data_format.columns
    shape: dict[str, Any] = {
        "flag": flag,
        "columns": columns,
        "fill": data_format.fill,
        "masks": data_format.masks,
    }
    if pattern.startswith(KAFKA):
        return shaped(KafkaReader(pattern, flag=flag), pattern, **shape)
    if pattern.startswith(ODPS):
        return shaped(OdpsReader(pattern, flag=flag), pattern, **shape)
    if is_sql(pattern):
        return shaped(SqlReader(pattern, flag=flag), pattern, **shape)
    if (table := open_table(pattern, flag)) is not None:
        return LakeReader(table, pattern, **shape)
    pattern, options_behind = split_options(pattern)
    data_format = with_options(data_format, options_behind, flag)
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
            "quote": data_format.quote,
            "comment": data_format.comment,
        }
    reader = FORMATS[kind](pattern, flag=flag, storage=storage, **options)
    if (partitions := partitions_of(storage.names, flag)) is None:
        return shaped(reader, pattern, **shape)
    return shaped(reader, pattern, constants=partitions.fields, value_of=partitions.values, **shape)


def reads_csv(reader: DataReader) -> bool:
    """True if a reader that was opened here reads CSV files."""
    return isinstance(reader.inner if isinstance(reader, ShapedReader) else reader, CsvReader)
