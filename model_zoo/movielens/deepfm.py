"""DeepFM on MovieLens-100K: whether a user will like a film.

H. Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR
Prediction", 2017. Run it with

    shoal train --model-zoo model_zoo/movielens --model-def deepfm.custom_model \
        --training-data DIR/train.parquet --validation-data DIR/validation.parquet

A user module is this file: `custom_model` and `feed` are yours to design, `loss`,
`optimizer` and `eval_metrics_fn` are mostly one line each.
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding

FIELDS = (
    "user",
    "item",
    "age",
    "gender",
    "occupation",
    "zip",
    "release_year",
    "hour",
    "weekday",
)
GENRES = 6
"""Places for genres: no film of the data set has more."""

DIM = 16
"""Length of a factor vector."""


def feed(dataset, mode, metadata):
    """Turn records into what the model and the loss take.

    dataset: a tf.data.Dataset of records, each a dict of its columns: scalars, and
        1-D tensors for columns of lists.
    mode: "training", "evaluation" or "prediction"; the last has no labels.
    metadata: the columns' names and types.

    Returns a dataset of (features, label), or of features for prediction. Not
    batched: shoal does that.
    """

    def prepare(record):
        # One table holds all fields. Its ids need no vocabulary: each field gets a
        # region of the int64 numbers for itself.
        ids = [(number << 40) + record[name] for number, name in enumerate(FIELDS)]
        genres = (len(FIELDS) << 40) + record["genres"][:GENRES]
        missing = GENRES - tf.size(genres)
        # -1 marks an unused place; the model masks it.
        ids = tf.concat([tf.stack(ids), tf.pad(genres, [[0, missing]], constant_values=-1)], 0)
        features = {"ids": tf.ensure_shape(ids, [len(FIELDS) + GENRES])}
        return features if mode == "prediction" else (features, record["label"])

    return dataset.map(prepare)


def custom_model(dropout=0.2):
    """The model to train: linear part + factorization machine + deep part over the same factors."""
    ids = keras.Input([len(FIELDS) + GENRES], dtype="int64", name="ids")
    used = keras.ops.cast(keras.ops.greater_equal(ids, 0), "float32")[:, :, None]

    weights = Embedding(1, embeddings_initializer="zeros", name="linear")(ids)
    linear = keras.ops.sum(fields_of(weights, used), axis=1)

    uniform = keras.initializers.RandomUniform(-0.05, 0.05)
    factors = Embedding(DIM, embeddings_initializer=uniform, name="factors")(ids)
    factors = fields_of(factors, used)
    # The sum over all pairs of dot products, in linear time: (square of the sum -
    # sum of the squares) / 2.
    square_of_sum = keras.ops.square(keras.ops.sum(factors, axis=1))
    sum_of_squares = keras.ops.sum(keras.ops.square(factors), axis=1)
    pairs = keras.ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True) / 2

    deep = keras.layers.Flatten()(factors)
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
        deep = keras.layers.Dropout(dropout)(deep)
    deep = keras.layers.Dense(1)(deep)

    probability = keras.ops.sigmoid(linear + pairs + deep)
    return keras.Model({"ids": ids}, keras.ops.squeeze(probability, axis=1), name="deepfm")


def fields_of(vectors, used):
    """One vector per field: the single-valued ones as they are, then the genres' mean."""
    vectors = vectors * used
    single, genres = vectors[:, : len(FIELDS)], vectors[:, len(FIELDS) :]
    count = keras.ops.sum(used[:, len(FIELDS) :], axis=1, keepdims=True)
    mean = keras.ops.sum(genres, axis=1, keepdims=True) / keras.ops.maximum(count, 1.0)
    return keras.ops.concatenate([single, mean], axis=1)


def loss(labels, predictions):
    """The mean loss of a batch's predictions [batch], as one number."""
    return keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    """A Keras optimizer; the parameter servers do its arithmetic."""
    return keras.optimizers.Adam(0.001)


def eval_metrics_fn():
    """Keras metrics by name, computed over the whole validation data."""
    return {"auc": keras.metrics.AUC(num_thresholds=1000)}
