"""A small model whose training is bounded by data, feed, straggler, or spin: $SHOAL_TEST_BOUND.

Each sleeps where a real job of the kind spends its time: a reader, `feed`, and `feed` of worker-1.
With spin, `feed` computes instead.
"""

import os
import time

import keras
import numpy as np
import tensorflow as tf

from shoal.layers import Embedding

BOUND = os.environ.get("SHOAL_TEST_BOUND", "")
RECORD_SECONDS = 0.002
CHUNK = 20


class Slow:
    def __init__(self, path):
        self.path = path
        self.ids = np.loadtxt(path, np.int64, skiprows=1)

    def sources(self):
        return [(self.path, len(self.ids))]

    def read(self, source, start, end):
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            time.sleep(RECORD_SECONDS * (last - first))
            yield {"id": self.ids[first:last]}


if BOUND == "data":

    def custom_data_reader(pattern):
        return Slow(pattern)


def spin(until):
    number = 0
    while time.monotonic() < until:
        number += 1
    return number


def feed(dataset, mode, metadata):
    slow = BOUND in ("feed", "spin") or (
        BOUND == "straggler" and os.environ.get("SHOAL_PROCESS") == "worker-1"
    )

    def wait(ids):
        if BOUND == "spin":
            spin(time.monotonic() + RECORD_SECONDS * 2)
        else:
            time.sleep(RECORD_SECONDS * 2)
        return ids

    def prepare(record):
        ids = record["id"]
        if slow:
            ids = tf.ensure_shape(tf.py_function(wait, [ids], tf.int64), ids.shape)
        return {"id": ids}, tf.cast(ids % 2, tf.float32)

    return dataset.map(prepare)


def custom_model():
    ids = keras.Input([], dtype="int64", name="id")
    hidden = keras.layers.Dense(4, activation="relu")(Embedding(8, name="rows")(ids))
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    return keras.Model({"id": ids}, outputs[:, 0])


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels[:, None], predictions[:, None])


def optimizer():
    return keras.optimizers.SGD(0.1)
