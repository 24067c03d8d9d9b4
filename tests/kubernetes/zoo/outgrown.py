"""A table of which each record has another row: it grows as long as the job trains.

By six thousand rows a second at most, so that a machine of any speed has time to start a pod.
"""

import time

import keras
import tensorflow as tf

from shoal.layers import Embedding

ROWS_PER_SECOND = 6000


def paced(ids):
    time.sleep(len(ids) / ROWS_PER_SECOND)
    return ids


def feed_batch(columns, mode, metadata):
    ids = tf.numpy_function(paced, [columns["id"]], tf.int64, stateful=True)
    return {"id": tf.ensure_shape(ids, [None])}, columns["label"]


def custom_model():
    ids = keras.Input([], dtype="int64", name="id")
    rows = Embedding(64, name="rows")(ids)
    return keras.Model({"id": ids}, keras.layers.Dense(1)(rows)[:, 0])


def loss(labels, predictions):
    return keras.ops.square(predictions - labels)


def optimizer():
    return keras.optimizers.Adagrad(0.01)


def eval_metrics_fn():
    return {}
