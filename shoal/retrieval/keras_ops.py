"""Losses, ranks and shares of retrieval by keras.ops, for other backends than TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

FAR = -1e9
"""Added to a logit that is not to count."""


def losses(queries: Any, candidates: Any, ids: Any, log_q: Any, temperature: float) -> Any:
    """See `in_batch_softmax`."""
    ops = keras.ops
    logits = ops.matmul(queries, ops.transpose(candidates)) / temperature
    if log_q is not None:
        logits = logits - ops.reshape(ops.cast(log_q, logits.dtype), [1, -1])
    if ids is not None:
        ids = ops.convert_to_tensor(ids)
        same = ops.equal(ops.reshape(ids, [-1, 1]), ops.reshape(ids, [1, -1]))
        others = 1 - ops.eye(logits.shape[0], dtype=logits.dtype)
        logits = logits + ops.cast(same, logits.dtype) * others * FAR
    return -ops.diagonal(ops.log_softmax(logits, axis=-1))


def share(ids: Any, batch: int, padding: int) -> Any:
    """See `corpus_share`."""
    ids = np.asarray(ids, np.int64)
    columns = -(-ids.size // batch)
    filled = np.pad(ids, [0, columns * batch - ids.size], constant_values=padding)
    return filled.reshape(batch, columns)


def update(metric: Any, labels: Mapping[str, Any], query: Any, candidate: Any, corpus: Any) -> None:
    """Add the ranks of a batch to a FactorizedTopK."""
    ops = keras.ops
    query, candidate, vectors = map(ops.convert_to_tensor, (query, candidate, corpus))
    vectors = ops.reshape(vectors, [-1, vectors.shape[-1]])
    ids = ops.reshape(ops.convert_to_tensor(labels["corpus"]), [1, -1])
    own = ops.reshape(ops.cast(labels["candidate"], ids.dtype), [-1, 1])
    # Of one product: another order of additions would decide what is a tie.
    both = ops.concatenate([vectors, ops.cast(candidate, vectors.dtype)], axis=0)
    scores = ops.matmul(query, ops.transpose(both))
    scores, owns = scores[:, : ids.shape[1]], scores[:, ids.shape[1] :]
    score = ops.expand_dims(ops.diagonal(owns), 1)
    others = ops.logical_and(ops.not_equal(ids, metric.padding), ops.not_equal(ids, own))
    better = ops.logical_or(ops.greater_equal(scores, score), ops.isnan(scores))
    rank = ops.sum(ops.cast(ops.logical_and(others, better), "float32"), axis=1)
    rank = ops.where(ops.isfinite(score[:, 0]), rank, math.nan)
    ks = ops.convert_to_tensor([float(k) for k in metric.ks])
    within = ops.cast(ops.less(ops.expand_dims(rank, 1), ks), "float32")
    hits = ops.where(ops.expand_dims(ops.isnan(rank), 1), math.nan, within)
    metric.hits.assign_add(ops.sum(hits, axis=0))
    metric.reciprocal.assign_add(ops.sum(1 / (rank + 1)))
    metric.count.assign_add(float(rank.shape[0]))
