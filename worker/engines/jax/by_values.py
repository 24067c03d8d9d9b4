"""Errors of Python code that looks at values of arrays, which JAX compiles before there are any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from shoal.base.modules.tracebacks import line_of
from shoal.errors import UserError

_KINDS = {
    jax.errors.TracerBoolConversionError: (
        "chooses by the values of an array what to compute, as `if` and `while` do",
        "compute both and choose with keras.ops.where or jnp.where, or give both as functions to "
        "keras.ops.cond or jax.lax.cond",
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        "takes the elements of an array for which a condition holds, as many as there are",
        "set the others to 0, with keras.ops.where or jnp.where(condition, array, 0)",
    ),
    jax.errors.TracerArrayConversionError: (
        "gives an array to NumPy, or to another library that needs its values",
        "compute with keras.ops or jax.numpy, and what NumPy is to compute in feed_batch",
    ),
    jax.errors.TracerIntegerConversionError: (
        "takes an array as a number of Python's, as range() and an index of a list do",
        "compute with the array itself, with keras.ops.take or jax.lax.fori_loop; sizes are in "
        ".shape",
    ),
    jax.errors.ConcretizationTypeError: (
        "makes a number of Python's of an array, as int(), float() and .item() do",
        "compute with the array itself, in keras.ops or jax.numpy; sizes are in .shape",
    ),
}
"""Errors of JAX -> what the code does, and what to write instead. The last is a base of others."""


def looked_at(error: BaseException | None, file: str) -> str | None:
    """The error of code that looks at values, in words; None for any other error.

    Keras raises its own in place of JAX's. file: of the user's, where no line of it is known.
    """
    while error is not None:
        for kind, (does, instead) in _KINDS.items():
            if isinstance(error, kind):
                return (
                    f"{line_of(error) or file}: the code {does}, and JAX compiles it before there "
                    f"are values: {instead}"
                )
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def values_told(file: str) -> Iterator[None]:
    """Raise UserError for code of the body that looks at values."""
    try:
        yield
    except Exception as error:
        if (message := looked_at(error, file)) is None:
            raise
        raise UserError(message) from error
