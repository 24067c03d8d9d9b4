"""Clicks of users on items of a news site: two embeddings and a small network.

`make demo-online` trains it on clicks as they come. The tables need no vocabulary, so an item is
known as soon as the first click on it was trained.
"""

import keras

from shoal.layers import Embedding

DIM = 8


def feed_batch(columns, mode, metadata):
    """Columns of a minibatch to (features, labels), or to features for prediction."""
    features = {"user": columns["user"], "item": columns["item"]}
    return features if mode == "prediction" else (features, columns["click"])


def custom_model():
    """DeepFM's two parts: the product of the vectors, and a network of both."""
    user, item = (keras.Input([], dtype="int64", name=name) for name in ("user", "item"))
    users, items = Embedding(DIM, name="users")(user), Embedding(DIM, name="items")(item)
    bias = Embedding(1, name="popularity")(item)
    together = keras.layers.Dot(1)([users, items])
    hidden = keras.layers.Concatenate()([users, items])
    hidden = keras.layers.Dense(16, activation="relu")(hidden)
    logit = keras.layers.Add()([together, bias, keras.layers.Dense(1)(hidden)])
    return keras.Model({"user": user, "item": item}, keras.layers.Activation("sigmoid")(logit))


loss = "binary_crossentropy"


def optimizer():
    """Adagrad, whose steps are large for the rows that are new."""
    return keras.optimizers.Adagrad(0.2)


def eval_metrics_fn():
    """The metrics of progressive and other evaluations."""
    return {"auc": keras.metrics.AUC(num_thresholds=1000)}
