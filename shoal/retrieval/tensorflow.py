"""Losses, ranks and shares of retrieval by the functions of TensorFlow itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

FAR = -1e9
"""Added to a logit that is not to count."""


def losses(queries: Any, candidates: Any, ids: Any, log_q: Any, temperature: float) -> Any:
    """See `in_batch_softmax`."""
    logits = tf.matmul(queries, candidates, transpose_b=True) / temperature
    if log_q is not None:
        logits -= tf.cast(log_q, logits.dtype)[None, :]
    own = tf.eye(tf.shape(logits)[0], dtype=tf.bool)
    if ids is not None:
        same = tf.equal(tf.reshape(ids, [-1, 1]), tf.reshape(ids, [1, -1]))
        logits += tf.cast(same & ~own, logits.dtype) * FAR
    labels = tf.range(tf.shape(logits)[0])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def share(ids: Any, batch: Any, padding: int) -> Any:
    """See `corpus_share`."""
    ids = tf.convert_to_tensor(ids, tf.int64)
    batch = tf.cast(batch, tf.int32)
    columns = -(-tf.size(ids) // batch)
    missing = columns * batch - tf.size(ids)
    return tf.reshape(tf.pad(ids, [[0, missing]], constant_values=padding), [batch, columns])


def update(metric: Any, labels: Mapping[str, Any], query: Any, candidate: Any, corpus: Any) -> None:
    """Add the ranks of a batch to a FactorizedTopK."""
    vectors = tf.convert_to_tensor(corpus)
    vectors = tf.reshape(vectors, [-1, tf.shape(vectors)[-1]])
    ids = tf.reshape(labels["corpus"], [1, -1])
    own = tf.reshape(tf.cast(labels["candidate"], ids.dtype), [-1, 1])
    # Of one product: another order of additions would decide what is a tie.
    both = tf.concat([vectors, tf.cast(candidate, vectors.dtype)], axis=0)
    scores = tf.matmul(query, both, transpose_b=True)
    scores, owns = scores[:, : tf.size(ids)], scores[:, tf.size(ids) :]
    score = tf.linalg.diag_part(owns)[:, None]
    others = tf.not_equal(ids, metric.padding) & tf.not_equal(ids, own)
    # Not ~(scores < score): TensorFlow makes that >= in a graph, which NaN is not.
    better = others & ((scores >= score) | tf.math.is_nan(scores))
    rank = tf.reduce_sum(tf.cast(better, tf.float32), axis=1)
    rank = tf.where(tf.math.is_finite(score[:, 0]), rank, math.nan)
    within = rank[:, None] < tf.constant([float(k) for k in metric.ks])
    hits = tf.where(tf.math.is_nan(rank)[:, None], math.nan, tf.cast(within, tf.float32))
    metric.hits.assign_add(tf.reduce_sum(hits, axis=0))
    metric.reciprocal.assign_add(tf.reduce_sum(1 / (rank + 1)))
    metric.count.assign_add(tf.cast(tf.size(rank), tf.float32))
