"""The array helpers that the extensions share: checks of arguments, and memory that is aligned."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes. TensorFlow takes an array as a tensor without a copy only at a multiple of them."""


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of any values that begins at a multiple of ALIGNMENT, which np.empty does not."""
    return _aligned(np.empty, shape, dtype)


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of zeros, aligned as that of `aligned_empty`."""
    return _aligned(np.zeros, shape, dtype)


def _aligned(make: Any, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    count = math.prod(shape) * np.dtype(dtype).itemsize
    memory = make(count + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    array: npt.NDArray[Any] = memory[first : first + count].view(dtype).reshape(shape)
    return array


def require(
    name: str, value: Any, dtype: type, shape: tuple[int | None, ...], writable: bool = False
) -> Any:
    """Return ``value`` if it is a C-contiguous array of this dtype and shape (None: any).

    Raises TypeError for something that is not such an array, ValueError for a wrong
    shape, memory layout or a read-only array where one is written.
    """
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {type(value).__name__}")
    if value.dtype != dtype:
        raise TypeError(f"{name} must be of dtype {np.dtype(dtype)}, not {value.dtype}")
    if value.ndim != len(shape) or any(
        want is not None and want != got for want, got in zip(shape, value.shape, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} must have shape ({wanted}), not {value.shape}")
    flags = value.flags
    if not flags.c_contiguous or not flags.aligned:
        raise ValueError(f"{name} must be contiguous and aligned")
    if writable and not flags.writeable:
        raise ValueError(f"{name} must be writable")
    return value


MAX_BOUNDS = 4096
"""Steps among which a scan finds the places of rows, at most."""

CELL_BITS = 13
"""So many cells at most, twice as many as bounds, are looked up to find a step among bounds."""


def cells_of(bounds: npt.NDArray[np.int64]) -> tuple[int, npt.NDArray[np.uint16]]:
    """The cells of ascending steps as native/census.h looks them up.

    bounds: int64 [b]. Returns the shift by which a step less the first one is its cell, and the
    number of bounds up to the first step of each cell, uint16 [c]. Raises ValueError.
    """
    if len(bounds) > MAX_BOUNDS:
        raise ValueError(f"bounds: at most {MAX_BOUNDS} are counted by, got {len(bounds)}")
    if (np.diff(bounds) < 0).any():
        raise ValueError("bounds must ascend")
    if not len(bounds):
        return 0, np.empty(0, np.uint16)
    span = int(bounds[-1]) - int(bounds[0])
    shift = max(0, span.bit_length() - CELL_BITS)
    cells = np.arange((span >> shift) + 1, dtype=np.int64) << shift
    return shift, np.searchsorted(bounds, bounds[0] + cells, side="right").astype(np.uint16)
