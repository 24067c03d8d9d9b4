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

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from pyarrow.types import is_integer

from shoal.data.csv.csv_index import CsvIndex, Dialect
from shoal.data.csv.csv_sample import Samples
from shoal.data.csv.csv_text import TYPES_HINT, Blocks, parsing, reporting_rows, stream_of
from shoal.data.file_reader import FileReader
from shoal.data.places.files import unpacked_name
from shoal.data.places.index_store import KEPT
from shoal.data.places.recent import Recent
from shoal.data.reader import Source, check_columns, check_range
from shoal.data.schemas import GUESSED_FILES, merged_schema, spread
from shoal.errors import UserError

BLOCK_BYTES = 1 << 20
"""Bytes that Arrow parses at a time, unless one record is longer."""

EMPTY = "the file is empty; a header line is expected, or with --csv-columns a record"


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
        self._named = bool(column_names)
        self._quote = quote
        self._comment = comment
        self._given = dict(column_types or {})
        self._types: pa.Schema | None = None
        self._no_value = False
        self._indexes: Recent[str, CsvIndex] = Recent(KEPT)
        self._samples = Samples(self._storage, self._dialect, column_names, self._given)

    def _count(self, path: str) -> int:
        # By one pass over the file.
        return self._index(path).records

    def _full_schema(self) -> pa.Schema:
        if self._types is None:
            guessed = [(path, self._samples.guess(path)) for path in spread(self._paths)]
            guessed = [(path, kinds) for path, kinds in guessed if kinds]
            if not guessed:
                raise UserError(f"{self._paths[0]}: {EMPTY}")
            full, faults = merged_schema(guessed, self._flag, same_columns=True, hint=TYPES_HINT)
            check_columns(full, list(self._given), f"{self._flag} (column_types)")
            doubts = self._samples.doubts(self._paths) if faults else {}
            self._faults = {
                name: UserError("; ".join(filter(None, (str(fault), doubts.get(name)))))
                for name, fault in faults.items()
            }
            self._types = full
            self._no_value = not any(kind for _, kinds in guessed for kind in kinds.values())
        return self._types

    def faults(self) -> dict[str, UserError]:
        """See IndexedReader: all columns where there is no record, and so no type."""
        found = super().faults()
        if self._no_value:
            try:
                self.first()
            except UserError as error:
                return dict.fromkeys(self._full_schema().names, error)
        return found

    def _check_types(self, path: str) -> None:
        """Raises UserError if a file at which the schema did not look has other columns to read."""
        if len(self._paths) <= GUESSED_FILES:
            return  # it did
        full = self._full_schema()
        files = [
            (self._paths[0], dict(zip(full.names, full.types, strict=True))),
            (path, self._samples.guess(path)),
        ]
        merged, faults = merged_schema(files, self._flag, same_columns=True, hint=TYPES_HINT)
        for field in self.schema():
            if fault := faults.get(field.name):
                raise fault
            if merged.field(field.name).type != field.type:
                raise UserError(
                    f"{self._flag}: the files differ in column {field.name!r}: {field.type} in "
                    f"{self._paths[0]}, {merged.field(field.name).type} in {path}{TYPES_HINT}"
                )

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches of about BLOCK_BYTES of text."""
        schema = self._checked_schema()
        self._forget_changed(source, self._indexes)
        index = self._index(source)
        check_range(Source(source, index.records), start, end)
        if start == end:
            return
        names: list[str] = []
        with reporting_rows(source, start, names):
            names += self._samples.names(self._storage.open(source), index.header, source)
            blocks, reader = self._open(source, index, (start, end), names, schema)
            checked = False
            for batch in reader:
                if blocks.hexadecimal and not checked:
                    self._refuse_hexadecimal(source, index, (start, end), names)
                    checked = True
                if batch.num_rows:
                    yield batch

    def head(self, records: int) -> tuple[str, list[pa.RecordBatch]]:
        """See DataReader: needs no index of the whole file."""
        schema = self._checked_schema()
        for path in self._paths:
            with reporting_rows(path):
                file = self._storage.open(path)
                index = CsvIndex.build(file, self._dialect(path), records)
                end = min(records, index.records)
                if end:
                    names = self._samples.names(file, index.header, path)
                    _, reader = self._open(path, index, (0, end), names, schema)
                    return path, [batch for batch in reader if batch.num_rows]
        return super().head(records)  # raises, as there is none

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
        return [*self.name_doubts(), *self._samples.doubts(self._paths).values()]

    def name_doubts(self) -> list[str]:
        """See DataReader: a record, or several columns', by the looks of them."""
        return self._samples.name_doubts(self._paths)

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
        ways = (self._separator, self._named, self._quote, self._comment)
        return f"CsvReader {ways}"

    def _dialect(self, path: str) -> Dialect:
        tabs = unpacked_name(path).endswith(".tsv")
        separator = self._separator or ("\t" if tabs else ",")
        quote = self._quote if len(separator) == 1 else ""
        return Dialect(separator, quote, not self._named, self._comment)
