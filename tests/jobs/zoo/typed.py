"""A model of which every column is a feature, and a label too: of any type and shape."""

import keras
import tensorflow as tf


def feed_batch(columns, mode, metadata):
    return columns if mode == "prediction" else (columns, columns)


def number(column):
    """A column of a batch as a float of each record."""
    column = tf.strings.length(column) if column.dtype == tf.string else column
    column = tf.tanh(tf.cast(column, tf.float32))
    return tf.reduce_sum(column, axis=[*range(1, column.shape.rank)])


def total(columns):
    return tf.add_n([number(columns[name]) for name in sorted(columns)])


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(shape=(), name="scale")
        self.built = True

    def call(self, features):
        return self.scale * total(features)


def custom_model():
    return Model()


def loss(labels, predictions):
    return tf.square(total(labels) - predictions)


def optimizer():
    return keras.optimizers.SGD(1e-4)
