"""Deep & Cross Network v2 on MovieLens-100K.

R. Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
Learning to Rank Systems", 2021. Run it as deepfm.py, with --model-def dcn_v2.custom_model.
"""

import keras

from shoal.layers import Embedding
from shoal.model_zoo.movielens.deepfm import (
    DIM,
    FIELDS,
    GENRES,
    eval_metrics_fn,
    feed,
    fields_of,
    loss,
    optimizer,
)

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

CROSSES = 2
"""Cross layers: the degree of the polynomial, less one."""


def custom_model():
    """The model to train: cross layers, and deep ones on top of them."""
    ids = keras.Input([len(FIELDS) + GENRES], dtype="int64", name="ids")
    used = keras.ops.cast(keras.ops.greater_equal(ids, 0), "float32")[:, :, None]
    first = keras.layers.Flatten()(fields_of(Embedding(DIM, name="vectors")(ids), used))
    crossed = first
    for _ in range(CROSSES):
        crossed = first * keras.layers.Dense(first.shape[-1])(crossed) + crossed
    for units in (64, 32):
        crossed = keras.layers.Dense(units, activation="relu")(crossed)
        crossed = keras.layers.Dropout(0.2)(crossed)
    probability = keras.layers.Dense(1, activation="sigmoid")(crossed)
    return keras.Model({"ids": ids}, keras.ops.squeeze(probability, axis=1), name="dcn_v2")
