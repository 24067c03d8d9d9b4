"""A small model that goes wrong in the way that $SHOAL_TEST_BREAK names."""

import os
import resource

import keras
import tensorflow as tf

from shoal.layers import Embedding

BREAK = os.environ.get("SHOAL_TEST_BREAK", "")
BAD_RECORD = 137


def feed(dataset, mode, metadata):
    def check(number):
        if number == BAD_RECORD:
            raise ValueError("record is cursed")
        return number

    def prepare(record):
        number = record["user"]
        if BREAK == "feed":
            number = tf.ensure_shape(tf.py_function(check, [number], tf.int64), [])
        if BREAK == "column":
            number = record["usr"]
        label = tf.cast(record["label"], tf.float32)
        if BREAK == "nan":
            label = tf.where(number == BAD_RECORD, float("nan"), label)
        return {"user": number}, label

    return dataset.map(prepare)


class UnsaveableOnceTrained(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.scale

    def get_config(self):
        if self.scale != 1.0:
            raise ValueError("the scale is not 1")
        return super().get_config()


class FullDisk(keras.layers.Layer):
    """Once it is trained, no file of the process that saves it grows beyond LARGEST bytes."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="zeros")

    def call(self, x):
        return x + 1.0 + self.scale

    def get_config(self):
        if self.scale != 0.0:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["SHOAL_TEST_LARGEST"]), hard))
        return super().get_config()


class Unsaveable(keras.layers.Layer):
    """Keras cannot make it anew, without **kwargs, and nothing holds its lookup table."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        table = tf.lookup.KeyValueTensorInitializer([0], [self.factor])
        return x * tf.lookup.StaticHashTable(table, 1.0).lookup(tf.constant(0))


def custom_model():
    user = keras.Input([], dtype="int64", name="user")
    output = Embedding(1, name="users")(user)[:, 0]
    if BREAK == "export":
        output = Unsaveable(2.0)(output)
    if BREAK == "late export":
        output = UnsaveableOnceTrained()(output)
    if BREAK == "full disk":
        output = FullDisk()(output)
    return keras.Model({"user": user}, output)


def loss(labels, predictions):
    if BREAK == "loss":
        raise ZeroDivisionError("no loss today")
    return tf.square(labels - predictions)


def optimizer():
    return keras.optimizers.SGD(0.1)
