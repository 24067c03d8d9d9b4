"""The masked CRC-32C of TFRecord and of Snappy's framing format."""

from __future__ import annotations

import google_crc32c


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated right by 15 bits and shifted by a constant, as both formats store it."""
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
