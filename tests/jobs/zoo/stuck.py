"""zoo/counting.py, whose feed stops at a record N until its gate "feed-N" is open."""

import counting
import gates
import tensorflow as tf
from counting import custom_model, eval_metrics_fn, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def feed(dataset, mode, metadata):
    def look(numbers):
        for number in numbers.numpy().ravel():
            gates.pass_gate(f"feed-{number}")
        return numbers

    def gated(record):
        ids = record["id"]
        return {"id": tf.ensure_shape(tf.py_function(look, [ids], tf.int64), ids.shape)}

    return counting.feed(dataset.map(gated), mode, metadata)
