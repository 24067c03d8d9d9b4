"""Arrays of a batch as the tensors that a module gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.nested import mapped, named_leaves
from shoal.errors import UserError
from shoal.native.strings import string_ids

_TAKEN = {"float64": "float32", "uint64": "int64", "uint32": "int64", "uint16": "int32"}
"""Types of columns -> those of tensors: modules compute in float32 and take signed ids."""


def dtype_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the tensor that an array of a type becomes."""
    return np.dtype(np.int64) if dtype.kind in "OSU" else np.dtype(_TAKEN.get(dtype.name, dtype))


def tensor_of(array: npt.NDArray[Any], what: str = "values") -> torch.Tensor:
    """An array as a tensor of the memory that it has, if it may be written to.

    Floats are float32. Texts, which no tensor holds, are their 63-bit hashes, as on all engines.
    what: the array, for errors. Raises UserError for a uint64 that is no int64.
    """
    if array.dtype.kind == "O":
        return torch.from_numpy(string_ids(array))
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise UserError(
            f"feed_batch gives {array.max()} as {what}, above {np.iinfo(np.int64).max}, the "
            "largest int64, which ids are: map larger ones there"
        )
    array = array.astype(dtype_of(array.dtype), copy=False)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def tensors(nested: Any) -> Any:
    """Nested arrays as tensors; None, and what is a tensor, stays as it is."""
    names = iter([path for path, _ in named_leaves(nested)])

    def made(value: Any) -> Any:
        path = next(names)
        if value is None or isinstance(value, torch.Tensor):
            return value
        return tensor_of(np.asarray(value), repr(path) if path else "values")

    return mapped(made, nested)


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as NumPy's array; bfloat16, which NumPy has not, as float32."""
    tensor = tensor.detach()
    array: npt.NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
