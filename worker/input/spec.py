"""The spec of a batch's arrays in no framework's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ArraySpec:
    """The spec of one array of a batch, of any number of records.

    shape: the first axis, of records, is None, as is every other one whose size varies. dtype:
    object for texts, which are bytes.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    @property
    def is_text(self) -> bool:
        """True for texts."""
        return self.dtype.kind == "O"

    @property
    def is_floating(self) -> bool:
        """True for floating numbers, bfloat16 included, which is none of NumPy's own."""
        return self.dtype.kind == "f" or self.dtype.name == "bfloat16"

    @property
    def is_integer(self) -> bool:
        """True for integers; bools are none."""
        return self.dtype.kind in "iu"


def array_spec(spec: Any) -> ArraySpec | None:
    """The spec of one feature, of this form or TensorFlow's; None for what is no spec of a tensor.

    Where TensorFlow does not know the rank, the shape is empty.
    """
    if isinstance(spec, ArraySpec):
        return spec
    dtype = getattr(getattr(spec, "dtype", None), "as_numpy_dtype", None)
    if dtype is None:
        return None
    return ArraySpec(() if spec.shape.rank is None else tuple(spec.shape), np.dtype(dtype))
