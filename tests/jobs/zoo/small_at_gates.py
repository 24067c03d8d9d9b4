"""As small.py, with a gate "step-K" in the K-th step of a process."""

import gates
import small
import tensorflow as tf
from small import custom_model, eval_metrics_fn, feed, optimizer  # noqa: F401


def loss(labels, predictions):
    def wait(labels):
        gates.pass_step()
        return labels

    passed = tf.py_function(wait, [labels], labels.dtype)
    return small.loss(tf.ensure_shape(passed, labels.shape), predictions)
