"""The beginnings of records in a CSV file: found in one pass, kept every few records.

Owns finding record boundaries (quotes, empty lines, line ends) and knows nothing of
the fields' values. Per block of bytes a few NumPy passes, no Python per record. The
rules are those of RFC 4180 as Arrow reads them: a quote opens only at the beginning
of a field, two quotes inside stand for one, empty lines are no records. Where Arrow
would guess (a quote inside an unquoted field), the file is refused, so that both
always agree on what a record is.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import Error

BLOCK_BYTES = 4 << 20
"""Bytes scanned at a time: large enough to hide the calls, small in memory."""

STRIDE = 1024
"""Records between two entries of the index: a range's begin costs a scan of so many."""

LINE_FEED, CARRIAGE_RETURN = (ord(c) for c in "\n\r")

BYTE_ORDER_MARK = codecs.BOM_UTF8
PARQUET = b"PAR1"
"""What a Parquet file begins with."""

LONE_RETURN = "there is a carriage return without a line feed"

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dialect:
    """The form of a CSV file.

    separator: between two fields; of several characters only without quotes.
    quote: the character that holds a field together; "" for none. header: whether a line of names
    is first. comment: the character with which lines begin that are no records; "" for none.
    """

    separator: str = ","
    quote: str = '"'
    header: bool = True
    comment: str = ""


class MalformedCsvError(Error):
    """The bytes are not CSV. `record` counts from 1; the header is record 0."""

    def __init__(self, record: int, message: str) -> None:
        super().__init__(record, message)
        self.record = record
        self.message = message


def scan(
    file: pa.NativeFile, start: int, end: int, first: int, dialect: Dialect
) -> Iterator[tuple[Offsets, Offsets]]:
    """Yield (begins, ends) of the records whose bytes lie in [start, end).

    Each pair comes from one block of bytes; both int64 [records in the block], byte
    offsets in the file, an end standing behind the line's end. `start` must be the
    begin of a record. `first` is the number of that record, for errors.

    Raises MalformedCsvError.
    """
    record_begin = position = start
    in_quotes = in_comment = False
    previous = LINE_FEED  # the byte before the block
    comment_began = False  # the record at record_begin is one
    record = first
    while position < end:
        block = np.frombuffer(file.read_at(min(BLOCK_BYTES, end - position), position), np.uint8)
        if not len(block):
            break
        line_feeds = np.flatnonzero(block == LINE_FEED)
        quotes = np.flatnonzero(block == ord(dialect.quote)) if dialect.quote else line_feeds[:0]
        comments = line_feeds[:0]
        if dialect.comment:
            comments, quotes, in_comment = _comments(
                block, line_feeds, quotes, dialect, (in_quotes, in_comment, previous)
            )
        if len(quotes) or in_quotes:
            # A line feed is inside quotes if an odd number of quotes stands before it.
            before = np.searchsorted(quotes, line_feeds)
            line_feeds = line_feeds[(before + in_quotes) % 2 == 0]
        fault = _first_fault(block, quotes, in_quotes, previous, dialect)
        ends = line_feeds + (position + 1)
        in_quotes = bool((len(quotes) + in_quotes) % 2)
        last_byte = int(block[-1])
        if len(ends):
            begins = np.concatenate(([record_begin], ends[:-1]))
            record_begin = int(ends[-1])
            lengths = ends - begins
            # The byte before the line feed; a record of one byte has none that counts.
            behind = np.maximum(line_feeds - 1, 0)
            after_return = np.where(line_feeds > 0, block[behind], previous) == CARRIAGE_RETURN
            full = lengths > 1 + after_return
            if dialect.comment:
                full &= ~np.isin(begins, comments + position)
                full[0] &= not comment_began
                comment_began = record_begin - position in comments
            begins, ends = begins[full], ends[full]
        elif dialect.comment and record_begin - position in comments:
            comment_began = True
        if fault is not None:
            where, message = fault
            whole = int(np.searchsorted(ends, position + where, "right"))
            raise MalformedCsvError(record + whole, message)
        if len(ends):
            record += len(ends)
            yield begins.astype(np.int64), ends.astype(np.int64)
        previous = last_byte
        position += len(block)
    if in_quotes:
        raise MalformedCsvError(
            record,
            "a quoted field is never closed: close it, or give --csv-quotes none where quotes "
            "are ordinary characters",
        )
    left = position - record_begin - (previous == CARRIAGE_RETURN)
    if left > 0 and not comment_began:  # the last line has no line feed
        yield np.array([record_begin], np.int64), np.array([position], np.int64)


def _first_fault(
    block: npt.NDArray[np.uint8],
    quotes: npt.NDArray[np.intp],
    in_quotes: bool,
    previous: int,
    dialect: Dialect,
) -> tuple[int, str] | None:
    """The place and reason of the first fault by RFC 4180 in the block; None if there is none."""
    faults: list[tuple[int, str]] = []
    if len(quotes):
        opening = quotes[1 if in_quotes else 0 :: 2]
        before = np.where(opening > 0, block[np.maximum(opening - 1, 0)], previous)
        # A quote before it closes and opens at once: an escaped quote.
        wrong = opening[~np.isin(before, (ord(dialect.separator), LINE_FEED, ord(dialect.quote)))]
        if len(wrong):
            other = chr(int(before[np.searchsorted(opening, wrong[0])]))
            hint = ""
            if other in ";\t|,":
                given = "tab" if other == "\t" else f"'{other}'"
                hint = f"if {given} separates the fields, give --csv-separator {given}; else "
            faults.append(
                (
                    int(wrong[0]),
                    f"there is a {dialect.quote} inside an unquoted field; {hint}quote the field "
                    f"and double the {dialect.quote}, or read quotes as other characters, with "
                    "--csv-quotes none",
                )
            )
    returns = np.flatnonzero(block == CARRIAGE_RETURN)
    if len(returns):
        outside = (np.searchsorted(quotes, returns) + in_quotes) % 2 == 0
        returns = returns[outside]
        after = block[np.minimum(returns + 1, len(block) - 1)]
        lone = returns[(after != LINE_FEED) & (returns + 1 < len(block))]
        faults += [(int(where), LONE_RETURN) for where in lone[:1]]
    if previous == CARRIAGE_RETURN and not in_quotes and block[0] != LINE_FEED:
        faults.append((0, LONE_RETURN))
    return min(faults, default=None)


def _comments(
    block: npt.NDArray[np.uint8],
    line_feeds: npt.NDArray[np.intp],
    quotes: npt.NDArray[np.intp],
    dialect: Dialect,
    before: tuple[bool, bool, int],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], bool]:
    """The beginnings of comments, the quotes outside them, and whether the block ends in one.

    before: whether the block begins within quotes, or within a comment, and the byte before it.
    """
    in_quotes, in_comment, previous = before
    begins = np.flatnonzero(block == ord(dialect.comment))
    behind = np.where(begins > 0, block[np.maximum(begins - 1, 0)], previous)
    begins = begins[behind == LINE_FEED]
    starts = [-1, *begins.tolist()] if in_comment else begins.tolist()
    found = []
    ends_within = False
    for start in starts:
        # What is within quotes is no comment; quotes within earlier comments are gone already.
        if start >= 0 and (int(np.searchsorted(quotes, start)) + in_quotes) % 2:
            continue
        following = int(np.searchsorted(line_feeds, start, "right"))
        end = int(line_feeds[following]) if following < len(line_feeds) else len(block)
        ends_within = following == len(line_feeds)
        quotes = quotes[(quotes < start) | (quotes > end)]
        if start >= 0:
            found.append(start)
    return np.array(found, np.intp), quotes, ends_within


@dataclass(frozen=True)
class CsvIndex:
    """Boundaries of one file's records.

    header: bytes [begin, end) of the header line; (0, 0) if there is none.
    records: how many records follow it.
    begins: int64, the byte offset of every STRIDE-th record, and the file's size.
    longest: bytes of the longest record.
    """

    header: tuple[int, int]
    records: int
    begins: Offsets
    longest: int
    dialect: Dialect

    @classmethod
    def build(cls, file: pa.NativeFile, dialect: Dialect, most: int | None = None) -> CsvIndex:
        """One pass over the file. Raises MalformedCsvError.

        most: end behind so many records or some more, as if the file ended there.
        """
        size = file.size()
        header: tuple[int, int] | None = None
        records = longest = 0
        kept: list[Offsets] = []
        first = 0 if dialect.header else 1
        for all_begins, all_ends in scan(file, cls.text_begin(file), size, first, dialect):
            headers = 0
            if dialect.header and header is None and len(all_begins):
                header = (int(all_begins[0]), int(all_ends[0]))
                headers = 1
            begins, ends = all_begins[headers:], all_ends[headers:]
            if not len(begins):
                continue
            kept.append(begins[-records % STRIDE :: STRIDE])
            longest = max(longest, int((ends - begins).max()))
            records += len(begins)
            if most is not None and records >= most:
                size = int(ends[-1])
                break
        return cls(
            header or (0, 0),
            records,
            np.concatenate([*kept, np.array([size], np.int64)]),
            longest,
            dialect,
        )

    @classmethod
    def of_table(cls, table: pa.Table, dialect: Dialect) -> CsvIndex:
        """From what `table` gave."""
        begin, end, records, longest, *begins = table["number"].to_numpy()
        kept = np.array(begins, np.int64)
        return cls((int(begin), int(end)), int(records), kept, int(longest), dialect)

    def table(self) -> pa.Table:
        """For the index store: header, count, longest record, and then the begins."""
        first = np.array([*self.header, self.records, self.longest], np.int64)
        return pa.table({"number": np.concatenate([first, self.begins])})

    @staticmethod
    def text_begin(file: pa.NativeFile) -> int:
        """The offset behind a byte order mark. Raises MalformedCsvError for UTF-16 and Parquet."""
        mark = len(BYTE_ORDER_MARK)
        if (first := file.read_at(len(PARQUET), 0)) == PARQUET:
            raise MalformedCsvError(
                0, "the file is Parquet: call it .parquet, or give --data-format parquet"
            )
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise MalformedCsvError(
                0,
                "the text looks like UTF-16: write the file anew in UTF-8, as "
                "iconv -f utf-16 -t utf-8 does",
            )
        return mark if first.startswith(BYTE_ORDER_MARK) else 0

    def window(self, file: pa.NativeFile, start: int, end: int) -> tuple[int, int]:
        """Bytes [begin, end) of the records [start, end), of which there is one at least."""
        return self._begin(file, start), self._begin(file, end)

    def _begin(self, file: pa.NativeFile, record: int) -> int:
        entry, rest = divmod(record, STRIDE)
        if record >= self.records or rest == 0:
            return int(self.begins[-1] if record >= self.records else self.begins[entry])
        begin, end = int(self.begins[entry]), int(self.begins[entry + 1])
        for begins, _ in scan(file, begin, end, entry * STRIDE + 1, self.dialect):
            if rest < len(begins):
                return int(begins[rest])
            rest -= len(begins)
        raise MalformedCsvError(record + 1, "the file changed while it was read")
