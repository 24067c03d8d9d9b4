"""Outputs of a model as NumPy's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shoal.data.columns import ListColumn


def joined(parts: Sequence[Any]) -> npt.NDArray[Any] | ListColumn:
    """An output of several batches, one after the other; lists of it stay lists."""
    if isinstance(parts[0], tf.SparseTensor):
        parts = [tf.sparse.to_dense(part) for part in parts]
    if isinstance(parts[0], tf.RaggedTensor):
        return _lists(tf.concat(parts, 0))
    return np.concatenate([part.numpy() for part in parts])


def _lists(ragged: Any) -> ListColumn:
    inner = ragged.values
    values = _lists(inner) if isinstance(inner, tf.RaggedTensor) else inner.numpy()
    return ListColumn(values, ragged.row_lengths().numpy())
