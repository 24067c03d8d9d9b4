"""The features that ids are, and looks at values, found in a plain call of a module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LOOKS = frozenset(
    {
        *("__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__"),
        *("item", "tolist", "numpy", "__array__", "is_nonzero", "equal", "allclose"),
    }
)
"""Functions that make numbers of Python's or of NumPy's of a tensor, as `if` and int() do."""


class _Noting(TorchFunctionMode):
    """Notes the functions of LOOKS that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if (name := getattr(func, "__name__", "")) in LOOKS:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def noting_values() -> Iterator[list[str]]:
    """A context whose list has an entry for each look at a value of a tensor in the body."""
    mode = _Noting()
    with mode:
        yield mode.found


def is_whole(ids: torch.Tensor, feature: torch.Tensor) -> bool:
    """True if ids are the memory of a feature, all of it in its order."""
    same: bool = (
        ids.dtype == feature.dtype
        and ids.numel() == feature.numel()
        and ids.data_ptr() == feature.data_ptr()
        and ids.is_contiguous()
        and feature.is_contiguous()
    )
    return same


def place_of(ids: torch.Tensor, features: Sequence[torch.Tensor]) -> int | None:
    """The position of the feature that ids are; None if they are none."""
    return next((i for i, each in enumerate(features) if is_whole(ids, each)), None)
