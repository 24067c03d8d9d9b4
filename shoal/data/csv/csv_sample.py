"""The first records of CSV files: the columns' names, the types that they suggest, and doubts.

What is likely a mistake in the records is csv_doubts.py's to say; ranges are csv_reader.py's.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.csv as pacsv

from shoal.data.csv.csv_doubts import (
    columns_in_doubt,
    other_separator,
    record_for_header,
    settled_types,
)
from shoal.data.csv.csv_index import CsvIndex, Dialect, scan
from shoal.data.csv.csv_text import numbered, parsing, reporting_rows, stream_of
from shoal.data.places.recent import Recent
from shoal.data.places.storage import Storage
from shoal.errors import UserError

SAMPLE_BYTES = 1 << 20
"""Bytes at the beginning of a file from which the types are guessed."""

DOUBTED_FILES = 20
"""Files that are looked at for what is in doubt."""

NUMBERS = (pa.int64(), pa.float64())

GUESSED = (*NUMBERS, pa.bool_(), pa.string())


class Samples:
    """The first records of files, and the types that they suggest.

    dialect_of: gives a file's dialect. column_names: of files without a header line. given: types
    of columns that are not guessed.
    """

    def __init__(
        self,
        storage: Storage,
        dialect_of: Callable[[str], Dialect],
        column_names: Sequence[str],
        given: Mapping[str, pa.DataType],
    ) -> None:
        self._storage = storage
        self._dialect = dialect_of
        self._column_names = list(column_names)
        self._given = given
        self._samples: Recent[str, tuple[list[str], bytes]] = Recent(1)

    def names(self, file: pa.NativeFile, header: tuple[int, int], path: str) -> list[str]:
        """The names of a file's columns. header: the bytes of its header line."""
        if self._column_names:
            return self._column_names
        begin, end = header
        text = file.read_at(end - begin, begin).decode("utf-8").rstrip("\r\n")
        dialect = self._dialect(path)
        if dialect.quote:
            csv.field_size_limit(max(csv.field_size_limit(), len(text)))
            header_line = csv.reader([text], delimiter=dialect.separator, quotechar=dialect.quote)
            names = next(header_line)
        else:
            names = text.split(dialect.separator)
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise UserError(
                f"{path}: the header names column {twice[0]!r} twice; if it is no header but a "
                "record, give --csv-columns with the names"
            )
        return names

    def guess(self, path: str) -> dict[str, pa.DataType | None]:
        """Column -> type in the order of the header; None where no value is known."""
        with reporting_rows(path):
            names, sample = self._sampled(path)
            numbers, _ = self._numbers(path, sample)
        kinds: dict[str, pa.DataType | None] = dict.fromkeys(names)
        for field in sample.schema if sample is not None else ():
            known = field.type in GUESSED or field.name in self._given
            kinds[field.name] = field.type if known else pa.string()
            if pa.types.is_null(field.type):
                kinds[field.name] = None
        kinds |= numbers
        kinds.update({n: k for n, k in self._given.items() if n in kinds})
        return kinds

    def _numbers(
        self, path: str, sample: pa.Table | None
    ) -> tuple[dict[str, pa.DataType], dict[str, str]]:
        """The result of `settled_types` for a file's columns that Arrow takes for numbers."""
        if sample is None:
            return {}, {}
        numbers = {
            field.name: pa.string()
            for field in sample.schema
            if field.type in NUMBERS and field.name not in self._given
        }
        return settled_types(self._typed(path, numbers, [*numbers])) if numbers else ({}, {})

    def _sampled(self, path: str) -> tuple[list[str], pa.Table | None]:
        """The columns' names, and the records of the sample, typed by Arrow, if there are any.

        No names of an empty file, which is passed over.
        """
        names, data = self._sample(path)
        types = {name: kind for name, kind in self._given.items() if name in names}
        return names, self._typed(path, types) if data else None

    def _typed(
        self, path: str, types: Mapping[str, pa.DataType], only: Sequence[str] | None = None
    ) -> pa.Table:
        """The records of the sample, of which there is one at least. Raises ArrowInvalid.

        types: of columns that Arrow must not guess. only: these columns.
        """
        names, data = self._sample(path)
        dialect = self._dialect(path)
        try:
            return pacsv.read_csv(
                stream_of(pa.BufferReader(data), 0, len(data), dialect),
                read_options=pacsv.ReadOptions(
                    use_threads=False, block_size=len(data) + 1, column_names=names
                ),
                parse_options=parsing(dialect),
                convert_options=pacsv.ConvertOptions(
                    column_types=types, include_columns=only, strings_can_be_null=only is not None
                ),
            )
        except pa.ArrowInvalid as error:
            if hint := self._hint(names, str(error)):
                raise UserError(f"{path}: {numbered(str(error), 0)}; {hint}") from error
            raise

    def _hint(self, names: list[str], error: str) -> str:
        """The likely reason for an error of the first records; "" if unknown."""
        if not (found := re.search(r"Expected (\d+) columns, got (\d+): (.*)", error, re.DOTALL)):
            return ""
        if self._column_names and found[2] != "1":
            return f"--csv-columns names {len(names)}"
        return other_separator([found[3]] if self._column_names else names)

    def _sample(self, path: str) -> tuple[list[str], bytes]:
        """The columns' names, and the bytes of the whole records in the sample.

        No names of an empty file, which is passed over.
        """
        key = f"{path} {self._storage.stamp(path)}"
        return self._samples.get(key, lambda: self._first_bytes(path))

    def _first_bytes(self, path: str) -> tuple[list[str], bytes]:
        file, dialect = self._storage.open(path), self._dialect(path)
        mark = CsvIndex.text_begin(file)
        header = None if dialect.header else (mark, mark)
        last = 0
        for begins, ends in scan(file, mark, file.size(), int(header is not None), dialect):
            if len(begins) and header is None:
                header = (int(begins[0]), int(ends[0]))
            if len(ends):
                inside = ends[ends <= SAMPLE_BYTES]
                last = int(inside[-1] if len(inside) else ends[0])
            if header is not None and last > header[1]:
                break
        if header is None:
            return [], b""
        begin = header[1]
        return self.names(file, header, path), file.read_at(max(last - begin, 0), begin)

    def name_doubts(self, paths: Sequence[str]) -> list[str]:
        """Names of columns that are a record, or several columns', by the looks of them."""
        if self._column_names:
            return []
        for path in paths[:DOUBTED_FILES]:
            with reporting_rows(path):
                names, sample = self._sampled(path)
            doubts = [other_separator(names), record_for_header(names, sample)]
            if any(doubts):
                return [f"{path}: {'; and '.join(filter(None, doubts))}"]
        return []

    def doubts(self, paths: Sequence[str]) -> dict[str, str]:
        """The doubtful columns by name, and doubtful files by path, each with its text."""
        found: dict[str, str] = {}
        named = bool(self._column_names)
        for path in paths[:DOUBTED_FILES]:
            with reporting_rows(path):
                names, sample = self._sampled(path)
                if not names:
                    found[path] = f"{path}: the file is empty, and passed over"
                _, lost = self._numbers(path, sample)
            if sample is not None:
                lost |= columns_in_doubt(sample, self._given, named=named)
            for name, text in lost.items():
                found.setdefault(name, f"{path}: {text}")
        return found
