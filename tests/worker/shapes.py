"""Models of many shapes, each built of shoal's embedding layers or of Keras's own."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from tests.worker.own_layers import Cross

COUNT = 10
LAYERS = keras.layers


def inputs(*names, shape=(3,)):
    return [keras.Input(shape, dtype="int64", name=name) for name in names]


def flat(rows):
    return LAYERS.Flatten()(rows)


def dense(units=1, **arguments):
    return LAYERS.Dense(units, **arguments)


def dict_inputs(table):
    a, b = inputs("a", "b")
    hidden = keras.ops.concatenate([flat(table(4, "x")(a)), flat(table(2, "y")(b))], axis=1)
    return keras.Model({"a": a, "b": b}, dense(activation="sigmoid")(hidden))


def list_inputs(table):
    given = inputs("a", "b")
    rows = [flat(table(4, f"table_{i}")(each)) for i, each in enumerate(given)]
    return keras.Model(given, dense(activation="sigmoid")(LAYERS.Multiply()(rows)))


def tuple_inputs(table):
    a, b = inputs("a", "b")
    rows = [flat(table(4, f"table_{i}")(each)) for i, each in enumerate((a, b))]
    return keras.Model((a, b), dense(activation="sigmoid")(LAYERS.Subtract()(rows)))


def sequential(table):
    return keras.Sequential(
        [keras.Input((3,), dtype="int64"), table(4, "x"), LAYERS.Flatten(), dense(3), dense()]
    )


class Subclassed(keras.Model):
    def __init__(self, table):
        super().__init__()
        self.rows = table(4, "x")
        self.first = table(1, "wide")
        self.out = dense(activation="tanh")

    def call(self, features, training=False):
        deep = self.out(tf.reshape(self.rows(features["a"]), [-1, 12]))
        return tf.sigmoid(deep + tf.reduce_sum(self.first(features["b"]), axis=1))


def called_twice(table):
    a, b = inputs("a", "b")
    rows = table(4, "x")
    left, right = (LAYERS.GlobalAveragePooling1D()(rows(each)) for each in (a, b))
    return keras.Model({"a": a, "b": b}, keras.ops.sigmoid(LAYERS.Dot(1)([left, right])))


def nested_tower(table):
    """One tower, a model of its own, called on two inputs."""
    (ids,) = inputs("ids")
    tower = keras.Model(ids, dense(3, activation="tanh")(flat(table(4, "x")(ids))), name="tower")
    a, b = inputs("a", "b")
    both = LAYERS.Dot(1)([tower(a), tower(b)])
    return keras.Model({"a": a, "b": b}, keras.ops.sigmoid(both))


class Bag(LAYERS.Layer):
    """A layer of the user's own around a table and a weight."""

    def __init__(self, table, **kwargs):
        super().__init__(**kwargs)
        self.rows = table(4, "x")
        self.scale = self.add_weight(shape=(4,), initializer="ones", name="scale")

    def call(self, ids):
        return tf.reduce_sum(self.rows(ids), axis=1) * self.scale


def custom_layer(table):
    (ids,) = inputs("a")
    return keras.Model({"a": ids}, dense(activation="sigmoid")(Bag(table, name="bag")(ids)))


def masked_recurrent(table):
    (ids,) = inputs("a")
    hidden = LAYERS.GRU(3)(table(4, "x", mask_zero=True)(ids))
    return keras.Model({"a": ids}, dense(activation="sigmoid")(hidden))


def batch_normalization(table):
    (ids,) = inputs("a")
    hidden = LAYERS.BatchNormalization(momentum=0.5)(flat(table(4, "x")(ids)))
    return keras.Model({"a": ids}, dense(activation="sigmoid")(hidden))


def dropout(table):
    (ids,) = inputs("a")
    hidden = LAYERS.Dropout(0.5, seed=3)(flat(table(4, "x")(ids)))
    return keras.Model({"a": ids}, dense(activation="sigmoid")(hidden))


def frozen_layers(table):
    (ids,) = inputs("a")
    hidden = dense(3, trainable=False)(flat(table(4, "x")(ids)))
    hidden = LAYERS.BatchNormalization(trainable=False)(hidden)
    return keras.Model({"a": ids}, dense(activation="sigmoid")(hidden))


def added_losses(table):
    (ids,) = inputs("a")
    rows = table(4, "x", activity_regularizer="l2")(ids)
    hidden = dense(3, kernel_regularizer="l2", activity_regularizer="l1")(flat(rows))
    return keras.Model({"a": ids}, dense(activation="sigmoid")(hidden))


def attention(table):
    (ids,) = inputs("a")
    rows = table(4, "x")(ids)
    hidden = LAYERS.LayerNormalization()(rows + LAYERS.MultiHeadAttention(2, 2)(rows, rows))
    hidden = LAYERS.GlobalMaxPooling1D()(hidden)
    return keras.Model({"a": ids}, dense(activation="sigmoid")(hidden))


def two_heads(table):
    (ids,) = inputs("a")
    hidden = flat(table(4, "x")(ids))
    return keras.Model(ids, [dense(activation="sigmoid")(hidden), dense(2)(hidden)])


def named_heads(table):
    (ids,) = inputs("a")
    hidden = flat(table(4, "x")(ids))
    heads = {"click": dense(activation="sigmoid", name="click")(hidden), "time": dense()(hidden)}
    return keras.Model({"a": ids}, heads)


def computed_ids(table):
    """Ids that the model makes of its features."""
    a, b = inputs("a", "b")
    crossed = (3 * a + b) % COUNT
    return keras.Model({"a": a, "b": b}, dense(activation="sigmoid")(flat(table(4, "x")(crossed))))


def frozen_table(table):
    a, b = inputs("a", "b")
    rows = [table(4, "x")(a), table(4, "still", trainable=False)(b)]
    hidden = LAYERS.Flatten()(LAYERS.Concatenate()(rows))
    return keras.Model({"a": a, "b": b}, dense(activation="sigmoid")(hidden))


def sequential_tower(table):
    """A sequential model with a table, within a functional one."""
    a, b = inputs("a", "b")
    tower = keras.Sequential(
        [keras.Input((3,), dtype="int64"), table(4, "x"), LAYERS.Flatten(), dense(3)], name="tower"
    )
    return keras.Model({"a": a, "b": b}, dense(activation="sigmoid")(tower(a) * tower(b)))


def factorization(table):
    """A factorization machine beside a deep part."""
    a, b = inputs("a", "b")
    ids = LAYERS.Concatenate()([a, b])
    rows, first = table(4, "deep")(ids), table(1, "wide")(ids)
    total, squares = keras.ops.sum(rows, axis=1), keras.ops.sum(rows * rows, axis=1)
    pairs = keras.ops.sum(total * total - squares, axis=1, keepdims=True) / 2
    logit = keras.ops.sum(first, axis=1) + pairs + dense()(dense(5, activation="relu")(flat(rows)))
    return keras.Model({"a": a, "b": b}, LAYERS.Activation("sigmoid")(logit))


def cross_network(table):
    (ids,) = inputs("a")
    first = x = flat(table(4, "x")(ids))
    for _ in range(2):
        x = Cross()([first, x])
    return keras.Model({"a": ids}, dense(activation="sigmoid")(x))


def convolution(table):
    (ids,) = inputs("a")
    hidden = LAYERS.Conv1D(3, 2, activation="relu")(table(4, "x")(ids))
    hidden = LAYERS.GlobalAveragePooling1D()(hidden)
    return keras.Model({"a": ids}, dense(activation="sigmoid")(hidden))


def bidirectional(table):
    (ids,) = inputs("a")
    hidden = LAYERS.Bidirectional(LAYERS.LSTM(2))(table(4, "x", mask_zero=True)(ids))
    return keras.Model({"a": ids}, dense(activation="sigmoid")(hidden))


def hashed_ids(table):
    """Ids that a layer of Keras's own makes."""
    (ids,) = inputs("a")
    rows = table(4, "x")(LAYERS.Hashing(COUNT)(ids))
    return keras.Model({"a": ids}, dense(activation="sigmoid")(flat(rows)))


class Tasks(keras.Model):
    """Two outputs by name of a model with parts that act otherwise in training."""

    def __init__(self, table):
        super().__init__()
        self.rows = table(4, "x")
        self.norm = LAYERS.BatchNormalization(momentum=0.5)
        self.drop = LAYERS.Dropout(0.25, seed=9)
        self.click, self.time = dense(activation="sigmoid"), dense()

    def call(self, features, training=False):
        hidden = self.norm(tf.reshape(self.rows(features["a"]), [-1, 12]), training=training)
        hidden = self.drop(hidden, training=training)
        return {"click": self.click(hidden), "time": self.time(hidden)}


ODD = ("user-id", "class", "9lives", "größe", "a.b c", "self_", "plain")
"""Names of features that are no names of Python's arguments, and some that are."""

NESTED = {"user": {"user-id": 0, "last": [0, 0]}, "item": (0, {"id": 0}), "class": 0}
"""Features within features."""


def by_names(table, features):
    """A table for each leaf of the features, and one that all share."""
    shared = table(3, "shared")
    rows = [
        flat(layer(each))
        for i, each in enumerate(tf.nest.flatten(features))
        for layer in (shared, table(2, f"table_{i}"))
    ]
    return dense(activation="sigmoid")(LAYERS.Concatenate()(rows))


def odd_names(table):
    given = {name: keras.Input((3,), dtype="int64", name=name) for name in ODD}
    return keras.Model(given, by_names(table, given))


def nested_features(table):
    given = tf.nest.map_structure(lambda _: keras.Input((3,), dtype="int64"), NESTED)
    given["class"] = keras.Input((3,), dtype="int64", name="class")
    return keras.Model(given, by_names(table, given))


class NestedFeatures(keras.Model):
    """Of features within features, and outputs within outputs, by odd names."""

    features = NESTED

    def __init__(self, table):
        super().__init__()
        self.rows, self.first = table(4, "x"), table(1, "wide")
        self.out = dense(activation="tanh")

    def call(self, features, training=False):
        user, (item, other) = features["user"], features["item"]
        ids = keras.ops.concatenate([user["user-id"], *user["last"], item], axis=1)
        deep = self.out(tf.reshape(self.rows(ids), [-1, 48]))
        wide = tf.reduce_sum(self.first((other["id"] + features["class"]) % COUNT), axis=1)
        return {"click-rate": tf.sigmoid(deep + wide), "time": deep}


SINGLE = {"loss": "binary_crossentropy"}
SHAPES = {
    "functional, dict of inputs": (dict_inputs, SINGLE),
    "functional, list of inputs": (list_inputs, SINGLE),
    "functional, tuple of inputs": (tuple_inputs, SINGLE),
    "sequential": (sequential, {"loss": "mse"}),
    "subclassed": (Subclassed, SINGLE),
    "called twice": (called_twice, SINGLE),
    "nested tower": (nested_tower, SINGLE),
    "custom layer": (custom_layer, SINGLE),
    "masked recurrent": (masked_recurrent, SINGLE),
    "batch normalization": (batch_normalization, SINGLE),
    "dropout": (dropout, SINGLE),
    "frozen layers": (frozen_layers, SINGLE),
    "losses of layers": (added_losses, SINGLE),
    "attention": (attention, SINGLE),
    "two outputs, list of losses": (
        two_heads,
        {"loss": ["binary_crossentropy", keras.losses.Huber()], "loss_weights": [1.0, 0.25]},
    ),
    "two outputs, dict of losses": (
        named_heads,
        {
            "loss": {"click": "binary_crossentropy", "time": "mae"},
            "loss_weights": {"click": 1.0, "time": 3.0},
        },
    ),
    "computed ids": (computed_ids, SINGLE),
    "frozen table": (frozen_table, SINGLE),
    "sequential tower": (sequential_tower, SINGLE),
    "factorization machine": (factorization, SINGLE),
    "cross network": (cross_network, SINGLE),
    "convolution": (convolution, SINGLE),
    "bidirectional": (bidirectional, SINGLE),
    "hashed ids": (hashed_ids, SINGLE),
    "subclassed, dict of outputs": (
        Tasks,
        {"loss": {"click": "binary_crossentropy", "time": "mse"}},
    ),
    "names that are no identifiers": (odd_names, SINGLE),
    "nested features": (nested_features, SINGLE),
    "nested features, subclassed": (
        NestedFeatures,
        {"loss": {"click-rate": "binary_crossentropy", "time": "mse"}},
    ),
}
"""Name -> a function of a factory of tables, and the losses."""


def batches(model, loss):
    """Two batches of (features, labels) for a model of `SHAPES`; every id is in each."""
    rng = np.random.default_rng(7)
    for _ in range(2):
        ids = {}
        for name in ("a", "b"):
            every = np.concatenate([np.arange(COUNT), rng.integers(0, COUNT, 8)])
            ids[name] = tf.constant(rng.permutation(every).reshape(6, 3), tf.int64)
        wanted = getattr(model, "_inputs_struct", {"a": 0, "b": 0})
        if isinstance(model, keras.Sequential):
            wanted = None
        wanted = getattr(model, "features", wanted)
        if isinstance(wanted, dict) and not set(wanted) <= set(ids):
            every = itertools.cycle(ids.values())
            features = tf.nest.map_structure(lambda _, every=every: next(every), wanted)
        elif isinstance(wanted, dict):
            features = {name: ids[name] for name in wanted}
        elif isinstance(wanted, list | tuple):
            features = type(wanted)([ids["a"], ids["b"]])
        else:
            features = ids["a"]
        clicks = tf.constant(rng.integers(0, 2, (6, 1)), tf.float32)
        times = tf.constant(rng.normal(size=(6, 2)), tf.float32)
        if isinstance(loss, dict):
            yield features, dict(zip(loss, (clicks, times[:, :1]), strict=True))
        elif isinstance(loss, list):
            yield features, [clicks, times]
        else:
            yield features, clicks
