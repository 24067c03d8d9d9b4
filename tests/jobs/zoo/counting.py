"""Counts how often each record's gradient was applied, in the model's own weights.

SGD with rate 1 and a gradient of exactly -1 per record: `total` (two elements, one on
each of two servers) counts records, the table's row of an id counts that record.
Gates: "record-N" between the pull and the push of record N's batch, "step-K" likewise
in a process's K-th step, "evaluate-N" and "predict-N" where record N is evaluated or
predicted.
"""

import os

import gates
import keras
import tensorflow as tf

from shoal.layers import Embedding


def feed(dataset, mode, metadata):
    if mode == "training" and os.environ.get("SHOAL_TEST_SHUFFLE"):
        dataset = dataset.shuffle(1000, seed=1)

    if leaves := os.environ.get("SHOAL_TEST_LEAVES"):
        dataset = dataset.filter(lambda record: record["id"] < int(leaves))

    def prepare(record):
        if mode == "prediction":
            return {"id": gated(record["id"], "predict")}
        return {"id": record["id"]}, record["id"]

    return dataset.map(prepare)


def gated(ids, kind):
    """`ids`, once the gates of all of them were passed."""

    def wait(ids):
        if kind == "record":
            gates.pass_step()
        for number in ids.numpy().ravel():
            gates.pass_gate(f"{kind}-{number}")
        return ids

    shape = ids.shape
    return tf.ensure_shape(tf.py_function(wait, [ids], tf.int64), shape)


class Total(keras.layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(shape=[2], initializer="zeros", name="total")

    def call(self, counts):
        return counts + keras.ops.sum(self.total)


def custom_model():
    ids = keras.Input([], dtype="int64", name="id")
    counts = Embedding(1, embeddings_initializer="zeros", name="counts")(ids)
    return keras.Model({"id": ids}, Total(name="all")(counts))


def loss(labels, predictions):
    with tf.control_dependencies([gated(labels, "record")]):
        return -tf.reduce_sum(tf.identity(predictions))


def optimizer():
    return keras.optimizers.SGD(1.0)


def eval_metrics_fn():
    return {"seen": Seen(name="seen"), "ids": Ids(name="ids")}


class Seen(keras.metrics.Sum):
    """How many records were evaluated."""

    def update_state(self, labels, predictions):
        super().update_state(tf.ones_like(gated(labels, "evaluate"), tf.float32))


class Ids(keras.metrics.Sum):
    """The sum of their ids: no other set of the same size with none twice has it."""

    def update_state(self, labels, predictions):
        super().update_state(tf.cast(labels, tf.float32))
