"""A model of the census data as somebody writes it who knows Keras and no SQL.

The module of tests/jobs/test_sql_models.py is to learn the same. The names of the tables are its
names, as rows begin by them.
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding
from shoal.preprocessing import Hashing

to_id = Hashing()


def feed_batch(columns, mode, metadata):
    age = (tf.cast(columns["age"], tf.float64) - 38.63488041767439) / 13.654624966383036
    hours = (tf.cast(columns["hours_per_week"], tf.float64) - 40.3969442205075) / 12.348745673291422
    both = tf.strings.join([columns["education"], columns["occupation"]], "\x1f")
    features = {
        "age": tf.cast(age, tf.float32),
        "hours": tf.cast(hours, tf.float32),
        "occupation": to_id(columns["occupation"]),
        "both": to_id(both),
    }
    if mode == "prediction":
        return features
    return features, tf.cast(columns["income"], tf.float32)


class Earns(keras.Model):
    def __init__(self):
        super().__init__()
        self.occupations = Embedding(8, name="occupation_vectors")
        self.pairs = Embedding(8, name="education_occupation_vectors")
        self.layers_ = [keras.layers.Dense(64, "relu"), keras.layers.Dense(32, "relu")]
        self.last = keras.layers.Dense(1)

    def call(self, features):
        numbers = keras.ops.stack([features["age"], features["hours"]], axis=1)
        vectors = [numbers, self.occupations(features["occupation"]), self.pairs(features["both"])]
        hidden = keras.ops.concatenate(vectors, axis=1)
        for layer in self.layers_:
            hidden = layer(hidden)
        return keras.ops.sigmoid(self.last(hidden))[:, 0]


def custom_model():
    return Earns()


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    return keras.optimizers.Adam(0.003)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
