"""MMoE on MovieLens-1M: whether a user likes a film, and whether the film is recent."""

import keras
import parts
import tensorflow as tf

SIZES = {"user": 6040, "item": 3883, "age": 7, "gender": 2, "occupation": 21, "release_year": 81}
RECENT = 70
"""Place of a year among the sorted ones."""


def feed_batch(columns, mode, metadata):
    features = {name: columns[name] for name in SIZES}
    recent = tf.cast(columns["release_year"] > RECENT, tf.float32)
    labels = {"like": columns["label"], "recent": recent}
    return features if mode == "prediction" else (features, labels)


def custom_model():
    given = {name: keras.Input([], dtype="int64", name=name) for name in SIZES}
    rows = [keras.layers.Embedding(SIZES[name], 8, name=f"{name}s")(given[name]) for name in SIZES]
    return keras.Model(given, parts.mixture(keras.layers.Concatenate()(rows), ("like", "recent")))


loss = dict.fromkeys(("like", "recent"), parts.log_loss())


def optimizer():
    return keras.optimizers.Adam(0.001)


def eval_metrics_fn():
    return {"like": {"auc": parts.auc()}}
