"""The model of the end-to-end benchmark for Keras on JAX."""

import jax
import keras
import network_sizes
from keras import ops
from model_host import feed_batch  # noqa: F401

from shoal.layers import Embedding


class DeepFM(keras.Model):
    def __init__(self):
        super().__init__()
        uniform = keras.initializers.RandomUniform(-0.01, 0.01)
        self.linear = Embedding(1, embeddings_initializer="zeros", name="linear")
        self.factors = Embedding(network_sizes.DIM, embeddings_initializer=uniform, name="factors")
        self.dense_linear = keras.layers.Dense(1)
        self.hidden = [
            keras.layers.Dense(units, activation="relu") for units in network_sizes.UNITS
        ]
        self.top = keras.layers.Dense(1)

    def call(self, features, training=False):  # noqa: ARG002
        ids, dense = features["ids"], features["dense"]
        vectors = self.factors(ids)
        wide = ops.sum(self.linear(ids), axis=(1, 2)) + self.dense_linear(dense)[:, 0]
        # All pairs of dot products in linear time.
        total = ops.sum(vectors, axis=1)
        pairs = ops.sum(total * total, axis=1) - ops.sum(vectors * vectors, axis=(1, 2))
        deep = ops.concatenate([ops.reshape(vectors, (len(ids), -1)), dense], axis=1)
        for layer in self.hidden:
            deep = layer(deep)
        return wide + pairs / 2 + self.top(deep)[:, 0]  # logits


def custom_model():
    return DeepFM()


def loss(labels, logits):
    return jax.numpy.mean(jax.nn.softplus(logits) - labels * logits)


def optimizer(rate=network_sizes.RATE, accumulator=0.1, epsilon=1e-7):
    return keras.optimizers.Adagrad(rate, accumulator, epsilon=epsilon)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(num_thresholds=2000, from_logits=True)}
