"""A model of which every column is a feature, and a label too: of any type and shape.

Text and whole numbers are ids of tables, of any rank and ragged; the others are numbers.
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding


def feed_batch(columns, mode, metadata):
    return columns if mode == "prediction" else (columns, columns)


def number(column):
    """A column of a batch as a float of each record."""
    column = tf.strings.length(column) if column.dtype == tf.string else column
    return summed(tf.tanh(tf.cast(column, tf.float32)))


def summed(column):
    if isinstance(column, tf.RaggedTensor):
        column = column.to_tensor()  # sums of ragged ones take long to trace
    return tf.reduce_sum(column, axis=[*range(1, column.shape.rank)])


def total(columns):
    return tf.add_n([number(columns[name]) for name in sorted(columns)])


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(shape=(), name="scale")
        self.words, self.numbers = (Embedding(2, name=name) for name in ("words", "numbers"))
        self.built = True

    def call(self, features):
        found = [self.scale * total(features)]
        for name in sorted(features):
            column = features[name]
            if column.dtype == tf.string:
                found.append(summed(self.words(column)))
            elif column.dtype.is_integer and column.dtype != tf.uint64:  # ids are int64
                found.append(summed(self.numbers(column)))
        return tf.add_n(found)


def custom_model():
    return Model()


def loss(labels, predictions):
    return tf.square(total(labels) - predictions)


def optimizer():
    return keras.optimizers.SGD(1e-5)
