"""Parts that several models of this folder have."""

import keras
from records import CATEGORIES, INTEGERS, ITEMS, LAST, USERS

SIZES = {"user": USERS, "item": ITEMS, "category": CATEGORIES}


def inputs(*names):
    """Keras inputs by name."""
    made = {name: keras.Input([], dtype="int64", name=name) for name in names if name in INTEGERS}
    if "price" in names:
        made["price"] = keras.Input([], name="price")
    if "last" in names:
        made["last"] = keras.Input([LAST], dtype="int64", name="last")
    return made


def vectors(given, dim, prefix=""):
    """A vector for each id among the inputs."""
    return [
        keras.layers.Embedding(SIZES[name], dim, name=f"{prefix}{name}s")(given[name])
        for name in INTEGERS
        if name in given
    ]


def column(values):
    """[n] as [n, 1]."""
    return keras.layers.Reshape([1])(values)


def hidden(values, *widths):
    """Dense layers with relu."""
    for width in widths:
        values = keras.layers.Dense(width, activation="relu")(values)
    return values


def logit(values, name=None):
    """One number a record, [n]."""
    return keras.layers.Reshape([], name=name)(keras.layers.Dense(1)(values))


def mixture(first, tasks):
    """An output for each task: a gate and a tower, over three experts that all tasks share."""
    experts = [keras.layers.Reshape([1, 16])(hidden(first, 32, 16)) for _ in range(3)]
    together = keras.layers.Concatenate(axis=1)(experts)
    outputs = {}
    for task in tasks:
        gate = keras.layers.Dense(len(experts), activation="softmax")(first)
        mixed = keras.layers.Dot(axes=(1, 1))([together, gate])
        outputs[task] = logit(hidden(mixed, 8), name=task)
    return outputs


def auc():
    """The AUC of logits."""
    return keras.metrics.AUC(from_logits=True, num_thresholds=2000, name="auc")


def log_loss():
    """The log loss of logits."""
    return keras.losses.BinaryCrossentropy(from_logits=True)
