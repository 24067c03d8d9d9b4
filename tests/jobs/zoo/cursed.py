"""zoo/counting.py, which goes wrong at the ids that $SHOAL_TEST_CURSED names by place and way.

feed-N: feed raises at id N. loss-N: the loss of a batch with id N raises. nan-N: it is not a
number. abort-N: the process ends in feed.
"""

import os

import counting
import tensorflow as tf
from counting import custom_model, eval_metrics_fn, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

CURSED = frozenset(os.environ.get("SHOAL_TEST_CURSED", "").split())


def check(numbers, place):
    def look(numbers):
        for number in numbers.numpy().ravel():
            if f"abort-{number}" in CURSED:
                os.abort()
            if f"{place}-{number}" in CURSED:
                raise ValueError(f"{number} is cursed in {place}")
        return numbers

    return tf.ensure_shape(tf.py_function(look, [numbers], tf.int64), numbers.shape)


def feed(dataset, mode, metadata):
    checked = dataset.map(lambda record: {"id": check(record["id"], "feed")})
    return counting.feed(checked, mode, metadata)


def loss(labels, predictions):
    value = counting.loss(check(labels, "loss"), predictions)
    for name in CURSED:
        if name.startswith("nan-"):
            here = tf.reduce_any(labels == int(name[4:]))
            value = tf.where(here, float("nan"), value)
    return value
