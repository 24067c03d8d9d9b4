"""A table of which each record has another row: it grows as long as the job trains.

By seven hundred and fifty rows a second at most, so that a machine of any speed has time to start
a pod.
"""

import time

import keras
import tensorflow as tf

from shoal.layers import Embedding

ROWS_PER_SECOND = 750
AT_ONCE = 20


def paced(number):
    if number % AT_ONCE == 0:
        time.sleep(AT_ONCE / ROWS_PER_SECOND)
    return number


def feed(dataset, mode, metadata):
    def example(record):
        number = tf.numpy_function(paced, [record["id"]], tf.int64, stateful=True)
        return {"id": tf.ensure_shape(number, [])}, record["label"]

    return dataset.map(example)


def custom_model():
    ids = keras.Input([], dtype="int64", name="id")
    rows = Embedding(1024, name="rows")(ids)
    return keras.Model({"id": ids}, keras.layers.Dense(1)(rows)[:, 0])


def loss(labels, predictions):
    return keras.ops.square(predictions - labels)


def optimizer():
    return keras.optimizers.Adagrad(0.01)


def eval_metrics_fn():
    return {}
