"""Bags of ids of each form that TensorFlow has: dense, ragged and sparse, and strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

STRING_BUCKETS = 2**63 - 1
"""A string's id is its FarmHash fingerprint modulo this: the same in every process and in
keras.layers.Hashing, and never negative."""

Rows = Callable[[tf.Tensor], tf.Tensor]
"""Ids of any shape, int64 or string, to rows, ids.shape + (dim,)."""


def refuse_form(ids: Any, of: str) -> None:
    """Nothing: ids of all forms are looked up."""


def integers(ids: tf.Tensor) -> tf.Tensor:
    """String ids as int64; integers as they are."""
    if ids.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(ids, STRING_BUCKETS)
    return ids


def look_up(rows_of: Rows, ids: Any, weights: Any, combiner: str | None, *, mask_zero: bool) -> Any:
    """The rows of `ids`; with a combiner, one row per bag, the bags being the last axis.

    ids: a tensor, a RaggedTensor or, with a combiner, a SparseTensor of rank 2.
    weights: None, or a number per id, of the same form as the ids.
    mask_zero: with a combiner, id 0 (or the empty string) is a place without an id.

    An empty bag gives zeros. Raises ValueError for forms that do not go together.
    """
    _check_weights(ids, weights, combiner)
    if isinstance(ids, tf.RaggedTensor):
        return _ragged(rows_of, ids, weights, combiner, mask_zero)
    if isinstance(ids, tf.SparseTensor):
        return _sparse(rows_of, ids, weights, combiner, mask_zero)
    ids = tf.convert_to_tensor(ids)
    rows = rows_of(ids)
    return rows if combiner is None else _dense(rows, ids, weights, combiner, mask_zero)


def scattered(ids: Any, rows_of: Rows, dim: int) -> tf.Tensor | None:
    """The rows of a SparseTensor's ids, of ids.shape + (dim,), and zeros where there is no id.

    None for ids of any other form.
    """
    if not isinstance(ids, tf.SparseTensor):
        return None
    shape = tf.concat([ids.dense_shape, [dim]], 0)
    rows = tf.scatter_nd(ids.indices, rows_of(ids.values), shape)
    rows.set_shape([*ids.shape, dim])
    return rows


def _check_weights(ids: Any, weights: Any, combiner: str | None) -> None:
    if weights is None:
        return
    if combiner is None:
        raise ValueError("weights of ids need a combiner: sum, mean or sqrtn")
    for form in (tf.RaggedTensor, tf.SparseTensor):
        if isinstance(ids, form) != isinstance(weights, form):
            raise ValueError(
                f"ids and weights must have one form, not {type(ids).__name__} and "
                f"{type(weights).__name__}"
            )


def _factors(ids: tf.Tensor, weights: Any, mask_zero: bool, dtype: tf.DType) -> tf.Tensor:
    """The factor of each id's row, of the ids' shape."""
    factors = tf.ones(tf.shape(ids), dtype) if weights is None else tf.cast(weights, dtype)
    if mask_zero:
        empty = tf.constant("" if ids.dtype == tf.string else 0, ids.dtype)
        factors *= tf.cast(tf.not_equal(ids, empty), dtype)
    return factors


def _divisor(combiner: str, total: Callable[[Any], Any], factors: tf.Tensor) -> tf.Tensor:
    """By what the weighted sum of a bag is divided, mean and sqrtn."""
    if combiner == "mean":
        return total(factors)
    return tf.sqrt(total(tf.square(factors)))


def _dense(
    rows: tf.Tensor, ids: tf.Tensor, weights: Any, combiner: str, mask_zero: bool
) -> tf.Tensor:
    factors = _factors(ids, weights, mask_zero, rows.dtype)
    combined = tf.reduce_sum(rows * factors[..., None], axis=-2)
    if combiner == "sum":
        return combined
    divisor = _divisor(combiner, lambda x: tf.reduce_sum(x, axis=-1, keepdims=True), factors)
    return tf.math.divide_no_nan(combined, divisor)


def _segments(
    rows: tf.Tensor, factors: tf.Tensor, bags: tf.Tensor, count: Any, combiner: str
) -> tf.Tensor:
    """Rows [n, dim], their factors [n] and bags int64 [n] as one row a bag [count, dim]."""

    def total(x: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(x, bags, count)

    combined = total(rows * factors[:, None])
    if combiner == "sum":
        return combined
    return tf.math.divide_no_nan(combined, _divisor(combiner, total, factors)[:, None])


def _ragged(
    rows_of: Rows, ids: tf.RaggedTensor, weights: Any, combiner: str | None, mask_zero: bool
) -> Any:
    if combiner is None:
        return ids.with_flat_values(rows_of(ids.flat_values))
    if isinstance(ids.values, tf.RaggedTensor):
        inner = None if weights is None else weights.values
        return ids.with_values(_ragged(rows_of, ids.values, inner, combiner, mask_zero))
    flat = None if weights is None else weights.flat_values
    rows = rows_of(ids.values)
    if ids.values.shape.rank != 1:
        return ids.with_values(_dense(rows, ids.values, flat, combiner, mask_zero))
    factors = _factors(ids.values, flat, mask_zero, rows.dtype)
    return _segments(rows, factors, ids.value_rowids(), ids.nrows(), combiner)


def _sparse(
    rows_of: Rows, ids: tf.SparseTensor, weights: Any, combiner: str | None, mask_zero: bool
) -> tf.Tensor:
    if combiner is None:
        raise ValueError("sparse ids need a combiner: sum, mean or sqrtn")
    if ids.shape.rank != 2:
        raise ValueError(f"sparse ids must be [batch, ids], not of rank {ids.shape.rank}")
    rows = rows_of(ids.values)
    flat = None if weights is None else weights.values
    factors = _factors(ids.values, flat, mask_zero, rows.dtype)
    return _segments(rows, factors, ids.indices[:, 0], ids.dense_shape[0], combiner)
