"""AutoGraph, for the user's functions alone.

The functions of shoal that TensorFlow traces have no `if` or loop over tensors. They are traced
without AutoGraph, whose conversions took about a fifth of a worker's start. Models are called by
Keras, which does not convert them either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@functools.cache
def _converting() -> Callable[..., Any]:
    """`_call`, in which AutoGraph converts what is called, and all that this calls."""
    converting: Callable[..., Any] = tf.autograph.to_graph(_call)
    return converting


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function in which Python's `if`, `for` and `while` may depend on tensors."""
    return functools.partial(_converting(), function)
