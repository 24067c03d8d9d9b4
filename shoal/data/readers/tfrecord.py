"""TFRecord files: ranges through an index of blocks, checksums verified.

A record is its length (uint64), the length's checksum (uint32), the data, the data's
checksum (uint32), little-endian. Checksums are CRC-32C, rotated and shifted. The column
`record` holds the data, most often a serialised tf.train.Example for `feed` to parse.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from shoal.data.blocks import READ_BYTES, BlockReader, DamagedError
from shoal.data.checksum import masked_crc

SCHEMA = pa.schema([("record", pa.binary())])

WRONG_LENGTH = "the checksum of the record's length is wrong: damaged, or no TFRecord"
WRONG_DATA = "the checksum of the record's data is wrong"

_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


class TFRecordReader(BlockReader):
    """Reads TFRecord files, plain or gzip'd as a whole; see BlockReader."""

    kind = "tfrecord"

    def _full_schema(self) -> pa.Schema:
        return SCHEMA

    def _scan(self, file: pa.NativeFile) -> Iterator[tuple[int, int]]:
        size = file.size()
        window, begin = b"", 0
        offset = record = 0
        while offset < size:
            if offset + _HEAD.size > begin + len(window):
                window, begin = file.read_at(max(READ_BYTES, _HEAD.size), offset), offset
            if len(window) - (offset - begin) < _HEAD.size:
                raise DamagedError(record, "the file ends within the record")
            length, checksum = _HEAD.unpack_from(window, offset - begin)
            # Without this, a wrong length would send us anywhere.
            if masked_crc(window[offset - begin : offset - begin + 8]) != checksum:
                raise DamagedError(record, WRONG_LENGTH)
            offset += _HEAD.size + length + _CHECKSUM.size
            if offset > size:
                raise DamagedError(record, "the file ends within the record")
            record += 1
            yield 1, offset

    def _decode(
        self, data: bytes, first: int, _count: int, low: int, high: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        records = self._records(data, first, low, high)
        return pa.record_batch([pa.array(records, pa.binary())], schema=schema)

    def _records(self, data: bytes, first: int, low: int, high: int) -> list[bytes]:
        """The records `low` to `high` of a block's bytes; arguments as for `_decode`."""
        offset = 0
        unpack = _LENGTH.unpack_from
        for _ in range(low):
            offset += 16 + unpack(data, offset)[0]
        records = []
        wanted = _CHECKSUM.unpack_from
        for position in range(low, high):
            begin = offset + 12
            offset = begin + unpack(data, offset)[0]
            record = data[begin:offset]
            if masked_crc(record) != wanted(data, offset)[0]:
                raise DamagedError(first + position, WRONG_DATA)
            records.append(record)
            offset += 4
        return records


def records_in(data: bytes) -> Iterator[bytes]:
    """The whole records at the beginning of a file. Raises DamagedError."""
    offset = record = 0
    while offset + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, offset)
        if masked_crc(data[offset : offset + 8]) != checksum:
            raise DamagedError(record, WRONG_LENGTH)
        begin = offset + _HEAD.size
        offset = begin + length + _CHECKSUM.size
        if offset > len(data):
            return
        if masked_crc(data[begin : begin + length]) != _CHECKSUM.unpack_from(data, offset - 4)[0]:
            raise DamagedError(record, WRONG_DATA)
        yield data[begin : begin + length]
        record += 1
