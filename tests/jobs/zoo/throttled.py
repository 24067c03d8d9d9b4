"""A small model whose minibatches take a time that the environment sets.

APART: seconds that each worker takes by itself. TOGETHER: seconds in which one worker at a time
can be, by a lock on the file LOCK. SLOW_ONE: a file, which does not exist yet; the first process
that computes takes as long as ten others by itself. The variables have the prefix SHOAL_TEST_.
"""

import fcntl
import functools
import os
import time

import keras
import tensorflow as tf

from shoal.layers import Embedding


def feed(dataset, mode, metadata):
    return dataset.map(lambda record: ({"id": record["id"]}, record["id"]))


def custom_model():
    ids = keras.Input([], dtype="int64", name="id")
    return keras.Model({"id": ids}, Slow()(Embedding(2, name="rows")(ids)))


class Slow(keras.layers.Layer):
    def call(self, rows):
        return tf.ensure_shape(tf.numpy_function(wait, [rows], tf.float32), rows.shape) + rows


@functools.cache
def is_slow_one():
    """Whether this process is the first one."""
    if "SHOAL_TEST_SLOW_ONE" not in os.environ:
        return False
    try:
        open(os.environ["SHOAL_TEST_SLOW_ONE"], "x").close()
    except FileExistsError:
        return False
    return True


_left = None  # when this process left the lock last


def wait(rows):
    global _left
    alone = 0.0 if _left is None else time.monotonic() - _left
    time.sleep(float(os.environ.get("SHOAL_TEST_APART", 0)) * (10 if is_slow_one() else 1))
    if "SHOAL_TEST_LOCK" in os.environ:
        with open(os.environ["SHOAL_TEST_LOCK"], "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Also on a slow machine a step is little beside it.
            time.sleep(max(float(os.environ.get("SHOAL_TEST_TOGETHER", 0)), min(10 * alone, 1.0)))
            _left = time.monotonic()
    return rows


def loss(labels, predictions):
    return keras.ops.mean(keras.ops.square(predictions), axis=-1)


def optimizer():
    return keras.optimizers.SGD(0.001)


def eval_metrics_fn():
    return {}
