"""DLRM on click records in the shape of Criteo's: dot products of a number and 26 id vectors.

M. Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", 2019. Data and command as in deepfm.py, with --model-def dlrm.custom_model.
"""

import keras
import numpy as np

from shoal.layers import Embedding
from shoal.model_zoo.criteo.deepfm import (
    DIM,
    IDS,
    eval_metrics_fn,
    feed_batch,
    inputs,
    loss,
    multilayer,
    optimizer,
    probability,
)

__all__ = ["custom_model", "eval_metrics_fn", "feed_batch", "loss", "optimizer"]


def custom_model():
    """The model to train."""
    given = inputs()
    bottom = multilayer(given["numbers"], 64, DIM)
    vectors = Embedding(DIM, name="vectors")(given["ids"])
    fields = keras.ops.concatenate([bottom[:, None, :], vectors], axis=1)
    products = keras.ops.matmul(fields, keras.ops.transpose(fields, (0, 2, 1)))
    # Each pair once: what is above the diagonal, as places in the flattened matrix.
    left, right = np.triu_indices(IDS + 1, k=1)
    flat = keras.ops.reshape(products, (-1, (IDS + 1) ** 2))
    pairs = keras.ops.take(flat, (left * (IDS + 1) + right).astype("int32"), axis=1)
    top = multilayer(keras.ops.concatenate([bottom, pairs], axis=1), 64, 32)
    return probability(given, keras.layers.Dense(1)(top))
