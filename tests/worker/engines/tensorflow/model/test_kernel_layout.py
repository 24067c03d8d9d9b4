"""The inputs of kernels are found, however a model puts them together, or said to be unknown."""

import keras
import pytest
import tensorflow as tf

import shoal.layers
from shoal.worker.engines.tensorflow.model.kernel_layout import kernel_layouts
from tests.worker.networks import SPEC, network, served_embedding


class Own(keras.Model):
    """Gives a dense layer what a function makes of two embeddings, and of x."""

    def __init__(self, join, dtype=None):
        super().__init__(name="own")
        self.join = join
        self.a = shoal.layers.Embedding(2, name="a", dtype=dtype)
        self.b = shoal.layers.Embedding(3, name="b", combiner="mean", dtype=dtype)
        self.out = keras.layers.Dense(1, name="out", dtype=dtype)

    def call(self, features):
        ids, x = features["ids"], features["x"]
        return self.out(self.join(self.a(ids), self.b(ids), x))


def found_of(join, dtype=None):
    model = Own(join, dtype)
    with shoal.layers.lookup_with(lambda layer, ids: tf.zeros((*ids.shape, layer.output_dim))):
        model({"ids": tf.zeros((1, 3), tf.int64), "x": tf.zeros((1, 2))})
    return kernel_layouts(model, SPEC)


def short(layout):
    return [f"{each.name}{each.position}.{each.column}" for each in layout]


A, B = ["a0.0", "a0.1", "a1.0", "a1.1", "a2.0", "a2.1"], ["b0.0", "b0.1", "b0.2"]


def flat(a):
    return tf.reshape(a, [-1, 6])


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16"])
@pytest.mark.parametrize(
    ("join", "wanted"),
    [
        (lambda a, b, x: tf.concat([flat(a), b], 1), A + B),
        (lambda a, b, x: tf.concat([tf.cast(x, b.dtype), b], 1), ["x0.0", "x1.0", *B]),
        (lambda a, b, x: keras.layers.Flatten()(a)[:, 2:5], A[2:5]),
        (lambda a, b, x: flat(tf.transpose(a, [0, 2, 1])), A[::2] + A[1::2]),
        (lambda a, b, x: tf.gather(b, [2, 0], axis=1), ["b0.2", "b0.0"]),
        (lambda a, b, x: tf.concat([b, b], 1), B + B),
        (lambda a, b, x: tf.concat(tf.unstack(a, axis=1)[::-1], 1), A[4:] + A[2:4] + A[:2]),
    ],
)
def test_what_moves_numbers_is_followed(join, wanted, dtype):
    found = found_of(join, dtype)
    assert short(found.layouts["own/out/kernel"]) == wanted
    assert found.elsewhere == set()


def test_other_operations_are_inputs_by_their_names():
    found = found_of(lambda a, b, x: tf.concat([b, tf.reduce_sum(a, 1, name="total")], 1))
    layout = found.layouts["own/out/kernel"]
    assert short(layout[:3]) == B
    assert [(each.kind, each.name, each.position) for each in layout[3:]] == [
        ("computed", "total:0", 0),
        ("computed", "total:0", 1),
    ]
    assert found.elsewhere == {"table a"}


@pytest.mark.parametrize(
    ("join", "words"),
    [
        (lambda a, b, x: a, "its input has the shape"),
        (lambda a, b, x: tf.reshape(tf.reduce_sum(x), [1, 1]) * tf.ones((1, 4)), None),
    ],
)
def test_what_cannot_be_known_is_said(join, words):
    layout = found_of(join).layouts.get("own/out/kernel", "not a product")
    if words is None:
        assert {each.kind for each in layout} == {"computed"}
    else:
        assert isinstance(layout, str)


def test_places_that_a_feature_chooses_are_no_layout():
    """Which column stands where is another matter in each batch."""
    found = found_of(lambda a, b, x: tf.gather(b, [tf.cast(x[0, 0], tf.int32), 0], axis=1))
    layout = found.layouts["own/out/kernel"]
    assert {each.kind for each in layout} == {"computed"}
    assert {"table b", "feature x"} <= found.elsewhere


def test_calls_of_one_table_are_told_apart():
    found = kernel_layouts(network(served_embedding), SPEC)
    (layout,) = (each for each in found.layouts.values() if len(each) == 18)
    calls = {each.call for each in layout if each.kind == "table"}
    assert len(calls) == 2
    assert len(set(layout)) == 18
    assert found.elsewhere == {"table wide"}


class Scaled(shoal.layers.Embedding):
    """Mixes the columns of its rows."""

    def call(self, ids, weights=None):
        found = super().call(ids, weights)
        return found - tf.reduce_mean(found, -1, keepdims=True)


def test_what_a_users_subclass_makes_of_rows_is_not_known(monkeypatch):
    monkeypatch.setattr(shoal.layers, "Embedding", Scaled)
    found = found_of(lambda a, b, x: tf.concat([flat(a), b], 1))
    assert {each.kind for each in found.layouts["own/out/kernel"]} == {"computed"}


def test_a_layer_is_as_it_was_afterwards():
    model = network(served_embedding)
    before = model.get_layer("deep").call
    kernel_layouts(model, SPEC)
    assert model.get_layer("deep").call == before
