"""Training and judging of two-tower models, which find a few candidates among many.

Owns the loss over a batch's own candidates and a metric over the whole corpus, both of plain Keras,
in a job or without one. What computes them is chosen by Keras's backend: tensorflow, or keras_ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from shoal.bags import ON_TENSORFLOW
from shoal.base.feeding import gives_arrays
from shoal.retrieval import keras_ops

if ON_TENSORFLOW:
    from shoal.retrieval.tensorflow import losses, share, update
else:
    from shoal.retrieval.keras_ops import losses, share, update


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
    return losses(queries, candidates, ids, log_q, temperature)


def corpus_share(ids: Any, batch: Any, padding: int = -1) -> Any:
    """The whole corpus cut into a row for each record of a batch, for `FactorizedTopK`.

    ids: int64 [n], all candidates. batch: how many records there are, a number or, with
    TensorFlow, a scalar tensor. Returns int64 [batch, ceil(n / batch)], filled up with `padding`:
    a tensor of TensorFlow; with Keras's other backends, and in a feed_batch of NumPy's arrays, an
    array.
    """
    return (keras_ops.share if gives_arrays() else share)(ids, batch, padding)


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
        update(self, labels, predictions[query], predictions[candidate], predictions[corpus])

    def result(self) -> dict[str, Any]:
        """`recall_at_k` for each k, and `mrr`; not a number before any record."""
        count = keras.ops.where(self.count > 0, self.count.value, math.nan)
        recalls = {f"recall_at_{k}": self.hits[i] / count for i, k in enumerate(self.ks)}
        return {**recalls, "mrr": self.reciprocal / count}

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        query, candidate, corpus = self.outputs
        names = {"query": query, "candidate": candidate, "corpus": corpus}
        return {**super().get_config(), "ks": list(self.ks), **names, "padding": self.padding}
