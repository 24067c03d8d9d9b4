"""DeepFM on MovieLens-1M: whether a user gave a film 4 or 5 stars, or 1 or 2.

H. Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017, with
factors of length 16, as in RecBole's benchmark of this data set. Run it with

    shoal train --model-zoo model_zoo/movielens_1m --model-def deepfm.custom_model \
        --training-data DIR/train.parquet --validation-data DIR/validation.parquet \
        --batch-size 4096 --num-minibatches-per-task 4 --shuffle buffer:16384 \
        --epochs 20 --evaluation-steps 145 --output OUT

Factors are kept small by a penalty on those that a minibatch looks up, which is what keeps so many
epochs from fitting the training data alone.
"""

import keras
import tensorflow as tf

import shoal.callbacks
from shoal.layers import Embedding

FIELDS = ("user", "item", "age", "gender", "occupation", "zip", "release_year")
"""Those of RecBole's benchmark, and the zip code, which it leaves out."""
GENRES = 6
"""Places for genres: no film of the data set has more."""

DIM = 16
"""Length of a factor vector."""


def feed_batch(columns, mode, metadata):
    """Ids of the fields, each in a region of the int64 numbers of its own, and the labels."""
    ids = [(number << 40) + columns[name] for number, name in enumerate(FIELDS)]
    # -1 marks an unused place; the model masks it.
    genres = columns["genres"].to_tensor(default_value=-1, shape=[None, GENRES])
    genres = tf.where(genres < 0, genres, (len(FIELDS) << 40) + genres)
    features = {"ids": tf.concat([tf.stack(ids, axis=1), genres], axis=1)}
    return features if mode == "prediction" else (features, columns["label"])


@keras.saving.register_keras_serializable("movielens_1m")
class SmallFactors(keras.layers.Layer):
    """Adds `rate` times the mean over records of the factors' sum of squares to the loss."""

    def __init__(self, rate, **options):
        super().__init__(**options)
        self.rate = rate

    def call(self, factors):
        """Factors [batch, fields, dim], as they are."""
        squares = keras.ops.sum(keras.ops.square(factors), axis=(1, 2))
        self.add_loss(self.rate * keras.ops.mean(squares))
        return factors

    def get_config(self):
        """For a model that is saved."""
        return {**super().get_config(), "rate": self.rate}


def custom_model(penalty=3e-4, layers=(128, 128, 128), dropout=0.2):
    """The model to train."""
    ids = keras.Input([len(FIELDS) + GENRES], dtype="int64", name="ids")
    used = keras.ops.cast(keras.ops.greater_equal(ids, 0), "float32")[:, :, None]

    weights = Embedding(1, embeddings_initializer="zeros", name="linear")(ids)
    linear = keras.ops.sum(fields_of(weights, used), axis=1)

    normal = keras.initializers.RandomNormal(stddev=0.01)
    factors = Embedding(DIM, embeddings_initializer=normal, name="factors")(ids)
    factors = SmallFactors(penalty)(fields_of(factors, used))
    square_of_sum = keras.ops.square(keras.ops.sum(factors, axis=1))
    sum_of_squares = keras.ops.sum(keras.ops.square(factors), axis=1)
    pairs = keras.ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True) / 2

    deep = keras.layers.Flatten()(factors)
    for units in layers:
        deep = keras.layers.Dropout(dropout)(deep)
        deep = keras.layers.Dense(units, activation="relu")(deep)
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


loss = "binary_crossentropy"


def optimizer(rate=0.002):
    """A Keras optimizer; the parameter servers do its arithmetic."""
    return keras.optimizers.Adam(rate)


def eval_metrics_fn():
    """Keras metrics by name, computed over the whole validation data."""
    return {"auc": keras.metrics.AUC(num_thresholds=2000)}


def callbacks():
    """The export is the model of the best evaluation."""
    return [shoal.callbacks.ExportBest("auc", mode="max")]
