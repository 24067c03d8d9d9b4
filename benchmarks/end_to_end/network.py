"""The DeepFM of the end-to-end benchmark, for Keras 3 and for tf_keras alike.

Linear part, factorization machine and a deep part of 256-128-64 units over 26 ids and 13
dense numbers a record. All systems train this code; only the embedding layer differs.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from network_sizes import DIM, RATE, UNITS  # noqa: F401


def deepfm(keras: Any, linear: Any, factors: Any) -> Any:
    """A model of features {"ids": int64 [n, 26], "dense": float32 [n, 13]}.

    keras: the module keras or tf_keras. linear, factors: embedding layers of 1 and DIM
    columns.
    """

    class DeepFM(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear
            self.factors = factors
            self.dense_linear = keras.layers.Dense(1)
            self.hidden = [keras.layers.Dense(units, activation="relu") for units in UNITS]
            self.top = keras.layers.Dense(1)

        def call(self, features: Any, training: bool = False) -> Any:  # noqa: ARG002
            ids, dense = features["ids"], features["dense"]
            weights = self.linear(ids)
            vectors = self.factors(ids)
            wide = tf.reduce_sum(weights, axis=[1, 2]) + self.dense_linear(dense)[:, 0]
            # All pairs of dot products in linear time.
            total = tf.reduce_sum(vectors, axis=1)
            pairs = tf.reduce_sum(total * total, axis=1)
            pairs -= tf.reduce_sum(vectors * vectors, axis=[1, 2])
            deep = tf.reshape(vectors, [-1, vectors.shape[1] * DIM])
            deep = tf.concat([deep, dense], axis=1)
            for layer in self.hidden:
                deep = layer(deep)
            return wide + pairs / 2 + self.top(deep)[:, 0]  # logits

    return DeepFM()


def loss(labels: Any, logits: Any) -> Any:
    """Binary cross-entropy of logits, averaged."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
