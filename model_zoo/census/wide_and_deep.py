"""Wide & Deep on the census data: memorised crosses of text beside a deep network.

H.-T. Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. As there, Ftrl with L1
trains the wide part and Adagrad the deep one. Run it as dnn.py, with --model-def
wide_and_deep.custom_model.
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding
from shoal.model_zoo.census import dnn
from shoal.model_zoo.census.dnn import eval_metrics_fn, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed_batch", "loss", "optimizer"]

CROSSES = (
    ("education", "occupation"),
    ("marital_status", "relationship"),
    ("native_country", "occupation"),
)
"""Pairs of columns that the wide part memorises."""


def feed_batch(columns, mode, metadata):
    """The features of dnn.py and the crosses: two texts joined are one id."""
    crosses = [
        tf.strings.join([f"{left}&{right}=", columns[left], "&", columns[right]])
        for left, right in CROSSES
    ]
    given = dnn.feed_batch(columns, mode, metadata)
    features = given if mode == "prediction" else given[0]
    features["crosses"] = tf.stack(crosses, axis=1)
    return features if mode == "prediction" else (features, given[1])


def custom_model():
    """The model to train."""
    deep = dnn.custom_model()
    crosses = keras.Input([len(CROSSES)], dtype="string", name="crosses")
    weights = Embedding(1, embeddings_initializer="zeros", name="wide")(crosses)
    wide = keras.ops.sum(weights, axis=(1, 2))
    logit = keras.ops.log(deep.output + 1e-7) - keras.ops.log(1 - deep.output + 1e-7)
    return keras.Model(deep.input | {"crosses": crosses}, keras.ops.sigmoid(wide + logit))


def optimizer():
    """An optimizer by table name; "default" is for the dense variables and the other tables."""
    return {
        "default": keras.optimizers.Adagrad(0.2),
        "wide": keras.optimizers.Ftrl(0.05, l1_regularization_strength=0.001),
    }
