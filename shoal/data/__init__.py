"""Record readers: count, slice and read ranges of files of records.

    opening.py   the reader of some data
    readers/     one reader for each format; csv/ the text of CSV files
    places/      files and URLs, and indexes of them
    samples/     statistics of columns
    columns.py   what a reader yields, as arrays
    pieces.py    chunks of columns cut and joined

Does not know TensorFlow (the worker makes tensors of the arrays) nor tasks
(the master cuts the ranges).
"""

from shoal.data.columns import Column, ListColumn, as_columns, read_columns
from shoal.data.custom import open_custom_reader
from shoal.data.opening import open_reader
from shoal.data.pieces import minibatches
from shoal.data.reader import DataReader, Metadata, Source, check_columns
from shoal.data.readers.arrow_reader import ArrowReader
from shoal.data.readers.csv_reader import CsvReader
from shoal.data.readers.examples import ExampleReader, SequenceExampleReader
from shoal.data.readers.lines import JsonLinesReader, TextLineReader
from shoal.data.readers.odps_reader import OdpsReader
from shoal.data.readers.parquet_reader import ParquetReader
from shoal.data.readers.recordio import RecordIOReader, RecordIOWriter
from shoal.data.readers.sql_reader import SqlReader
from shoal.data.readers.tfrecord import TFRecordReader

__all__ = [
    "ArrowReader",
    "Column",
    "CsvReader",
    "DataReader",
    "ExampleReader",
    "JsonLinesReader",
    "ListColumn",
    "Metadata",
    "OdpsReader",
    "ParquetReader",
    "RecordIOReader",
    "RecordIOWriter",
    "SequenceExampleReader",
    "Source",
    "SqlReader",
    "TFRecordReader",
    "TextLineReader",
    "as_columns",
    "check_columns",
    "minibatches",
    "open_custom_reader",
    "open_reader",
    "read_columns",
]
