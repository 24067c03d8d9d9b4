"""Ids that are features as they are: the same as those of the traced function."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import shoal.layers
from shoal.worker.engines.tensorflow.model.id_trace import IdTrace
from shoal.worker.model.refusals import Refusals
from tests.worker.networks import IDS, SPEC, network, served_embedding

FEATURES = {
    "ids": tf.constant(IDS.reshape(2, 3)),
    "x": tf.zeros([2, 2]),
}


class Looked(keras.Model):
    """Looks up what a function makes of the features, in two tables."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.wide = shoal.layers.Embedding(1, name="wide")
        self.deep = shoal.layers.Embedding(2, name="deep")

    def call(self, features):
        ids = self.function(features["ids"])
        return tf.reduce_sum(self.wide(ids)) + tf.reduce_sum(self.deep(ids))


def traced(model, spec=SPEC):
    trace = IdTrace(model, spec, Refusals(), "model.py")
    trace.trace()
    return trace


def ids_of(trace, features):
    return [np.asarray(each) for each in trace._traced(features)]


@pytest.mark.parametrize(
    ("function", "direct"),
    [
        (lambda ids: ids, True),
        (lambda ids: tf.reshape(ids, [-1]), True),
        (lambda ids: tf.expand_dims(ids, 1), True),
        (lambda ids: tf.cast(ids, tf.int64), True),
        (lambda ids: ids + 1, False),
        (lambda ids: tf.transpose(ids), False),
        (lambda ids: ids[:, :1], False),
        (lambda ids: tf.cast(tf.cast(ids, tf.int32), tf.int64), False),
        (lambda ids: tf.constant([1, 2], tf.int64) + 0 * ids[0, 0], False),
    ],
)
def test_ids_are_those_of_the_trace(function, direct):
    trace = traced(Looked(function))
    assert (trace._sources is not None) == direct
    (wide,), (deep,) = trace.by_table(FEATURES)
    assert wide.dtype == np.int64
    assert wide.tolist() == deep.tolist() == ids_of(trace, FEATURES)[0].tolist()
    assert (wide is deep) == direct  # so that they are grouped once


def test_a_functional_model_with_a_part_of_the_ids():
    trace = traced(network(served_embedding))
    given = [each.tolist() for calls in trace.by_table(FEATURES) for each in calls]
    assert sorted(given) == sorted(each.tolist() for each in ids_of(trace, FEATURES))


def test_int32_ids_become_int64():
    spec = {"ids": tf.TensorSpec([None, 3], tf.int32)}
    trace = traced(Looked(lambda ids: ids), spec)
    features = {"ids": tf.constant([[1, -2, 2**31 - 1]], tf.int32)}
    (wide,), _ = trace.by_table(features)
    assert wide.dtype == np.int64
    assert wide.tolist() == [1, -2, 2**31 - 1]


def test_a_single_feature():
    embedding = keras.Sequential(
        [keras.Input((2,), dtype="int64"), shoal.layers.Embedding(2, name="deep")]
    )
    trace = traced(embedding, tf.TensorSpec([None, 2], tf.int64))
    assert trace._sources == [0]
    ((ids,),) = trace.by_table(tf.constant([[5, 6], [7, 8]], tf.int64))
    assert ids.tolist() == [5, 6, 7, 8]


def test_features_of_other_names_are_not_taken_for_those_of_the_trace():
    trace = traced(Looked(lambda ids: ids))
    with pytest.raises(Exception, match=r"ids|structure|other"):
        trace.by_table({"other": FEATURES["ids"], "x": FEATURES["x"]})
