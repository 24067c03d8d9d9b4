"""The knowledge that a feed_batch is under way with arrays of NumPy, for what users import.

TensorFlow's feed_batch is traced with tensors instead, unless it is of NumPy's code.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

_arrays: contextvars.ContextVar[bool] = contextvars.ContextVar("arrays", default=False)


@contextmanager
def giving_arrays() -> Iterator[None]:
    """Let what is called in the body give arrays for arrays, with TensorFlow too."""
    token = _arrays.set(True)
    try:
        yield
    finally:
        _arrays.reset(token)


def gives_arrays() -> bool:
    """True in the body of `giving_arrays`."""
    return _arrays.get()
