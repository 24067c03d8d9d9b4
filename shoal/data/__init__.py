"""Record readers: count, slice and read ranges of files of records.

Owns files and their formats, and the normalisation of what a reader yields into
arrays. Does not know TensorFlow (the worker makes tensors of the arrays) nor tasks
(the master cuts the ranges).
"""

from shoal.data.arrow_reader import ArrowReader
from shoal.data.columns import Column, ListColumn, as_columns, minibatches, read_columns
from shoal.data.csv_reader import CsvReader
from shoal.data.custom import open_custom_reader
from shoal.data.examples import ExampleReader, SequenceExampleReader
from shoal.data.lines import JsonLinesReader, TextLineReader
from shoal.data.odps_reader import OdpsReader
from shoal.data.opening import open_reader
from shoal.data.parquet_reader import ParquetReader
from shoal.data.reader import DataReader, Metadata, Source, check_columns
from shoal.data.recordio import RecordIOReader, RecordIOWriter
from shoal.data.sql_reader import SqlReader
from shoal.data.tfrecord import TFRecordReader

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
