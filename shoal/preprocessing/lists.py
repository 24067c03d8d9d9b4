"""Lists of varying length: cut out of strings, without their padding, side by side.

Of tensors of TensorFlow, which are ragged, and of arrays of NumPy, whose lists are a ListColumn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from shoal.data.columns import ListColumn
from shoal.preprocessing.base import Array, Arrays, tf


def elements_where(condition: Callable[[Any], Any], values: Any) -> Any:
    """The elements of the last axis for which `condition` holds.

    values: dense or ragged, of rank 1 or more. Gives a vector for rank 1, else ragged.
    """
    if isinstance(values, tf.RaggedTensor):
        return tf.ragged.boolean_mask(values, tf.ragged.map_flat_values(condition, values))
    if values.shape.rank == 1:
        return tf.boolean_mask(values, condition(values))
    return tf.ragged.boolean_mask(values, condition(values))


def kept(condition: Callable[[Array], Array], values: Arrays) -> Arrays:
    """`elements_where` of arrays and columns of lists."""
    if isinstance(values, ListColumn):
        inner = values.values
        if isinstance(inner, ListColumn) or inner.ndim > 1:
            return replace(values, values=kept(condition, inner))
        keep = condition(inner)
        rows = np.repeat(np.arange(len(values.row_lengths)), values.row_lengths)
        lengths = np.bincount(rows[keep], minlength=len(values.row_lengths))
        return ListColumn(inner[keep], lengths.astype(np.int64))
    keep = condition(values)
    if values.ndim == 1:
        return values[keep]
    return nested(ListColumn(values[keep], keep.sum(axis=-1).ravel()), values.shape[:-1])


def split(strings: Arrays, separator: str) -> Arrays:
    """The parts of each string between separators, without empty ones: an axis more.

    Gives a vector for a single string, else lists of the type of the strings, bytes or str.
    """
    if isinstance(strings, ListColumn):
        return replace(strings, values=split(strings.values, separator))
    encoded = separator.encode()
    parts = [
        [part for part in text.split(encoded if isinstance(text, bytes) else separator) if part]
        for text in strings.ravel().tolist()
    ]
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    values = np.fromiter(chain.from_iterable(parts), object, int(lengths.sum()))
    if strings.ndim == 0:
        return values
    return nested(ListColumn(values, lengths), strings.shape)


def nested(lists: ListColumn, shape: Sequence[int]) -> ListColumn:
    """A list for each place of an array of `shape`, in order, as lists of its axes."""
    for axis in range(len(shape) - 1, 0, -1):
        count = int(np.prod(shape[:axis]))
        lists = ListColumn(lists, np.full(count, shape[axis], np.int64))
    return lists


def beside(columns: Sequence[Arrays], axis: int, name: str) -> Arrays:
    """Arrays joined along an axis; columns of lists record by record, along axis 1.

    name: of a layer, for messages. Raises ValueError for lists beside arrays, and for others.
    """
    lists = [each for each in columns if isinstance(each, ListColumn)]
    if not lists:
        return np.concatenate([np.asarray(each) for each in columns], axis=axis)
    flat = all(isinstance(each.values, np.ndarray) and each.values.ndim == 1 for each in lists)
    if len(lists) < len(columns) or not flat or axis not in (1, -1):
        raise ValueError(
            f"{name}: columns of lists are joined record by record, all of them or none (axis 1): "
            "give the others as lists, or pad all by column.padded(n)"
        )
    lengths = [each.row_lengths for each in lists]
    rows = np.concatenate([np.repeat(np.arange(len(each)), each) for each in lengths])
    order = np.argsort(rows, kind="stable")
    return ListColumn(np.concatenate([each.values for each in lists])[order], np.sum(lengths, 0))
