"""xDeepFM on MovieLens-100K: a compressed interaction network beside a deep one.

J. Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender
Systems", 2018. Run it as deepfm.py, with --model-def xdeepfm.custom_model.
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

MAPS = (12, 12)
"""Feature maps of each layer of the interaction network."""


def interactions(fields):
    """The sums over the vectors' places of each feature map, [batch, sum(MAPS)].

    fields: [batch, fields, DIM]. A map is a weighed sum of the products, place by place, of
    all pairs of a field and a map of the layer before.
    """
    maps, pooled = fields, []
    for count in MAPS:
        products = fields[:, :, None, :] * maps[:, None, :, :]
        pairs = fields.shape[1] * maps.shape[1]
        places = keras.ops.transpose(keras.ops.reshape(products, (-1, pairs, DIM)), (0, 2, 1))
        maps = keras.ops.transpose(keras.layers.Dense(count, use_bias=False)(places), (0, 2, 1))
        pooled.append(keras.ops.sum(maps, axis=2))
    return keras.ops.concatenate(pooled, axis=1)


def custom_model():
    """The model to train."""
    ids = keras.Input([len(FIELDS) + GENRES], dtype="int64", name="ids")
    used = keras.ops.cast(keras.ops.greater_equal(ids, 0), "float32")[:, :, None]
    linear = keras.ops.sum(fields_of(Embedding(1, "zeros", name="linear")(ids), used), axis=1)
    fields = fields_of(Embedding(DIM, name="factors")(ids), used)
    deep = keras.layers.Flatten()(fields)
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
        deep = keras.layers.Dropout(0.2)(deep)
    both = keras.ops.concatenate([interactions(fields), deep], axis=1)
    probability = keras.ops.sigmoid(linear + keras.layers.Dense(1)(both))
    return keras.Model({"ids": ids}, keras.ops.squeeze(probability, axis=1), name="xdeepfm")
