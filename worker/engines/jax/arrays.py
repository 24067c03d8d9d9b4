"""Arrays of a batch in the types that JAX has: on the host 64-bit ids, in a step 32-bit integers.

Owns which types there are, and what becomes of an id that a step sees. JAX without its x64 mode
would take the lower half of a 64-bit integer, without a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.bags.padded import EMPTY_STRING
from shoal.base.nested import mapped
from shoal.errors import UserError
from shoal.native.strings import string_ids
from shoal.worker.input.spec import ArraySpec

Array = npt.NDArray[Any]

LIMITS = np.iinfo(np.int32)

_TYPES = {"float64": "float32", "uint64": "int64", "uint32": "int64", "object": "int64"}
"""Types of what feed_batch gives -> those of a batch. Texts become ids, as an engine has them."""


def on_host(nested: Any) -> Any:
    """Arrays as a batch has them. Raises UserError for a uint64 that is no int64."""
    return mapped(_on_host, nested)


def _on_host(array: Array | None) -> Array | None:
    if array is None:
        return None
    if array.dtype.kind == "O":
        return string_ids(array)
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise UserError(
            f"the value {array.max()} is above {np.iinfo(np.int64).max}, the largest int64, "
            "which ids are: map larger ones in feed_batch"
        )
    return array.astype(_type_on_host(array.dtype), copy=False)


def spec_on_host(spec: ArraySpec | None) -> ArraySpec | None:
    """The spec of what `on_host` makes of arrays of a spec."""
    return None if spec is None else ArraySpec(spec.shape, _type_on_host(spec.dtype))


def _type_on_host(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(_TYPES.get(dtype.name, dtype))


def in_step(nested: Any) -> Any:
    """Arrays of a batch as a step takes them.

    A 64-bit integer that is no 32-bit one becomes the nearest: a step may take it for an id that is
    no padding, and for nothing else. That of the empty string is padding, as 0 is.
    """
    return mapped(_in_step, nested)


def _in_step(array: Array | None) -> Array | None:
    if array is None or array.dtype != np.int64:
        return array
    if not array.size or (array.min() >= LIMITS.min and array.max() <= LIMITS.max):
        return array.astype(np.int32)
    near = np.clip(array, LIMITS.min, LIMITS.max)
    near[array == EMPTY_STRING] = 0
    return near.astype(np.int32)


def beyond(array: Array) -> int | None:
    """A value that `in_step` changes; None if there is none."""
    if array.dtype != np.int64 or not array.size:
        return None
    for value in (array.max(), array.min()):
        if not LIMITS.min <= value <= LIMITS.max:
            return int(value)
    return None


def sample(nested_spec: Any, records: int) -> Any:
    """Zeros of so many records, of nested specs; axes whose size varies have 2."""

    def zeros(spec: ArraySpec) -> Array:
        inner = (2 if size is None else size for size in spec.shape[1:])
        return np.zeros((records, *inner), spec.dtype)

    return mapped(lambda spec: None if spec is None else zeros(spec), nested_spec)
