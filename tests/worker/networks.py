"""A model with two tables, its plain twin, and batches that hold every id."""

import keras
import numpy as np
import tensorflow as tf

import shoal.layers
from shoal.config.job import JobConfig
from shoal.worker.input.batch import Batch

IDS = np.array([3, -7, 2**61, 0, 11, -(2**63)], np.int64)
CONFIG = JobConfig(model_def="model.custom_model", training_data="unused", seed=5)


def network(embedding, statistics=False):
    """A functional model with two tables, one of them looked up twice."""
    ids = keras.Input((3,), dtype="int64", name="ids")
    x = keras.Input((2,), name="x")
    wide, deep = embedding(1, "wide"), embedding(4, "deep")
    first = keras.layers.Flatten()(deep(ids))
    again = keras.layers.Flatten()(deep(ids[:, :1]))
    hidden = keras.layers.Concatenate()([first, again, x])
    if statistics:
        hidden = keras.layers.BatchNormalization(momentum=0.5)(hidden)
    hidden = keras.layers.Dense(5, activation="tanh")(hidden)
    logit = keras.layers.Dense(1)(hidden) + keras.ops.sum(wide(ids), axis=1)
    return keras.Model({"ids": ids, "x": x}, keras.layers.Activation("sigmoid")(logit))


def served_embedding(dim, name):
    return shoal.layers.Embedding(dim, "uniform", name=name)


def plain_embedding(dim, name):
    return keras.layers.Embedding(IDS.size, dim, name=name)


def batches(count=6, size=4):
    """Batches that hold every id, so that lazy and dense rules agree."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        positions = np.concatenate([rng.permutation(IDS.size), rng.integers(0, IDS.size, 6)])
        positions = positions.reshape(size, 3)
        x = rng.normal(size=(size, 2)).astype(np.float32)
        labels = rng.integers(0, 2, (size, 1)).astype(np.float32)
        yield positions, x, labels


SPEC = {
    "ids": tf.TensorSpec([None, 3], tf.int64),
    "x": tf.TensorSpec([None, 2], tf.float32),
}


LABELS_SPEC = tf.TensorSpec([None, 1], tf.float32)


def as_batch(positions, x, labels, done=0):
    features = {"ids": tf.constant(IDS[positions]), "x": tf.constant(x)}
    return Batch(features, tf.constant(labels), len(labels), 0, done)
