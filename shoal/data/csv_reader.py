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
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from shoal.data.csv_doubts import columns_in_doubt, other_separator, record_for_header
from shoal.data.csv_index import CsvIndex, Dialect, MalformedCsvError, scan
from shoal.data.file_reader import FileReader
from shoal.data.files import unpacked_name
from shoal.data.index_store import KEPT
from shoal.data.reader import Source, check_columns, check_range
from shoal.data.recent import Recent
from shoal.data.schemas import GUESSED_FILES, merged_schema, spread
from shoal.data.storage import reporting
from shoal.errors import UserError

SAMPLE_BYTES = 1 << 20
"""Bytes at the beginning of a file from which the types are guessed."""

BLOCK_BYTES = 1 << 20
"""Bytes that Arrow parses at a time, unless one record is longer."""

DOUBTED_FILES = 20
"""Files that are looked at for such columns."""

TYPES_HINT = "; see CsvReader(column_types=...) for how to set types"

FIELD = "\x1f"
"""What stands for a separator of several characters, which Arrow does not know."""

EMPTY = "the file is empty; a header line is expected, or with --csv-columns a record"

GUESSED = (pa.int64(), pa.float64(), pa.bool_(), pa.string())


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

    def _count(self, path: str) -> int:
        # By one pass over the file.
        return self._index(path).records

    def _full_schema(self) -> pa.Schema:
        if self._types is None:
            guessed = [(path, self._guess(path)) for path in spread(self._paths)]
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
        with _reporting(source, start):
            file = self._storage.open(source)
            begin, stop = index.window(file, start, end)
            self._storage.expect(source, [(begin, stop)])
            dialect = self._dialect(source)
            reader = pacsv.open_csv(
                _Blocks(_stream(file, begin, stop, dialect)),
                read_options=pacsv.ReadOptions(
                    use_threads=False,  # the worker is one of many; also numbers bad rows
                    block_size=max(BLOCK_BYTES, index.longest + 1),
                    column_names=self._names(file, index.header, source),
                ),
                parse_options=_parsing(dialect),
                convert_options=pacsv.ConvertOptions(
                    column_types=schema, include_columns=schema.names
                ),
            )
            for batch in reader:
                if batch.num_rows:
                    yield batch

    def doubts(self) -> list[str]:
        """Doubts about the names; and the columns that few values make text, with the first."""
        return [*self.name_doubts(), *self._doubts().values()]

    def name_doubts(self) -> list[str]:
        """Names of columns that are a record, or several columns', by the looks of them."""
        if self._column_names:
            return []
        for path in self._paths[:DOUBTED_FILES]:
            with _reporting(path):
                names, sample = self._sampled(path)
            doubts = [other_separator(names), record_for_header(names, sample)]
            if any(doubts):
                return [f"{path}: {'; and '.join(filter(None, doubts))}"]
        return []

    def _doubts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        named = bool(self._column_names)
        for path in self._paths[:DOUBTED_FILES]:
            with _reporting(path):
                _, sample = self._sampled(path)
            if sample is not None:
                for name, text in columns_in_doubt(sample, {*found, *self._given}, named=named):
                    found[name] = f"{path}: {text}"
        return found

    def place(self, source: str, record: int) -> str:
        """See DataReader; with the byte at which the row begins."""
        begin, _ = self._index(source).window(self._storage.open(source), record, record + 1)
        return f"record {record} (row {record + 1}, at byte {begin})"

    def _index(self, path: str) -> CsvIndex:
        return self._indexes.get(path, lambda: self._found(path))

    def _found(self, path: str) -> CsvIndex:
        dialect = self._dialect(path)
        with _reporting(path):
            stamp = self._storage.stamp(path)
            table = self._store.get(
                f"csv {dialect}", path, stamp, lambda: self._build(path, dialect)
            )
            index = CsvIndex.of_table(table, dialect)
        if dialect.header and index.header == (0, 0):
            raise UserError(f"{path}: {EMPTY}")
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
        """The columns' names, and the records of the sample, typed by Arrow, if there are any."""
        file = self._storage.open(path)
        dialect = self._dialect(path)
        place = self._sample(file, dialect)
        if place is None:
            raise UserError(f"{path}: {EMPTY}")
        header, begin, end = place
        names = self._names(file, header, path)
        if begin == end:
            return names, None
        types = {name: kind for name, kind in self._given.items() if name in names}
        try:
            return names, pacsv.read_csv(
                _stream(file, begin, end, dialect),
                read_options=pacsv.ReadOptions(
                    use_threads=False, block_size=end - begin + 1, column_names=names
                ),
                parse_options=_parsing(dialect),
                convert_options=pacsv.ConvertOptions(column_types=types),
            )
        except pa.ArrowInvalid as error:
            if hint := self._hint(names, str(error)):
                raise UserError(f"{path}: {_numbered(str(error), 0)}; {hint}") from error
            raise

    def _hint(self, names: list[str], error: str) -> str:
        """What may be the reason for an error of the first records."""
        if not (found := re.search(r"Expected (\d+) columns, got (\d+): (.*)", error, re.DOTALL)):
            return ""
        if self._column_names and found[2] != "1":
            return f"--csv-columns names {len(names)}"
        return other_separator([found[3]] if self._column_names else names)

    def _sample(
        self, file: pa.NativeFile, dialect: Dialect
    ) -> tuple[tuple[int, int], int, int] | None:
        """The header's bytes, and the bytes of the whole records in the sample.

        None if there is no header, where there should be one.
        """
        size = file.size()
        mark = CsvIndex.text_begin(file)
        header = None if dialect.header else (mark, mark)
        last = 0
        for begins, ends in scan(file, mark, size, int(header is not None), dialect):
            if len(begins) and header is None:
                header = (int(begins[0]), int(ends[0]))
            if len(ends):
                inside = ends[ends <= SAMPLE_BYTES]
                last = int(inside[-1] if len(inside) else ends[0])
            if header is not None and last > header[1]:
                break
        return None if header is None else (header, header[1], max(last, header[1]))


def _stream(file: pa.NativeFile, begin: int, end: int, dialect: Dialect) -> pa.NativeFile:
    """The bytes [begin, end) of a file, as Arrow can read them. Raises ArrowInvalid.

    Comments are left out, and a separator is one that it knows.
    """
    if len(dialect.separator) == 1 and not dialect.comment:
        return file.get_stream(begin, end - begin)
    data = file.read_at(end - begin, begin)
    if dialect.comment and dialect.comment.encode() in data:
        spans = scan(pa.BufferReader(data), 0, len(data), 1, dialect)
        pieces = (zip(begins, ends, strict=True) for begins, ends in spans)
        data = b"".join(data[first:last] for piece in pieces for first, last in piece)
    if len(dialect.separator) == 1:
        return pa.BufferReader(data)
    if FIELD.encode() in data:
        raise pa.ArrowInvalid(
            f"there is a character {FIELD!r}, which fields separated by {dialect.separator!r} may "
            "not hold"
        )
    return pa.BufferReader(data.replace(dialect.separator.encode(), FIELD.encode()))


class _Blocks:
    """A stream for Arrow that ends no block between a carriage return and what follows it.

    Arrow drops a line feed at the beginning of the block behind, also within quotes.
    """

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._kept = b""

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        kept, self._kept = self._kept, b""
        data: bytes = kept + self._stream.read(size - len(kept) if size >= 0 else None)
        if len(data) > 1 and data.endswith(b"\r"):
            data, self._kept = data[:-1], b"\r"
        return data

    def close(self) -> None:
        """Read nothing more."""
        self.closed = True


def _parsing(dialect: Dialect) -> pacsv.ParseOptions:
    return pacsv.ParseOptions(
        delimiter=dialect.separator if len(dialect.separator) == 1 else FIELD,
        quote_char=dialect.quote or False,
        newlines_in_values=bool(dialect.quote),
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
            raise UserError(f"{path}: {_numbered(str(error), start)}") from error


def _numbered(text: str, start: int) -> str:
    """Arrow's message, with the row's number in the file where it tells one."""
    row = re.search(r"Row #(\d+): ", text)
    place = f"row {start + int(row[1])}: " if row else ""
    if row:
        text = text.replace(row[0], "")
    text = text.replace(FIELD, " ")
    return place + _plain(text, re.search(r"In CSV column #(\d+): ", text))


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
