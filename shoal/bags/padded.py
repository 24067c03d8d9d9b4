"""Bags of dense ids by keras.ops: those of one length, filled up with padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from shoal.errors import UserError

EMPTY_STRING = 0x9AE16A3B2F90404F % (2**63 - 1)
"""The id of the empty string, which is padding where strings are ids, as 0 is of integers."""

Rows = Callable[[Any], Any]
"""Ids of any shape to rows, ids.shape + (dim,)."""

_FORMS = {
    "ragged": ("RaggedTensor", "ListColumn"),
    "sparse": ("SparseTensor", "BCOO", "BCSR"),
    "nested": (),
}
"""Forms of ids -> their types, known by name: none of the frameworks need be loaded."""


def refuse_form(ids: Any, of: str) -> None:
    """Raise UserError for ids, symbolic ones too, that are ragged, sparse or strings. of: whose."""
    for form, types in _FORMS.items():
        flags = (getattr(ids, name, None) is True for name in (form, f"is_{form}"))
        if type(ids).__name__ in types or any(flags):
            raise UserError(
                f"{of} was given {form} ids, which only the engine tensorflow takes: give lists "
                "of one length, filled up with 0, as column.padded(n) makes them in feed_batch, "
                "and mask_zero=True"
            )
    if str(getattr(ids, "dtype", "")) in ("string", "object"):
        raise UserError(
            f"{of} was given strings, which only the engine tensorflow takes into a model: give "
            "them as features, whose ids are made before the model sees them, and declare the "
            "input as keras.Input(..., dtype='int64')"
        )


def integers(ids: Any) -> Any:
    """Ids as they are: strings became ids before."""
    return ids


def present(ids: Any) -> Any:
    """Which ids are no padding: neither 0 nor the id of the empty string; bools of their shape.

    On JAX, whose steps have int32 in place of int64, any padding is a 0 there.
    """
    some = keras.ops.not_equal(ids, 0)
    if keras.backend.standardize_dtype(ids.dtype) != "int64" or keras.backend.backend() == "jax":
        return some
    return keras.ops.logical_and(some, keras.ops.not_equal(ids, EMPTY_STRING))


def scattered(ids: Any, rows_of: Rows, dim: int) -> None:
    """None: ids are dense."""


def look_up(
    rows_of: Rows,
    ids: Any,
    weights: Any,
    combiner: str | None,
    *,
    mask_zero: bool,
) -> Any:
    """The rows of `ids`; with a combiner, one row per bag, the bags being the last axis.

    ids: dense, of any shape. weights: None, or a number per id, of the same shape.
    mask_zero: with a combiner, ids that are not `present` are places without an id.

    An empty bag gives zeros. Raises ValueError for weights without a combiner, UserError for ids
    of another form.
    """
    if weights is not None and combiner is None:
        raise ValueError("weights of ids need a combiner: sum, mean or sqrtn")
    refuse_form(ids, "an embedding")
    if not hasattr(ids, "dtype"):
        ids = keras.ops.convert_to_tensor(ids)
    rows = rows_of(ids)
    if combiner is None:
        return rows
    ops, dtype = keras.ops, keras.backend.standardize_dtype(rows.dtype)
    factors = ops.ones_like(rows[..., 0]) if weights is None else ops.cast(weights, dtype)
    if mask_zero:
        factors = factors * ops.cast(present(ids), dtype)
    combined = ops.sum(rows * ops.expand_dims(factors, -1), axis=-2)
    if combiner == "sum":
        return combined
    if combiner == "mean":
        return ops.divide_no_nan(combined, ops.sum(factors, axis=-1, keepdims=True))
    # Never the root of zero, whose gradient is no number.
    squares = ops.sum(ops.square(factors), axis=-1, keepdims=True)
    empty = ops.equal(squares, 0)
    return ops.where(empty, 0.0, combined / ops.sqrt(ops.where(empty, 1.0, squares)))
