"""Values on the wire and in files: float32, or rounded to 16 bits; the array's dtype says which.

float32; float16; and bfloat16 as its bits, uint16, since NumPy has no type for it. Rounding
is to the nearest, ties to even. What float16 cannot hold becomes its largest number: an
infinity would ruin the row for good.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native.gradients import from_bfloat16, from_float16, to_bfloat16, to_float16

LARGEST_FLOAT16 = np.float32(65504)

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.float16),
}
"""The dtype of an array by the name of what its values are."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encoded(values: Float32, name: str) -> Array:
    """`values` as DTYPES has them under `name`: themselves, or a new array of their shape."""
    if name == "float32":
        return values
    out: Array = np.empty(values.shape, DTYPES[name])
    encode(values, out)
    return out


def encode(values: Float32, out: Array) -> None:
    """Write `values` to `out`, contiguous and of the same shape, as out's dtype has it."""
    if out.dtype == np.float32:
        np.copyto(out, values)
    elif out.dtype == np.uint16:
        to_bfloat16(np.ascontiguousarray(values), out)
    elif out.dtype == np.float16:
        to_float16(np.clip(values, -LARGEST_FLOAT16, LARGEST_FLOAT16), out.view(np.uint16))
    else:
        raise TypeError(f"values do not travel as {out.dtype}")


def scale_of(values: Float32, dtype: np.dtype[Any]) -> float:
    """A power of two by which `values` are divided before they travel as `dtype`; 1 for most.

    float16 has nothing between 0 and 6e-8, where gradients of a minibatch's mean may well be. So
    the largest becomes one of 2^14 to 2^15: what is 2^38 times smaller is lost, and no more.
    """
    if dtype != np.float16 or not values.size:
        return 1.0
    largest = max(float(values.max()), -float(values.min()))
    if not 0.0 < largest < math.inf:
        return 1.0
    return math.ldexp(1.0, max(math.frexp(largest)[1] - 15, -126))


def decode(values: Array, out: Float32 | None = None) -> Float32:
    """`values` as float32: in `out`, or where None in a new array unless they are float32."""
    if values.dtype == np.float32:
        if out is None:
            return values
        np.copyto(out, values)
        return out
    if values.dtype == np.uint16:
        return from_bfloat16(values, out)
    if values.dtype == np.float16:
        return from_float16(values.view(np.uint16), out)
    raise TypeError(f"values do not travel as {values.dtype}")
