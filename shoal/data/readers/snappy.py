"""Snappy's framing format, over the raw blocks that Arrow packs and unpacks.

A stream is a sequence of chunks: a type byte, a length of three bytes, the body. Type
0xff opens a stream, 0x00 is packed data and 0x01 data as they are, both behind a
checksum of the unpacked data (CRC-32C, rotated and shifted); 0x80 to 0xfe are skipped.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from shoal.data.checksum import masked_crc

OPENING = b"\xff\x06\x00\x00sNaPpY"
PIECE_BYTES = 65_536
"""Unpacked bytes in a chunk at most; the format's limit."""

_PACKED, _PLAIN, _FIRST_SKIPPABLE = 0x00, 0x01, 0x80


def pack(data: bytes) -> bytes:
    """A stream that holds `data`."""
    codec = pa.Codec("snappy")
    parts = [OPENING]
    for begin in range(0, len(data), PIECE_BYTES):
        piece = data[begin : begin + PIECE_BYTES]
        packed = codec.compress(piece, asbytes=True)
        kind, body = (_PACKED, packed) if len(packed) < len(piece) else (_PLAIN, piece)
        parts.append(struct.pack("<II", kind | (len(body) + 4) << 8, masked_crc(piece)))
        parts.append(body)
    return b"".join(parts)


def unpack(stream: bytes) -> bytes:
    """The data of a stream. Raises ValueError if it is damaged."""
    codec = pa.Codec("snappy")
    parts = []
    offset = 0
    while offset < len(stream):
        if len(stream) - offset < 4:
            raise ValueError("the snappy stream ends within a chunk's head")
        (head,) = struct.unpack_from("<I", stream, offset)
        kind, length = head & 0xFF, head >> 8
        body = stream[offset + 4 : offset + 4 + length]
        offset += 4 + length
        if len(body) < length:
            raise ValueError("the snappy stream ends within a chunk")
        if kind in (_PACKED, _PLAIN):
            data = body[4:]
            if kind == _PACKED:
                try:
                    data = codec.decompress(data, _unpacked_size(data), asbytes=True)
                except pa.ArrowException as error:
                    raise ValueError(str(error)) from error
            if masked_crc(data) != struct.unpack_from("<I", body)[0]:
                raise ValueError("the checksum of a snappy chunk is wrong")
            parts.append(data)
        elif kind < _FIRST_SKIPPABLE:
            raise ValueError(f"a snappy chunk is of the unknown type {kind:#x}")
    return b"".join(parts)


def _unpacked_size(block: bytes) -> int:
    """The size that a raw block states: seven bits a byte, the lowest first."""
    size = 0
    for position, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return min(size, PIECE_BYTES)
    raise ValueError("a snappy block does not tell its size")
