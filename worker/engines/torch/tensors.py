"""Arrays of a batch as the tensors that a module gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.nested import mapped
from shoal.errors import UserError

_TAKEN = {np.dtype(np.float64): np.float32, np.dtype(np.uint64): np.int64}
_TAKEN |= {np.dtype(np.uint32): np.int64, np.dtype(np.uint16): np.int32}
"""Types of columns -> those of tensors. PyTorch's modules compute in float32 and take signed ids."""


def dtype_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the tensor that an array of a type becomes. Texts become ids."""
    return np.dtype(np.int64) if dtype.kind in "OSU" else np.dtype(_TAKEN.get(dtype, dtype))


def tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """An array as a tensor of the memory that it has, if it may be written to.

    Floats are float32, and texts their 63-bit hash, an id. Raises UserError for other types, and
    for a uint64 that no int64 is.
    """
    if array.dtype.kind in "OSU":
        array = _hashed(array)
    if array.dtype.kind not in "fiub":
        raise UserError(f"values of the type {array.dtype} are no tensors: make numbers of them")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise UserError(
            f"the value {array.max()} is above {np.iinfo(np.int64).max}, the largest int64, "
            "which ids are: map larger ones in feed_batch"
        )
    array = array.astype(dtype_of(array.dtype), copy=False)
    if not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _hashed(texts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    raise NotImplementedError  # replaced below, where the hash is


def tensors(nested: Any) -> Any:
    """Nested arrays as tensors; None, and what is a tensor, stays as it is."""
    return mapped(_leaf, nested)


def _leaf(value: Any) -> Any:
    if value is None or isinstance(value, torch.Tensor):
        return value
    return tensor_of(np.asarray(value))


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as NumPy's array; 16-bit floats, of which NumPy has one only, as float32."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
