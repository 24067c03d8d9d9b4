"""As small.py, with a gate "step-K" in the K-th step of a process, where JAX computes it."""

import gates
import jax
import keras
from by_jax import small
from by_jax.small import custom_model, eval_metrics_fn, feed_batch, optimizer  # noqa: F401
from jax.experimental import io_callback


def loss(labels, predictions):
    def wait(labels):
        gates.pass_step()
        return labels

    if keras.backend.backend() != "jax":
        return small.loss(labels, predictions)
    shape = jax.ShapeDtypeStruct(labels.shape, labels.dtype)
    io_callback(wait, shape, jax.lax.stop_gradient(labels), ordered=True)
    return small.loss(labels, predictions)
