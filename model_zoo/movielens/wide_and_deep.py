"""Wide & Deep on MovieLens-100K: memorised crosses beside learned factors.

H.-T. Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. In the style
of a table per feature (deepfm.py shows one table for all). Run it as deepfm.py, with
--model-def wide_and_deep.custom_model.
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding

DIMS = {
    "user": 16,
    "item": 16,
    "age": 8,
    "gender": 2,
    "occupation": 8,
    "zip": 8,
    "release_year": 8,
    "hour": 4,
    "weekday": 2,
}
"""Single-valued features and the length of their vectors."""

CROSSES = (("gender", "item"), ("occupation", "item"), ("age", "item"))
"""Pairs of features that the wide part memorises."""

GENRES, GENRE_DIM = 6, 8


def feed(dataset, mode, metadata):
    """Turn records into (features, label), or features for prediction (see deepfm.py)."""

    def prepare(record):
        features = {name: record[name] for name in DIMS}
        # Any int64 is an id, so a cross is two numbers put together: no hashing into
        # buckets, no collisions.
        features["crosses"] = tf.stack(
            [
                (number << 60) + record[left] * 2**40 + record[right]
                for number, (left, right) in enumerate(CROSSES)
            ]
        )
        genres = record["genres"][:GENRES]
        missing = GENRES - tf.size(genres)
        genres = tf.pad(genres, [[0, missing]], constant_values=-1)  # -1: no genre
        features["genres"] = tf.ensure_shape(genres, [GENRES])
        return features if mode == "prediction" else (features, record["label"])

    return dataset.map(prepare)


def custom_model():
    """The model to train."""
    inputs = {name: keras.Input([], dtype="int64", name=name) for name in DIMS}
    inputs["crosses"] = keras.Input([len(CROSSES)], dtype="int64", name="crosses")
    inputs["genres"] = keras.Input([GENRES], dtype="int64", name="genres")

    wide = Embedding(1, embeddings_initializer="zeros", name="wide")(inputs["crosses"])
    wide = keras.ops.sum(wide, axis=1)

    vectors = [Embedding(dim, name=f"{name}_vector")(inputs[name]) for name, dim in DIMS.items()]
    genres = Embedding(GENRE_DIM, name="genre_vector")(inputs["genres"])
    used = keras.ops.cast(keras.ops.greater_equal(inputs["genres"], 0), "float32")[:, :, None]
    count = keras.ops.maximum(keras.ops.sum(used, axis=1), 1.0)
    vectors.append(keras.ops.sum(genres * used, axis=1) / count)

    deep = keras.layers.Concatenate()(vectors)
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
        deep = keras.layers.Dropout(0.2)(deep)
    deep = keras.layers.Dense(1)(deep)

    probability = keras.ops.sigmoid(wide + deep)
    return keras.Model(inputs, keras.ops.squeeze(probability, axis=1), name="wide_and_deep")


def loss(labels, predictions):
    """The mean loss of a batch's predictions [batch], as one number."""
    return keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    """A Keras optimizer; the parameter servers do its arithmetic."""
    return keras.optimizers.Adam(0.001)


def eval_metrics_fn():
    """Keras metrics by name, computed over the whole validation data."""
    return {
        "auc": keras.metrics.AUC(num_thresholds=1000),
        "accuracy": keras.metrics.BinaryAccuracy(),
    }
