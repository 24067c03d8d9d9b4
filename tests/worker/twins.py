"""The same model on servers and in plain Keras: alike before training, compared after it."""

import keras
import numpy as np
import tensorflow as tf

from tests.worker.networks import IDS, network, plain_embedding


def rows_of(model, name):
    """Every row of a table, in the order of IDS."""
    position = list(model.tables).index(name)
    found = {}
    for ids, rows in model.group.read_table(position):
        found |= dict(zip(ids.tolist(), rows, strict=True))
    return np.stack([found[int(i)] for i in IDS])


def initial_rows(model, name):
    """The values that the rows of a table begin with, in the order of IDS."""
    position = list(model.tables).index(name)
    calls = [[np.zeros(0, np.int64)] for _ in model.tables]
    calls[position] = [IDS]
    pulled = model.group.pull(calls, training=True)
    return pulled.rows[position][pulled.ids[position].inverses[0]]


def twin_of(model, statistics=False):
    """The same model in plain Keras, with the same values, and its dense variables."""
    twin = network(plain_embedding, statistics)
    for name in ("wide", "deep"):
        twin.get_layer(name).embeddings.assign(initial_rows(model, name))
    dense = [v for v in twin.trainable_variables if "embeddings" not in v.path]
    for ours, theirs in zip(model.trainable.variables, dense, strict=True):
        theirs.assign(ours)
    return twin, dense


def gradients_of(twin, positions, x, labels):
    """(loss, dense gradients of all trainable variables) of the twin at one of `batches`."""
    with tf.GradientTape() as tape:
        outputs = twin({"ids": positions, "x": x}, training=True)
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(labels, outputs))
    gradients = tape.gradient(loss, [v.value for v in twin.trainable_variables])
    return float(loss), [tf.convert_to_tensor(gradient) for gradient in gradients]


def assert_alike(model, twin, dense, rtol, atol):
    """The model's dense variables and rows on the servers are those of its twin."""
    model.pull_dense()
    for ours, theirs in zip(model.trainable.variables, dense, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
    for name in ("wide", "deep"):
        np.testing.assert_allclose(
            rows_of(model, name), twin.get_layer(name).embeddings, rtol=rtol, atol=atol
        )
