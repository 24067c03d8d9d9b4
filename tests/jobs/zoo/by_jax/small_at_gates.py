"""As small.py, with a gate "step-K" in the K-th step of a process."""

import gates
import jax
from by_jax.small import (  # noqa: F401
    custom_model,
    eval_metrics_fn,
    feed_batch,
    optimizer,
)
from by_jax.small import loss as loss_of_small


def loss(labels, predictions):
    def passed(labels):
        gates.pass_step()
        return labels

    shape = jax.ShapeDtypeStruct(labels.shape, labels.dtype)
    labels = jax.experimental.io_callback(passed, shape, labels)
    return loss_of_small(labels, predictions)
