"""Features of a batch, and how models of the corpus begin and end."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

ROWS = 40
TITLES = [f"movie_{i}" for i in range(ROWS)]
JOBS = [f"job_{i}" for i in range(ROWS)]
SEXES = ["female", "male"]
LENGTH = 4


def chosen(words, *shape):
    return tf.constant(np.random.default_rng(1).choice(words, shape))


def ids(*shape):
    return tf.constant(np.random.default_rng(2).integers(0, ROWS, shape))


def numbers(*shape):
    return tf.constant(np.random.default_rng(3).normal(size=shape).astype(np.float32))


PERSON = {"job": chosen(JOBS, 6), "sex": chosen(SEXES, 6), "age": numbers(6), "hours": numbers(6)}
SEQUENCE = {
    "user_id": ids(6),
    "sex": chosen(SEXES, 6),
    "sequence": chosen(TITLES, 6, LENGTH - 1),
    "ratings": numbers(6, LENGTH - 1),
    "target": chosen(TITLES, 6),
}
PAIR = {"user": ids(6), "movie": chosen(TITLES, 6)}
RATED = {"user": ids(6), "movie": ids(6)}
IMAGE = {"image": numbers(6, 8, 8)}


def person_inputs():
    words = {name: keras.Input((), dtype="string", name=name) for name in ("job", "sex")}
    return words | {name: keras.Input((), name=name) for name in ("age", "hours")}


def encoded(inputs, dim=None, kind=layers.StringLookup):
    """The columns as Keras's examples encode them: embedded texts, and numbers as they are."""
    for name, words in (("job", JOBS), ("sex", SEXES)):
        places = kind(vocabulary=words, mask_token=None, num_oov_indices=0)(inputs[name])
        yield layers.Embedding(len(words), dim or 3, name=f"{name}_rows")(places)
    for name in ("age", "hours"):
        yield ops.expand_dims(inputs[name], -1)


def sigmoid(x):
    return layers.Dense(1, activation="sigmoid")(x)


def hidden(x, units=5):
    x = layers.BatchNormalization()(layers.Dense(units)(x))
    return layers.Dropout(0.1)(layers.ReLU()(x))
