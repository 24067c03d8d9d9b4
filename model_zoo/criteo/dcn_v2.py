"""Deep & Cross Network v2 on click records in the shape of Criteo's.

R. Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
Learning to Rank Systems", 2021. Data and command as in deepfm.py, with
--model-def dcn_v2.custom_model.
"""

import keras

from shoal.layers import Embedding
from shoal.model_zoo.criteo.deepfm import (
    DIM,
    eval_metrics_fn,
    feed_batch,
    inputs,
    loss,
    multilayer,
    optimizer,
    probability,
)

__all__ = ["custom_model", "eval_metrics_fn", "feed_batch", "loss", "optimizer"]


def cross(first, layers):
    """Each layer multiplies a linear form of what is there with the input, and adds it."""
    crossed = first
    for _ in range(layers):
        crossed = first * keras.layers.Dense(first.shape[-1])(crossed) + crossed
    return crossed


def custom_model():
    """The model to train: cross and deep layers side by side."""
    given = inputs()
    vectors = keras.layers.Flatten()(Embedding(DIM, name="vectors")(given["ids"]))
    first = keras.layers.Concatenate()([vectors, given["numbers"]])
    both = keras.layers.Concatenate()([cross(first, 2), multilayer(first, 64, 32)])
    return probability(given, keras.layers.Dense(1)(both))
