"""As counting.py of the folder above, as a model of Keras on JAX."""

import gates
import jax
import keras
import numpy as np
from jax.experimental import io_callback
from keras import ops

from shoal.layers import Embedding


def feed_batch(columns, mode, metadata):
    if mode == "prediction":
        wait(columns["id"], "predict")
        return {"id": columns["id"]}
    return {"id": columns["id"]}, columns["id"]


def wait(ids, kind):
    if kind == "record":
        gates.pass_step()
    for number in np.asarray(ids).ravel():
        gates.pass_gate(f"{kind}-{number}")
    return np.asarray(ids)


def gated(ids, kind):
    """`ids`, once the gates of all of them were passed."""
    shape = jax.ShapeDtypeStruct(ids.shape, ids.dtype)
    return io_callback(lambda given: wait(given, kind), shape, ids, ordered=True)


class Total(keras.layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(shape=[2], initializer="zeros", name="total")

    def call(self, counts):
        return counts + ops.sum(self.total)


def custom_model():
    ids = keras.Input([], dtype="int64", name="id")
    counts = Embedding(1, embeddings_initializer="zeros", name="counts")(ids)
    return keras.Model({"id": ids}, Total(name="all")(counts))


def loss(labels, predictions):
    gated(labels, "record")
    return -ops.sum(predictions)


def optimizer():
    return keras.optimizers.SGD(1.0)


def eval_metrics_fn():
    return {"seen": Seen(name="seen"), "ids": Ids(name="ids")}


class Seen(keras.metrics.Sum):
    """How many records were evaluated."""

    def update_state(self, labels, predictions):
        super().update_state(ops.ones_like(gated(labels, "evaluate"), "float32"))


class Ids(keras.metrics.Sum):
    """The sum of their ids: no other set of the same size with none twice has it."""

    def update_state(self, labels, predictions):
        super().update_state(ops.cast(labels, "float32"))
