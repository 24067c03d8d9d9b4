"""Counts in its own weights how often each record was trained: `shoal chaos --count`.

SGD at rate 1, initial values of zero, and a gradient of exactly 1 for each record. So the row
of an id is minus the number of times that it was trained. Each record counts three times: in
the table `records`, where its row is its own; in the table `users`, whose ids repeat; and in
one dense weight of a group of records, so that every server has some.

    shoal chaos --count --kill ps:0@step=100
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding
from shoal.proto import faults

GROUPS = 12
"""Dense weights; record n counts in weight n % GROUPS."""


def give(records):
    """The record numbers, int64 [batch], unless `shoal chaos` has something else in mind."""
    faults.point("feeding")
    return records


def feed_batch(columns, mode, metadata):
    """Columns of a minibatch to (features, labels)."""
    # Python of its own for each minibatch: what is not TensorFlow's runs once, while it is traced.
    record = tf.numpy_function(give, [columns["record"]], tf.int64)
    record.set_shape(columns["record"].shape)
    features = {"record": record, "user": columns["user"]}
    return features if mode == "prediction" else (features, record)


def reached(records):
    """The records of a step, which `shoal chaos` may have stand still."""
    faults.point("computing")
    return records


class Groups(keras.layers.Layer):
    """One weight for each group of records."""

    def build(self, shape):
        """Make the weights."""
        self.groups = self.add_weight(shape=[GROUPS], initializer="zeros", name="groups")

    def call(self, record):
        """The weight of each record's group, [batch]."""
        return keras.ops.take(self.groups, keras.ops.mod(record, GROUPS))


def custom_model():
    """Its prediction for a record is the sum of the weights that count it."""
    record = keras.Input([], dtype="int64", name="record")
    user = keras.Input([], dtype="int64", name="user")
    by_record = Embedding(1, embeddings_initializer="zeros", name="records")(record)
    by_user = Embedding(1, embeddings_initializer="zeros", name="users")(user)
    counts = by_record[:, 0] + by_user[:, 0] + Groups(name="dense")(record)
    return keras.Model({"record": record, "user": user}, counts)


def loss(labels, predictions):
    """A sum, so that a record counts once, whatever the minibatch."""
    with tf.control_dependencies([tf.numpy_function(reached, [labels], tf.int64)]):
        return tf.reduce_sum(predictions)


def optimizer():
    """A row becomes less by its gradient."""
    return keras.optimizers.SGD(1.0)
