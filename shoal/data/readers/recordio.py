"""RecordIO files, the format of the library pyrecordio: read and written.

A file is a sequence of chunks. A chunk is a head of five little-endian uint32 (magic
number, checksum, compressor, bytes of the body, records), then the body: for each
record its length (uint32) and its data, compressed as a whole. The checksum is CRC-32
of the compressed body. Compressors: 0 none, 1 snappy (framed), 2 gzip. The column
`record` holds the data.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa

from shoal.data.blocks import BlockReader, DamagedError
from shoal.data.readers import snappy

SCHEMA = pa.schema([("record", pa.binary())])

MAGIC = 0x01020304
NONE, SNAPPY, GZIP = 0, 1, 2
COMPRESSORS = {"none": NONE, "snappy": SNAPPY, "gzip": GZIP}

CHUNK_BYTES = 1 << 20
"""Bytes of records from which the writer closes a chunk: a range decodes whole chunks."""

_HEAD = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")


class RecordIOReader(BlockReader):
    """Reads RecordIO files; see BlockReader. A chunk is decoded whole."""

    kind = "recordio"

    def _full_schema(self) -> pa.Schema:
        return SCHEMA

    def _scan(self, file: pa.NativeFile) -> Iterator[tuple[int, int]]:
        size = file.size()
        offset = record = 0
        while offset < size:
            head = file.read_at(_HEAD.size, offset)
            _, checksum, compressor, length, count = _head(head, 0, record)
            begin, offset = offset + _HEAD.size, offset + _HEAD.size + length
            if offset > size:
                raise DamagedError(record, "the file ends within the chunk of this record")
            if not count:  # no range has it; no checksum is of the head, which may be wrong
                body = file.read_at(length, begin)
                _records(_body(body, checksum, compressor, record), 0, record)
            record += count
            yield count, offset

    def _decode(
        self, data: bytes, first: int, _count: int, low: int, high: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        records: list[bytes] = []
        offset = chunk_first = 0
        while chunk_first < high:
            _, checksum, compressor, length, count = _head(data, offset, first + chunk_first)
            offset += _HEAD.size
            if chunk_first + count > low:
                body = _body(
                    data[offset : offset + length], checksum, compressor, first + chunk_first
                )
                records += _records(body, count, first + chunk_first)[
                    max(low - chunk_first, 0) : high - chunk_first
                ]
            offset += length
            chunk_first += count
        return pa.record_batch([pa.array(records, pa.binary())], schema=schema)


def _head(data: bytes, offset: int, record: int) -> tuple[int, ...]:
    """The five numbers of a chunk's head. Raises DamagedError."""
    if len(data) - offset < _HEAD.size:
        raise DamagedError(record, "the file ends within the head of a chunk")
    head = _HEAD.unpack_from(data, offset)
    if head[0] != MAGIC:
        raise DamagedError(
            record,
            f"no chunk begins where one should (magic number {head[0]:#x}): "
            "damaged, or not a RecordIO file",
        )
    return head


def _body(packed: bytes, checksum: int, compressor: int, record: int) -> bytes:
    """The body of a chunk, unpacked. Raises DamagedError."""
    if zlib.crc32(packed) != checksum:
        raise DamagedError(record, "the checksum of the chunk that begins here is wrong")
    try:
        if compressor == NONE:
            return packed
        if compressor == SNAPPY:
            return snappy.unpack(packed)
        if compressor == GZIP:
            return gzip.decompress(packed)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DamagedError(record, f"the chunk that begins here is damaged: {error}") from error
    raise DamagedError(record, f"the chunk's compressor {compressor} is none that RecordIO has")


def _records(body: bytes, count: int, first: int) -> list[bytes]:
    """All records of a chunk. Raises DamagedError."""
    records = []
    offset, size = 0, len(body)
    unpack = _LENGTH.unpack_from
    for position in range(count):
        begin = offset + 4
        if begin > size or (offset := begin + unpack(body, offset)[0]) > size:
            raise DamagedError(first + position, "the record is longer than its chunk")
        records.append(body[begin:offset])
    if offset < size:
        raise DamagedError(first, "the chunk that begins here has more records than its head says")
    return records


class RecordIOWriter:
    """Writes a RecordIO file; a context manager.

    compressor: "snappy" (as pyrecordio writes), "gzip" or "none".
    chunk_bytes: bytes of records from which a chunk is closed.

    Raises ValueError for an unknown compressor.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compressor: str = "snappy",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        if compressor not in COMPRESSORS:
            raise ValueError(f"compressor must be one of {', '.join(COMPRESSORS)}")
        self._compressor = COMPRESSORS[compressor]
        self._chunk_bytes = chunk_bytes
        self._records: list[bytes] = []
        self._bytes = 0
        self._file = open(path, "wb")  # noqa: SIM115, closed by close()

    def __enter__(self) -> RecordIOWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, record: bytes) -> None:
        """Add a record."""
        self._records.append(bytes(record))
        self._bytes += len(record)
        if self._bytes >= self._chunk_bytes:
            self._flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        if not self._file.closed:
            self._flush()
            self._file.close()

    def _flush(self) -> None:
        if not self._records:
            return
        body = b"".join(
            part for record in self._records for part in (_LENGTH.pack(len(record)), record)
        )
        if self._compressor == SNAPPY:
            body = snappy.pack(body)
        elif self._compressor == GZIP:
            body = gzip.compress(body)
        head = (MAGIC, zlib.crc32(body), self._compressor, len(body), len(self._records))
        self._file.write(_HEAD.pack(*head) + body)
        self._records, self._bytes = [], 0
