"""Reading ranges of CSV files with a header line, plain or gzip'd.

Parsing is Arrow's. A file is indexed once per job (csv_index.py), so that a range reads
its own bytes only. A gzip'd file cannot be entered in the middle; it is
unpacked to a temporary file at first use.

The columns' types are guessed from the first megabyte of each file, as int64,
double, bool or string; dates and times stay strings. Where the guess is wrong, a
`custom_data_reader` in the user's model file that returns
`CsvReader(pattern, column_types={"zip": pyarrow.string()})` settles it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from shoal.data.csv_index import CsvIndex, MalformedCsvError, scan
from shoal.data.file_reader import FileReader
from shoal.data.reader import Source, check_columns, check_range
from shoal.data.schemas import merged_schema
from shoal.data.storage import reporting
from shoal.errors import UserError

SAMPLE_BYTES = 1 << 20
"""Bytes at the beginning of a file from which the types are guessed."""

BLOCK_BYTES = 1 << 20
"""Bytes that Arrow parses at a time, unless one record is longer."""

DOUBTED_SHARE = 0.05
"""Values that are no numbers, to one that is, up to which a column of text is in doubt."""

DOUBTED_FILES = 20
"""Files that are looked at for such columns."""

NUMBER = r"^[ \t]*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?[ \t]*$"

GUESSED = (pa.int64(), pa.float64(), pa.bool_(), pa.string())


class CsvReader(FileReader):
    """Reads the CSV files that a pattern stands for; see FileReader.

    column_types: Arrow types of columns whose type must not be guessed.
    """

    def __init__(
        self,
        pattern: str,
        *,
        column_types: Mapping[str, pa.DataType] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pattern, **options)
        self._given = dict(column_types or {})
        self._indexes: dict[str, CsvIndex] = {}

    def _count(self, path: str) -> int:
        # By one pass over the file.
        return self._index(path).records

    def _full_schema(self) -> pa.Schema:
        guessed = [(path, self._guess(path)) for path in self._paths]
        hint = "; see CsvReader(column_types=...) for how to set types"
        try:
            full = merged_schema(guessed, self._flag, same_columns=True, hint=hint)
        except UserError as error:
            doubts = [text for name, text in self._doubts().items() if repr(name) in str(error)]
            raise UserError("; ".join((str(error), *doubts))) from error
        check_columns(full, list(self._given), f"{self._flag} (column_types)")
        return full

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches of about BLOCK_BYTES of text."""
        schema = self.schema()
        index = self._index(source)
        check_range(Source(source, index.records), start, end)
        if start == end:
            return
        with _reporting(source, start):
            file = self._storage.open(source)
            begin, stop = index.window(file, start, end)
            reader = pacsv.open_csv(
                file.get_stream(begin, stop - begin),
                read_options=pacsv.ReadOptions(
                    use_threads=False,  # the worker is one of many; also numbers bad rows
                    block_size=max(BLOCK_BYTES, index.longest + 1),
                    column_names=self._header(file, index.header, source),
                ),
                parse_options=pacsv.ParseOptions(newlines_in_values=True),
                convert_options=pacsv.ConvertOptions(
                    column_types=schema, include_columns=schema.names
                ),
            )
            for batch in reader:
                if batch.num_rows:
                    yield batch

    def doubts(self) -> list[str]:
        """Columns that are text because of a few values: of each the first row in question."""
        return list(self._doubts().values())

    def _doubts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in self._paths[:DOUBTED_FILES]:
            with _reporting(path):
                _, sample = self._sampled(path)
            if sample is None:
                continue
            for name, column in zip(sample.column_names, sample.columns, strict=True):
                if column.type == pa.string() and name not in {*found, *self._given}:
                    doubt = _doubt(column)
                    if doubt:
                        found[name] = f"{path}: column {name!r} is read as text: {doubt}"
        return found

    def place(self, source: str, record: int) -> str:
        """See DataReader; with the byte at which the row begins."""
        begin, _ = self._index(source).window(self._storage.open(source), record, record + 1)
        return f"record {record} (row {record + 1}, at byte {begin})"

    def _index(self, path: str) -> CsvIndex:
        index = self._indexes.get(path)
        if index is None:
            with _reporting(path):
                table = self._store.get(
                    "csv",
                    path,
                    self._storage.stamp(path),
                    lambda: CsvIndex.build(self._storage.open(path)).table(),
                )
                index = self._indexes[path] = CsvIndex.of_table(table)
            if index.header == (0, 0):
                raise UserError(f"{path}: the file is empty; a header line is expected")
        return index

    def _header(self, file: pa.NativeFile, place: tuple[int, int], path: str) -> list[str]:
        begin, end = place
        text = file.read_at(end - begin, begin).decode("utf-8")
        names = next(csv.reader([text.rstrip("\r\n")]))
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise UserError(f"{path}: the header names column {twice[0]!r} twice")
        return names

    def _guess(self, path: str) -> dict[str, pa.DataType | None]:
        """Column -> type in the order of the header; None where no value is known."""
        with _reporting(path):
            names, sample = self._sampled(path)
        kinds: dict[str, pa.DataType | None] = dict.fromkeys(names)
        for field in sample.schema if sample is not None else ():
            known = field.type in GUESSED or field.name in self._given
            kinds[field.name] = field.type if known else pa.string()
            if pa.types.is_null(field.type):
                kinds[field.name] = None
        kinds.update({n: k for n, k in self._given.items() if n in kinds})
        return kinds

    def _sampled(self, path: str) -> tuple[list[str], pa.Table | None]:
        """The header's names, and the records of the sample, typed by Arrow, if there are any."""
        file = self._storage.open(path)
        place = self._sample(file)
        if place is None:
            raise UserError(f"{path}: the file is empty; a header line is expected")
        header, begin, end = place
        names = self._header(file, header, path)
        if begin == end:
            return names, None
        return names, pacsv.read_csv(
            file.get_stream(begin, end - begin),
            read_options=pacsv.ReadOptions(
                use_threads=False, block_size=end - begin + 1, column_names=names
            ),
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                column_types={n: k for n, k in self._given.items() if n in names}
            ),
        )

    def _sample(self, file: pa.NativeFile) -> tuple[tuple[int, int], int, int] | None:
        """The header's bytes, and the bytes of the whole records in the sample."""
        size = file.size()
        mark = CsvIndex.text_begin(file)
        header: tuple[int, int] | None = None
        last = 0
        for begins, ends in scan(file, mark, size, 0):
            if len(begins) and header is None:
                header = (int(begins[0]), int(ends[0]))
            if len(ends):
                inside = ends[ends <= SAMPLE_BYTES]
                last = int(inside[-1] if len(inside) else ends[0])
            if header is not None and last > header[1]:
                break
        return None if header is None else (header, header[1], max(last, header[1]))


def _doubt(values: pa.ChunkedArray) -> str:
    """What few values of a column of text are no numbers, in words; "" if there are many."""
    number = pc.match_substring_regex(values, NUMBER)
    missing = pc.is_in(values, pa.array(pacsv.ConvertOptions().null_values))
    numbers = pc.sum(number).as_py() or 0
    others = len(values) - (pc.sum(pc.or_(number, missing)).as_py() or 0)
    if not 0 < others <= numbers * DOUBTED_SHARE:
        return ""
    row = pc.index(pc.or_(number, missing), False).as_py()
    return (
        f"row {row + 1} holds {values[row].as_py()!r}, and {numbers:,} of the first "
        f"{len(values):,} values are numbers"
    )


@contextmanager
def _reporting(path: str, start: int = 0) -> Iterator[None]:
    """Turns errors in reading into a UserError naming the file and, if known, the row.

    start: the number of records before the first that is read; rows count from 1,
    without the header.
    """
    with reporting(path):
        try:
            yield
        except MalformedCsvError as error:
            where = f"row {error.record}" if error.record else "header"
            raise UserError(f"{path}: {where}: {error.message}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: the header is not UTF-8 text") from error
        except pa.ArrowInvalid as error:
            text = str(error)
            row = re.search(r"Row #(\d+): ", text)
            place = f"row {start + int(row[1])}: " if row else ""
            if row:
                text = text.replace(row[0], "")
            column = re.search(r"In CSV column #(\d+): ", text)
            raise UserError(f"{path}: {place}{_plain(text, column)}") from error


def _plain(text: str, column: re.Match[str] | None) -> str:
    """Arrow's message in the user's words; columns count from 1."""
    text = text.removeprefix("CSV parse error: ")
    if column:
        text = text.replace(column[0], f"column {int(column[1]) + 1}: ")
        text += (
            "; types are guessed from the file's beginning, see CsvReader(column_types=...) "
            "for how to set them"
        )
    return text
