"""Reading ranges of CSV files, plain or compressed, with any separator.

Parsing is Arrow's. A file is indexed once per job (csv_index.py), so that a range reads
its own bytes only. A compressed file cannot be entered in the middle; it is
unpacked to a temporary file at first use. What is likely a mistake in a file is
csv_doubts.py's.

The columns' types are guessed from the first megabyte of each file, as int64,
double, bool or string; dates and times stay strings. Where the guess is wrong, a
`custom_data_reader` in the user's model file that returns
`CsvReader(pattern, column_types={"zip": pyarrow.string()})` settles it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from pyarrow.types import is_integer

from shoal.data.csv_doubts import (
    columns_in_doubt,
    other_separator,
    record_for_header,
    settled_types,
)
from shoal.data.csv_index import CsvIndex, Dialect, scan
from shoal.data.csv_text import (
    TYPES_HINT,
    Blocks,
    numbered,
    parsing,
    reporting_rows,
    stream_of,
)
from shoal.data.file_reader import FileReader
from shoal.data.files import unpacked_name
from shoal.data.index_store import KEPT
from shoal.data.reader import Source, check_columns, check_range
from shoal.data.recent import Recent
from shoal.data.schemas import GUESSED_FILES, merged_schema, spread
from shoal.errors import UserError

SAMPLE_BYTES = 1 << 20
"""Bytes at the beginning of a file from which the types are guessed."""

BLOCK_BYTES = 1 << 20
"""Bytes that Arrow parses at a time, unless one record is longer."""

DOUBTED_FILES = 20
"""Files that are looked at for such columns."""

EMPTY = "the file is empty; a header line is expected, or with --csv-columns a record"

NUMBERS = (pa.int64(), pa.float64())

GUESSED = (*NUMBERS, pa.bool_(), pa.string())


class CsvReader(FileReader):
    """Reads the CSV files that a pattern stands for; see FileReader.

    column_types: Arrow types of columns whose type must not be guessed.
    separator: between two fields; where empty, a tab in files that end in .tsv, else a comma.
    column_names: of files without a header line; those of the header where there are none.
    quote: the character that holds a field together; "" for none, as with a separator of several
        characters. comment: the character with which lines begin that are no records; "" for none.
    """

    def __init__(
        self,
        pattern: str,
        *,
        column_types: Mapping[str, pa.DataType] | None = None,
        separator: str = "",
        column_names: Sequence[str] = (),
        quote: str = '"',
        comment: str = "",
        **options: Any,
    ) -> None:
        super().__init__(pattern, kind="csv", **options)
        self._separator = separator
        self._column_names = list(column_names)
        self._quote = quote
        self._comment = comment
        self._given = dict(column_types or {})
        self._types: pa.Schema | None = None
        self._no_value = False
        self._indexes: Recent[str, CsvIndex] = Recent(KEPT)
        self._samples: Recent[str, tuple[list[str], bytes]] = Recent(1)

    def _count(self, path: str) -> int:
        # By one pass over the file.
        return self._index(path).records

    def _full_schema(self) -> pa.Schema:
        if self._types is None:
            guessed = [(path, self._guess(path)) for path in spread(self._paths)]
            guessed = [(path, kinds) for path, kinds in guessed if kinds]
            if not guessed:
                raise UserError(f"{self._paths[0]}: {EMPTY}")
            try:
                full = merged_schema(guessed, self._flag, same_columns=True, hint=TYPES_HINT)
            except UserError as error:
                doubts = [text for name, text in self._doubts().items() if repr(name) in str(error)]
                raise UserError("; ".join((str(error), *doubts))) from error
            check_columns(full, list(self._given), f"{self._flag} (column_types)")
            self._types = full
            self._no_value = not any(kind for _, kinds in guessed for kind in kinds.values())
        return self._types

    def faults(self) -> dict[str, UserError]:
        """See IndexedReader: all columns where there is no record, and so no type."""
        full = self._full_schema()
        if self._no_value:
            try:
                self.first()
            except UserError as error:
                return dict.fromkeys(full.names, error)
        return {}

    def _check_types(self, path: str) -> None:
        """Raises UserError if a file at which the schema did not look does not fit it."""
        if len(self._paths) <= GUESSED_FILES:
            return  # it did
        full = self._full_schema()
        known = dict(zip(full.names, full.types, strict=True))
        first = self._paths[0]
        files = [(first, known), (path, self._guess(path))]
        merged = merged_schema(files, self._flag, same_columns=True, hint=TYPES_HINT)
        for field in merged:
            if field.type != known[field.name]:
                raise UserError(
                    f"{self._flag}: the files differ in column {field.name!r}: "
                    f"{known[field.name]} in {first}, {field.type} in {path}{TYPES_HINT}"
                )

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches of about BLOCK_BYTES of text."""
        schema = self.schema()
        self._forget_changed(source, self._indexes)
        index = self._index(source)
        check_range(Source(source, index.records), start, end)
        if start == end:
            return
        names: list[str] = []
        with reporting_rows(source, start, names):
            names += self._names(self._storage.open(source), index.header, source)
            blocks, reader = self._open(source, index, (start, end), names, schema)
            checked = False
            for batch in reader:
                if blocks.hexadecimal and not checked:
                    self._refuse_hexadecimal(source, index, (start, end), names)
                    checked = True
                if batch.num_rows:
                    yield batch

    def _open(
        self,
        source: str,
        index: CsvIndex,
        records: tuple[int, int],
        names: Sequence[str],
        types: pa.Schema,
    ) -> tuple[Blocks, pacsv.CSVStreamingReader]:
        """Arrow's reader of some records, and what it reads. types: the columns to be read."""
        file = self._storage.open(source)
        begin, stop = index.window(file, *records)
        self._storage.expect(source, [(begin, stop)])
        dialect = self._dialect(source)
        blocks = Blocks(stream_of(file, begin, stop, dialect))
        return blocks, pacsv.open_csv(
            blocks,
            read_options=pacsv.ReadOptions(
                use_threads=False,  # the worker is one of many; also numbers bad rows
                block_size=max(BLOCK_BYTES, index.longest + 1),
                column_names=names,
            ),
            parse_options=parsing(dialect),
            convert_options=pacsv.ConvertOptions(column_types=types, include_columns=types.names),
        )

    def _refuse_hexadecimal(
        self, source: str, index: CsvIndex, records: tuple[int, int], names: Sequence[str]
    ) -> None:
        """Raises UserError for words such as 0x1F in columns of integers: Arrow reads 31."""
        kinds = [(each.name, pa.string()) for each in self.schema() if is_integer(each.type)]
        if not kinds:
            return
        row = records[0]
        for batch in self._open(source, index, records, names, pa.schema(kinds))[1]:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                found = pc.match_substring_regex(column, r"^[ \t]*0[xX]")
                if (place := pc.index(found, True).as_py()) >= 0:
                    raise UserError(
                        f"{source}: row {row + place + 1}: column {name!r} holds "
                        f"{column[place].as_py()!r}, which is no number here: mend the row, or "
                        f"read the column as text{TYPES_HINT}"
                    )
            row += batch.num_rows

    def doubts(self) -> list[str]:
        """Doubts about the names; and the columns that few values make text, with the first."""
        return [*self.name_doubts(), *self._doubts().values()]

    def name_doubts(self) -> list[str]:
        """Names of columns that are a record, or several columns', by the looks of them."""
        if self._column_names:
            return []
        for path in self._paths[:DOUBTED_FILES]:
            with reporting_rows(path):
                names, sample = self._sampled(path)
            doubts = [other_separator(names), record_for_header(names, sample)]
            if any(doubts):
                return [f"{path}: {'; and '.join(filter(None, doubts))}"]
        return []

    def _doubts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        named = bool(self._column_names)
        for path in self._paths[:DOUBTED_FILES]:
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

    def place(self, source: str, record: int) -> str:
        """See DataReader; with the byte at which the row begins."""
        begin, _ = self._index(source).window(self._storage.open(source), record, record + 1)
        return f"record {record} (row {record + 1}, at byte {begin})"

    def _index(self, path: str) -> CsvIndex:
        return self._indexes.get(path, lambda: self._found(path))

    def _found(self, path: str) -> CsvIndex:
        dialect = self._dialect(path)
        with reporting_rows(path):
            stamp = self._storage.stamp(path)
            table = self._store.get(
                f"csv {dialect}", path, stamp, lambda: self._build(path, dialect)
            )
            index = CsvIndex.of_table(table, dialect)
        if dialect.header and index.header == (0, 0):
            self._full_schema()  # raises, where all files are empty
        else:
            self._check_types(path)
        self._store.check(Source(path, index.records), stamp)
        self._noted(path, stamp)
        return index

    def _build(self, path: str, dialect: Dialect) -> pa.Table:
        file = self._storage.open(path)
        self._storage.expect(path, [(0, file.size())])
        return CsvIndex.build(file, dialect).table()

    @property
    def form(self) -> str:
        """See DataReader; with the dialect."""
        ways = (self._separator, bool(self._column_names), self._quote, self._comment)
        return f"CsvReader {ways}"

    def _dialect(self, path: str) -> Dialect:
        tabs = unpacked_name(path).endswith(".tsv")
        separator = self._separator or ("\t" if tabs else ",")
        quote = self._quote if len(separator) == 1 else ""
        return Dialect(separator, quote, not self._column_names, self._comment)

    def _names(self, file: pa.NativeFile, header: tuple[int, int], path: str) -> list[str]:
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

    def _guess(self, path: str) -> dict[str, pa.DataType | None]:
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
        """As of `settled_types`, of a file's columns that Arrow takes for numbers."""
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
        """What may be the reason for an error of the first records."""
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
        return self._names(file, header, path), file.read_at(max(last - begin, 0), begin)
