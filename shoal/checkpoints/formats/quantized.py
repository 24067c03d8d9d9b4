"""Rows of an export as int8 values with a float32 scale a row.

Owns the rounding and its bound. Each row is scaled by its largest magnitude, which becomes 127
(symmetric, without a zero point), as in Keras's own int8 embedding and in FBGEMM's rowwise tables.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LARGEST = 127
"""-128 is not used: so that a value and its negative are equally exact."""

Int8 = npt.NDArray[np.int8]
Float32 = npt.NDArray[np.float32]

_LEAST = np.finfo(np.float32).smallest_normal
"""Of a scale: below, a float32 has fewer digits than the bound needs."""


def quantize(rows: Float32) -> tuple[Int8, Float32]:
    """Rows as (values int8 [n, dim], scales float32 [n]).

    rows: float32 [n, dim]. Of each row, |row - values * scale| is at most scale / 2, and the scale
    is the row's largest magnitude / 127, but no less than the least normal float32; 0 for a row of
    zeros. 127 * scale is finite in float32. Raises ValueError for a row with a NaN or an infinity.
    """
    largest = np.abs(rows).max(axis=1, initial=0.0)
    if not np.isfinite(largest).all():
        raise ValueError(f"row {int(np.flatnonzero(~np.isfinite(largest))[0])} is not finite")
    scales = np.maximum(largest / np.float32(LARGEST), _LEAST).astype(np.float32)
    scales[largest == 0] = 0
    # Rounded up, the scale of the largest float32 would make a product that is infinite.
    with np.errstate(over="ignore"):
        beyond = np.isinf(scales * np.float32(LARGEST))
    scales[beyond] = np.nextafter(scales[beyond], np.float32(0))
    # In float64, whose quotient of two float32 is never on the other side of a half.
    divisors = np.where(scales == 0, 1, scales).astype(np.float64)
    return np.rint(rows / divisors[:, None]).astype(np.int8), scales


def dequantize(values: Int8, scales: Float32) -> Float32:
    """The rows that int8 values [n, dim] stand for: float32 [n, dim]."""
    return values.astype(np.float32) * scales[:, None]
