"""Training and judging of two-tower models, which find a few candidates among many.

Owns the loss over a batch's own candidates and a metric over the whole corpus, both plain
TensorFlow and Keras, in a job or without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

FAR = -1e9
"""Added to a logit that is not to count."""


def in_batch_softmax(
    queries: Any,
    candidates: Any,
    *,
    ids: Any = None,
    log_q: Any = None,
    temperature: float = 1.0,
) -> Any:
    """The loss of telling each query's own candidate from the others of the batch.

    queries, candidates: float32 [batch, dim]; row i of both belong together.
    ids: of the candidates, [batch]. The same candidate of another row is then not held
        against a query.
    log_q: float32 [batch], the logarithm of each candidate's share of the training records.
        It is taken off the logits, as popular candidates are more often among the others
        than their worth (sampled softmax; Yi et al., 2019).
    temperature: the scores are divided by it; well below 1 for vectors of length 1.

    Returns float32 [batch], the cross-entropy of each row.
    """
    logits = tf.matmul(queries, candidates, transpose_b=True) / temperature
    if log_q is not None:
        logits -= tf.cast(log_q, logits.dtype)[None, :]
    own = tf.eye(tf.shape(logits)[0], dtype=tf.bool)
    if ids is not None:
        same = tf.equal(tf.reshape(ids, [-1, 1]), tf.reshape(ids, [1, -1]))
        logits += tf.cast(same & ~own, logits.dtype) * FAR
    labels = tf.range(tf.shape(logits)[0])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def corpus_share(ids: Any, batch: Any, padding: int = -1) -> Any:
    """The whole corpus cut into a row for each record of a batch, for `FactorizedTopK`.

    ids: int64 [n], all candidates. batch: how many records there are, a number or a scalar
    tensor. Returns int64 [batch, ceil(n / batch)], filled up with `padding`.
    """
    ids = tf.convert_to_tensor(ids, tf.int64)
    batch = tf.cast(batch, tf.int32)
    columns = -(-tf.size(ids) // batch)
    missing = columns * batch - tf.size(ids)
    return tf.reshape(tf.pad(ids, [[0, missing]], constant_values=padding), [batch, columns])


class FactorizedTopK(keras.metrics.Metric):
    """Recall at k and mean reciprocal rank among the whole corpus, exact.

    ks: for each k, `recall_at_k` is the share of records whose own candidate is among the k
        best of the corpus by the dot product; `mrr` is the mean of 1 / rank.
    query, candidate, corpus: names of the model's outputs: vectors [batch, dim] of the query
        and of its own candidate, and [batch, m, dim] of a share of the corpus for each record
        of the batch, all of it together (`corpus_share`).
    labels are a dict, too: `candidate` with the id of each record's own candidate [batch] and
        `corpus` with the ids of the corpus' shares [batch, m].
    padding: an id in the corpus that stands for none.

    An equal score counts as a better one. A score of an own candidate that is not finite makes all
    of them NaN. The result does not depend on how records are put
    into batches and tasks, as each batch has the corpus; the states add up over workers.
    """

    def __init__(
        self,
        ks: Sequence[int] = (10, 100),
        query: str = "query",
        candidate: str = "candidate",
        corpus: str = "corpus",
        padding: int = -1,
        name: str = "factorized_top_k",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not ks or any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in ks):
            raise ValueError(f"ks must be positive integers, not {ks!r}")
        self.ks = tuple(ks)
        self.outputs = (query, candidate, corpus)
        self.padding = padding
        self.hits = self.add_weight(shape=(len(self.ks),), initializer="zeros", name="hits")
        self.reciprocal = self.add_weight(shape=(), initializer="zeros", name="reciprocal")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, labels: Mapping[str, Any], predictions: Mapping[str, Any]) -> None:
        """Add the ranks of a batch. Raises ValueError if an output or label is not there."""
        query, candidate, corpus = self.outputs
        for given, what, names in (
            (predictions, "output", self.outputs),
            (labels, "label", ("candidate", "corpus")),
        ):
            for name in names:
                if not isinstance(given, Mapping) or name not in given:
                    raise ValueError(f"{self.name} needs the {what} {name!r}, which is not there")
        vectors = tf.convert_to_tensor(predictions[corpus])
        vectors = tf.reshape(vectors, [-1, tf.shape(vectors)[-1]])
        ids = tf.reshape(labels["corpus"], [1, -1])
        own = tf.reshape(tf.cast(labels["candidate"], ids.dtype), [-1, 1])
        # Of one product: another order of additions would decide what is a tie.
        both = tf.concat([vectors, tf.cast(predictions[candidate], vectors.dtype)], axis=0)
        scores = tf.matmul(predictions[query], both, transpose_b=True)
        scores, owns = scores[:, : tf.size(ids)], scores[:, tf.size(ids) :]
        score = tf.linalg.diag_part(owns)[:, None]
        others = tf.not_equal(ids, self.padding) & tf.not_equal(ids, own)
        # Not ~(scores < score): TensorFlow makes that >= in a graph, which NaN is not.
        better = others & ((scores >= score) | tf.math.is_nan(scores))
        rank = tf.reduce_sum(tf.cast(better, tf.float32), axis=1)
        rank = tf.where(tf.math.is_finite(score[:, 0]), rank, math.nan)
        within = rank[:, None] < tf.constant([float(k) for k in self.ks])
        hits = tf.where(tf.math.is_nan(rank)[:, None], math.nan, tf.cast(within, tf.float32))
        self.hits.assign_add(tf.reduce_sum(hits, axis=0))
        self.reciprocal.assign_add(tf.reduce_sum(1 / (rank + 1)))
        self.count.assign_add(tf.cast(tf.size(rank), tf.float32))

    def result(self) -> dict[str, Any]:
        """`recall_at_k` for each k, and `mrr`; not a number before any record."""
        count = tf.where(self.count > 0, self.count, math.nan)
        recalls = {f"recall_at_{k}": self.hits[i] / count for i, k in enumerate(self.ks)}
        return {**recalls, "mrr": self.reciprocal / count}

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        query, candidate, corpus = self.outputs
        names = {"query": query, "candidate": candidate, "corpus": corpus}
        return {**super().get_config(), "ks": list(self.ks), **names, "padding": self.padding}
