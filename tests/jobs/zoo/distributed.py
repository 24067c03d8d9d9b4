"""A model of keras_rs's DistributedEmbedding: three tables, each with another optimizer."""

import keras
import keras_rs
import numpy as np

USERS, ITEMS, TAGS, DIM = 24, 9, 7, 4

OPTIMIZERS = {
    "users": lambda: keras.optimizers.Adagrad(0.5, initial_accumulator_value=0.01),
    "items": lambda: keras.optimizers.SGD(3.0),
    "tags": lambda: keras.optimizers.Adam(0.05),
}


def feed_batch(columns, mode, metadata):
    features = {name: columns[name] for name in ("user", "item", "tags")}
    return features if mode == "prediction" else (features, columns["label"])


def table(name, size, combiner="mean"):
    # The same values in a job and in Keras alone, other ones in each row.
    values = np.sin(np.arange(size * DIM, dtype=np.float32)).reshape(size, DIM)
    return keras_rs.layers.TableConfig(
        name,
        size,
        DIM,
        initializer=keras.initializers.Constant(values),
        optimizer=OPTIMIZERS[name](),
        combiner=combiner,
    )


def custom_model():
    features = {
        name: keras_rs.layers.FeatureConfig(name, of, (None, *width), (None, DIM))
        for name, of, width in (
            ("user", table("users", USERS), ()),
            ("item", table("items", ITEMS), ()),
            ("tags", table("tags", TAGS, "sqrtn"), (None,)),
        )
    }
    given = {
        "user": keras.Input([], dtype="int64", name="user"),
        "item": keras.Input([], dtype="int64", name="item"),
        "tags": keras.Input([None], dtype="int64", name="tags", ragged=True),
    }
    vectors = keras_rs.layers.DistributedEmbedding(features, name="tables")(given)
    hidden = keras.ops.concatenate([vectors["user"] * vectors["item"], vectors["tags"]], axis=1)
    out = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones", name="out")
    return keras.Model(given, out(hidden)[:, 0])


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    return keras.optimizers.Adagrad(0.1)
