"""Files of records one after the other, read by blocks.

Owns what such formats share: an index of blocks (some 256 KiB each, or one record if it
is longer), ranges cut from blocks, and the count. What a block holds is the format's
module's: tfrecord.py, recordio.py, lines.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.data.file_reader import FileReader
from shoal.data.places.index_store import KEPT
from shoal.data.places.recent import Recent
from shoal.data.places.storage import reporting
from shoal.data.reader import Source, check_range
from shoal.errors import Error, UserError

BLOCK_BYTES = 1 << 18
"""Least bytes in a block but the last: what a range decodes in vain at either end stays
small."""

RUN_BYTES = 2 << 20
"""Most bytes of blocks that are read and decoded at once, unless one block has more: enough
for the calls not to count."""

READ_BYTES = 4 << 20
"""Bytes read at a time when a file is indexed."""

Int64 = npt.NDArray[np.int64]


class DamagedError(Error):
    """A record is not as its format says. `record` is its position in the file, from 0."""

    def __init__(self, record: int, message: str) -> None:
        super().__init__(record, message)
        self.record = record
        self.message = message


@dataclass(frozen=True)
class BlockIndex:
    """The positions of a file's blocks; both arrays end with the end of the file.

    records: the position of each block's first record. offsets: of its first byte.
    """

    records: Int64
    offsets: Int64

    @classmethod
    def of_table(cls, table: pa.Table) -> BlockIndex:
        """From what `table` gave."""
        return cls(table["record"].to_numpy(), table["offset"].to_numpy())

    def table(self) -> pa.Table:
        """For the index store."""
        return pa.table({"record": self.records, "offset": self.offsets})

    @property
    def count(self) -> int:
        """Records in the file."""
        return int(self.records[-1])

    def covering(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Runs of neighbouring blocks that hold a range, in order.

        Gives (first record, records, first byte, last byte + 1) of each.
        """
        if start == end:
            return
        block = int(np.searchsorted(self.records, start, "right")) - 1
        last = int(np.searchsorted(self.records, end))  # its first record is behind the range
        while block < last:
            most = int(np.searchsorted(self.offsets, self.offsets[block] + RUN_BYTES, "right")) - 1
            stop = min(max(most, block + 1), last)
            first = int(self.records[block])
            count = int(self.records[stop]) - first
            if count:  # blocks may hold blank lines only
                yield first, count, int(self.offsets[block]), int(self.offsets[stop])
            block = stop


class BlockReader(FileReader):
    """Reads files by blocks, in the format of the class derived; see FileReader."""

    kind = ""
    """Of the index: one per format."""

    def __init__(self, pattern: str, **options: Any) -> None:
        super().__init__(pattern, **options)
        self._indexes: Recent[str, BlockIndex] = Recent(KEPT)

    def _count(self, path: str) -> int:
        # By the index, which costs one pass over the file.
        return self._index(path).count

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield a RecordBatch for each run of blocks."""
        schema = self._checked_schema()
        self._forget_changed(source, self._indexes)
        index = self._index(source)
        check_range(Source(source, index.count), start, end)
        runs = list(index.covering(start, end))
        with reporting_rows(source):
            self._storage.expect(source, [(begin, stop) for _, _, begin, stop in runs])
        for first, count, begin, stop in runs:
            with reporting_rows(source):
                data = self._storage.open(source).read_at(stop - begin, begin)
                if len(data) != stop - begin:
                    raise UserError(f"{source}: the file became shorter while it was read")
                low, high = max(start, first) - first, min(end, first + count) - first
                batch = self._decode(data, first, count, low, high, schema)
            yield batch

    def head(self, records: int) -> tuple[str, list[pa.RecordBatch]]:
        """See DataReader: needs no index."""
        schema = self._checked_schema()
        for path in self._paths:
            with reporting_rows(path):
                file = self._storage.open(path)
                count = end = 0
                for number, stop in self._scan(file):
                    count, end = count + number, stop
                    if count >= records:
                        break
                if count:
                    high = min(count, records)
                    return path, [self._decode(file.read_at(end, 0), 0, count, 0, high, schema)]
        return super().head(records)  # raises, as there is none

    def place(self, source: str, record: int) -> str:
        """See DataReader; with the byte at which the block that holds it begins."""
        first, _, begin, _ = next(self._index(source).covering(record, record + 1))
        where = f"{record - first} records behind byte {begin}"
        return f"record {record} (row {record + 1}, {where})"

    @abstractmethod
    def _scan(self, file: pa.NativeFile) -> Iterator[tuple[int, int]]:
        """Yield (records, end offset) of runs of records, in order; blocks are made of them.

        Raises DamagedError.
        """

    @abstractmethod
    def _decode(
        self, data: bytes, first: int, count: int, low: int, high: int, schema: pa.Schema, /
    ) -> pa.RecordBatch:
        """The records [low, high) of a run of blocks.

        data: the blocks, which hold `count` records. first: the position in the file of the
            first of them.
        Raises DamagedError.
        """

    def _index(self, path: str) -> BlockIndex:
        def found() -> BlockIndex:
            with reporting_rows(path):
                stamp = self._storage.stamp(path)
                table = self._store.get(self.kind, path, stamp, lambda: self._build(path))
            index = BlockIndex.of_table(table)
            self._store.check(Source(path, index.count), stamp)
            self._noted(path, stamp)
            return index

        return self._indexes.get(path, found)

    def _build(self, path: str) -> pa.Table:
        records, offsets = [0], [0]
        count = end = 0
        file = self._storage.open(path)
        self._storage.expect(path, [(0, file.size())])
        for number, stop in self._scan(file):
            count, end = count + number, stop
            if end - offsets[-1] >= BLOCK_BYTES:
                records.append(count)
                offsets.append(end)
        if records[-1] != count or len(records) == 1:
            records.append(count)
            offsets.append(end)
        return BlockIndex(np.array(records, np.int64), np.array(offsets, np.int64)).table()


@contextmanager
def reporting_rows(path: str) -> Iterator[None]:
    """Turns errors in reading into a UserError naming the file and, if known, the row."""
    with reporting(path):
        try:
            yield
        except DamagedError as error:
            raise UserError(f"{path}: row {error.record + 1}: {error.message}") from error
