"""The bytes of CSV records as Arrow can read them, and its errors in the user's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.csv as pacsv

from shoal.data.csv.csv_index import Dialect, MalformedCsvError, scan
from shoal.data.places.storage import reporting
from shoal.errors import UserError

TYPES_HINT = "; see CsvReader(column_types=...) for how to set types"

FIELD = "\x1f"
"""What stands for a separator of several characters, which Arrow does not know."""

IN_UTF_8 = "write the file anew in UTF-8, as iconv -f latin1 -t utf-8 does"


def stream_of(file: pa.NativeFile, begin: int, end: int, dialect: Dialect) -> pa.NativeFile:
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


class Blocks:
    """A stream for Arrow that ends no block between a carriage return and what follows it.

    Arrow drops a line feed at the beginning of the block behind, also within quotes.
    hexadecimal: whether what was read has 0x in it.
    """

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._kept = b""
        self._last = b""
        self.hexadecimal = False

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        kept, self._kept = self._kept, b""
        data: bytes = kept + self._stream.read(size - len(kept) if size >= 0 else None)
        if len(data) > 1 and data.endswith(b"\r"):
            data, self._kept = data[:-1], b"\r"
        # One letter is found many times faster than two.
        if not self.hexadecimal and (b"x" in data or b"X" in data):
            text = self._last + data
            self.hexadecimal = b"0x" in text or b"0X" in text
        self._last = data[-1:]
        return data

    def close(self) -> None:
        """Read nothing more."""
        self.closed = True


def parsing(dialect: Dialect) -> pacsv.ParseOptions:
    """A dialect, as Arrow takes it for what `stream_of` gives."""
    return pacsv.ParseOptions(
        delimiter=dialect.separator if len(dialect.separator) == 1 else FIELD,
        quote_char=dialect.quote or False,
        newlines_in_values=bool(dialect.quote),
    )


@contextmanager
def reporting_rows(path: str, start: int = 0, names: Sequence[str] = ()) -> Iterator[None]:
    """Turns errors in reading into a UserError naming the file and, if known, row and column.

    start: the number of records before the first that is read; rows count from 1,
    without the header. names: of the columns.
    """
    with reporting(path):
        try:
            yield
        except MalformedCsvError as error:
            where = f"row {error.record}" if error.record else "header"
            raise UserError(f"{path}: {where}: {error.message}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: the header is not UTF-8 text: {IN_UTF_8}") from error
        except pa.ArrowInvalid as error:
            text = numbered(str(error), start, names)
            mend = "; mend the row, or remove it" if "Expected" in text else ""
            raise UserError(f"{path}: {text}{mend}") from error


def numbered(text: str, start: int, names: Sequence[str] = ()) -> str:
    """Arrow's message, with the row's number in the file where it tells one."""
    row = re.search(r"Row #(\d+): ", text)
    place = f"row {start + int(row[1])}: " if row else ""
    if row:
        text = text.replace(row[0], "")
    text = text.replace(FIELD, " ")
    return place + _plain(text, re.search(r"In CSV column #(\d+): ", text), names)


def _plain(text: str, column: re.Match[str] | None, names: Sequence[str]) -> str:
    """Arrow's message in the user's words; columns count from 1."""
    text = text.removeprefix("CSV parse error: ")
    if column:
        number = int(column[1])
        which = repr(names[number]) if number < len(names) else str(number + 1)
        text = text.replace(column[0], f"column {which}: ")
        if text.endswith("invalid UTF8 data"):
            return f"column {which} is not UTF-8 text: {IN_UTF_8}"
        text += (
            "; types are guessed from the file's beginning: mend the value, or set the type with "
            "CsvReader(column_types=...)"
        )
    return text
