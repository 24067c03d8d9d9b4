"""Row groups of a Parquet file: where their records and bytes are, and reading them in order."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.data.reader import CHUNK_ROWS, Source, units_of

TOGETHER_ROWS = 4 * CHUNK_ROWS
"""Rows of small row groups that one call decodes: it costs as much as some thousand values."""

TOGETHER_BYTES = 4 << 20
"""Most bytes of them, as they are encoded."""


@dataclass(frozen=True)
class RowGroups:
    """A file and its row groups.

    names: of the file's columns, by what these are called here. ends, bytes: of each row group, the
    position behind its last record, and how much it holds without compression. stamp: of the file
    then.
    """

    footer: pq.FileMetaData
    names: Mapping[str, str]
    ends: Sequence[int]
    bytes: Sequence[int]
    stamp: str

    @classmethod
    def of(cls, footer: pq.FileMetaData, names: Mapping[str, str], stamp: str) -> RowGroups:
        """Read the facts of a footer. Raises ArrowInvalid where it contradicts itself."""
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        rows = [group.num_rows for group in groups]
        if min(rows, default=0) < 0 or sum(rows) != footer.num_rows:
            raise pa.ArrowInvalid(
                f"the footer says {footer.num_rows} rows, and of its row groups {sum(rows)}"
            )
        sizes = [group.total_byte_size for group in groups]
        return cls(footer, names, list(itertools.accumulate(rows)), sizes, stamp)

    def having(self, names: Sequence[str]) -> list[str]:
        """The columns that the file has; its first column if it has none, to count the records."""
        return [name for name in names if name in self.names] or [*self.names][:1]

    def source(self, path: str) -> Source:
        """The source that this file is."""
        begins = map(self.begin, range(len(self.ends)))
        lengths = [end - begin for begin, end in zip(begins, self.ends, strict=True)]
        return Source(path, int(self.footer.num_rows), units_of(lengths))

    def group_of(self, record: int) -> int:
        """The row group that holds a record."""
        return bisect.bisect_right(self.ends, record)

    def begin(self, group: int) -> int:
        """The position of a row group's first record."""
        return self.ends[group - 1] if group else 0

    def chunks(
        self, groups: Iterable[int], columns: Sequence[str] | None
    ) -> Iterator[tuple[int, int]]:
        """The bytes of the columns of some row groups."""
        wanted = None if columns is None else set(columns)
        places: list[int] | None = None
        for group in groups:
            row_group = self.footer.row_group(group)
            if places is None:
                places = [
                    place
                    for place in range(row_group.num_columns)
                    if wanted is None or _is_of(row_group.column(place).path_in_schema, wanted)
                ]
            for place in places:
                chunk = row_group.column(place)
                begin = chunk.data_page_offset
                if chunk.has_dictionary_page:
                    begin = min(begin, chunk.dictionary_page_offset)
                yield begin, begin + chunk.total_compressed_size

    def together(self, groups: range) -> range:
        """The first of some row groups, and those behind it that are decoded with it."""
        first, held = self.begin(groups[0]), 0
        for number, group in enumerate(groups):
            held += self.bytes[group]
            rows = self.ends[group] - first
            if number and (rows > TOGETHER_ROWS or held > TOGETHER_BYTES):
                return groups[:number]
        return groups


def _is_of(path: str, columns: Collection[str]) -> bool:
    """True if a path in the schema belongs to one of these columns."""
    parts = path.split(".")
    return any(".".join(parts[:end]) in columns for end in range(1, len(parts) + 1))


class Reading:
    """The records of some row groups of a file, from the first on.

    key: what is read. position: of the next record. end: behind the last one. rows: the first of
    those that are being decoded, and the one behind them. fresh: whether something was decoded for
    what was taken last.
    """

    def __init__(
        self,
        key: tuple[Any, ...],
        file: RowGroups,
        groups: range,
        opened: pq.ParquetFile,
        columns: Sequence[str] | None,
    ) -> None:
        self.key = key
        self.position = file.begin(groups[0])
        self.end = file.ends[groups[-1]]
        self.rows = [self.position, self.end]
        self.fresh = False
        self._batches = _decoded(file, groups, opened, columns, self.rows)
        self._rest: pa.RecordBatch | None = None

    def take(self, begin: int, end: int) -> pa.RecordBatch:
        """The next records of a range that begins within the row groups, one at least.

        What is before the range is passed over. Raises as Arrow does, and as `_decoded`.
        """
        self.fresh = False
        while True:
            rest = self._rest
            if rest is None or not rest.num_rows:
                rest, self.fresh = next(self._batches), True
            until = end if self.position >= begin else begin
            piece = rest.slice(0, until - self.position)
            self._rest = rest.slice(piece.num_rows)
            self.position += piece.num_rows
            if self.position > begin and piece.num_rows:
                return piece


def _decoded(
    file: RowGroups,
    groups: range,
    opened: pq.ParquetFile,
    columns: Sequence[str] | None,
    decoding: list[int],
) -> Iterator[pa.RecordBatch]:
    """The records of row groups. Raises ArrowInvalid where these have not as many as they say.

    decoding: is kept as `Reading.rows`; a `Reading` that this held would hold the footer until
    Python looks for circles.

    The pages tell how many there are, and the footer where the next group's records begin.
    """
    while groups:
        together = file.together(groups)
        groups = groups[len(together) :]
        first, end = file.begin(together[0]), file.ends[together[-1]]
        large = len(together) == 1
        decoding[:] = first, min(first + CHUNK_ROWS, end) if large else end
        rows = 0
        held: list[pa.RecordBatch] = []
        for batch in opened.iter_batches(
            batch_size=CHUNK_ROWS, row_groups=together, columns=columns, use_threads=False
        ):
            rows += batch.num_rows
            if large:
                decoding[:] = first + rows, min(first + rows + CHUNK_ROWS, end)
                yield batch
            else:
                held.append(batch)  # none is taken before all are counted
        if rows != end - first:
            which = f"row groups {together[0]} to {together[-1]} have"
            if large:
                which = f"row group {together[0]} has"
            raise pa.ArrowInvalid(f"{which} {rows} rows, and the footer says {end - first}")
        yield from held
