"""Models of every form that can be exported, and their training."""

import keras
import numpy as np

import shoal.layers
from tests.worker.networks import IDS, as_batch, batches, network, served_embedding


class Subclassed(keras.Model):
    """A model that Keras cannot rebuild from a configuration."""

    def __init__(self):
        super().__init__()
        self.items = shoal.layers.Embedding(4, name="items")
        self.out = keras.layers.Dense(1, activation="sigmoid")

    def call(self, features):
        rows = keras.ops.sum(self.items(features["ids"]), axis=1)
        return self.out(keras.ops.concatenate([rows, features["x"]], axis=1))


def with_preprocessing():
    """Layers whose vocabulary and statistics were learnt, not given."""
    index = keras.layers.IntegerLookup(output_mode="multi_hot")
    index.adapt(IDS[:3])
    scale = keras.layers.Normalization()
    scale.adapt(np.array([[0.0, 1.0], [2.0, 5.0]]))
    model = network(served_embedding)
    ids, x = model.input["ids"], model.input["x"]
    both = keras.layers.Concatenate()([model.output, index(ids), scale(x)])
    return keras.Model(model.input, keras.layers.Dense(1, activation="sigmoid")(both))


def nested():
    """A table in a model within the model."""
    ids = keras.Input((3,), dtype="int64")
    rows = keras.layers.Flatten()(served_embedding(4, "inner")(ids))
    inner = keras.Model(ids, keras.layers.Dense(2)(rows))
    ids, x = keras.Input((3,), dtype="int64", name="ids"), keras.Input((2,), name="x")
    both = keras.layers.Concatenate()([inner(ids), x])
    return keras.Model({"ids": ids, "x": x}, keras.layers.Dense(1, activation="sigmoid")(both))


@keras.saving.register_keras_serializable()
class Holder(keras.layers.Layer):
    """A layer of the user's that holds a table."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table = served_embedding(4, "held")

    def call(self, ids):
        return keras.ops.sum(self.table(ids), axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], 4)


def within_a_layer():
    ids, x = keras.Input((3,), dtype="int64", name="ids"), keras.Input((2,), name="x")
    both = keras.layers.Concatenate()([Holder(dtype="float32", autocast=False)(ids), x])
    return keras.Model({"ids": ids, "x": x}, keras.layers.Dense(1, activation="sigmoid")(both))


def of_two_ranks():
    """A table that is called with the ids of a record, and with one of them."""
    ids, x = keras.Input((3,), dtype="int64", name="ids"), keras.Input((2,), name="x")
    table = served_embedding(4, "items")
    rows = [table(ids[:, 0]), keras.layers.Flatten()(table(ids)), x]
    both = keras.layers.Concatenate()(rows)
    return keras.Model({"ids": ids, "x": x}, keras.layers.Dense(1, activation="sigmoid")(both))


BUILDS = {
    "functional": lambda: network(served_embedding),
    "functional with statistics": lambda: network(served_embedding, statistics=True),
    "functional with preprocessing": with_preprocessing,
    "nested": nested,
    "of two ranks": of_two_ranks,
    "subclassed": Subclassed,
    "with a table in the user's layer": within_a_layer,
}


def trained(served, build):
    model = served(build=build, optimizer=lambda: keras.optimizers.Adagrad(0.5))
    for batch in batches():
        model.train_batch(as_batch(*batch), 1)
    return model
