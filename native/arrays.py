"""Argument checks shared by the extensions: one clear error that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np


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
