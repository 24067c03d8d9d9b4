"""A small model with all that makes training depend on chance and order: tables, dropout, Adam.

Its rate changes with each version.
"""

import keras

from shoal.layers import Embedding


def feed(dataset, mode, metadata):
    def prepare(record):
        features = {"user": record["user"], "item": record["item"]}
        return features if mode == "prediction" else (features, record["label"])

    return dataset.map(prepare)


def custom_model(width=8, dtype=None):
    user = keras.Input([], dtype="int64", name="user")
    item = keras.Input([], dtype="int64", name="item")
    vectors = [
        Embedding(width, "random_normal", name="users", dtype=dtype)(user),
        Embedding(8, "random_uniform", name="items", dtype=dtype)(item),
    ]
    hidden = keras.layers.Dense(7, activation="relu")(keras.ops.concatenate(vectors, axis=1))
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.3)(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    return keras.Model({"user": user, "item": item}, outputs[:, 0])


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels[:, None], predictions[:, None])


def optimizer():
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 40, 0.9))


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
