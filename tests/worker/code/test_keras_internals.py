"""Keras's private names mean what shoal takes them for, with the Keras that is installed."""

import re
from pathlib import Path

import keras
import pytest

from shoal.worker.code import keras_internals
from shoal.worker.code.keras_internals import (
    all_layers,
    arguments_of_calls,
    direct_layers,
    excludes_from_weight_decay,
    given_learning_rate,
    inputs_of_calls,
    inputs_structure,
    is_keras_own,
    layers_under_way,
    outputs_structure,
)

FOLDER = Path(keras_internals.__file__).parents[1]
PRIVATE = re.compile(
    r"_flatten_layers|_inbound_nodes|_inputs_struct|_outputs_struct|(?<!self)\._layers\b"
    r"|_exclude_from_weight_decay|optimizer\._learning_rate|keras\.src"
)
PRIVATE_OF_KERAS_RS = re.compile(r"_default_device|_placement_to|_sparsecore_|_feature_configs")


class Own(keras.layers.Layer):
    def __init__(self):
        super().__init__(name="own")
        self.inner = keras.layers.Dense(2, name="inner")

    def call(self, x):
        return self.inner(x)


@pytest.fixture
def functional():
    x = keras.Input((3,), name="x")
    dense = keras.layers.Dense(2, name="first")
    return keras.Model({"x": x}, {"y": Own()(dense(x))}), dense


def test_layers_are_found_at_any_depth_and_beside_that_those_of_a_model_alone(functional):
    model, _ = functional
    assert {"x", "first", "own", "inner"} <= {each.name for each in all_layers(model)}
    assert [each.name for each in direct_layers(model)] == ["x", "first", "own"]
    whole = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="only")])
    kinds = [type(each).__name__ for each in direct_layers(whole)]
    assert kinds == ["InputLayer", "Dense"]


def test_a_model_tells_what_it_was_made_with(functional):
    model, dense = functional
    assert list(inputs_structure(model)) == ["x"]
    assert list(outputs_structure(model)) == ["y"]
    assert [each.name for each in inputs_of_calls(dense)] == ["x"]
    (((x,), named),) = arguments_of_calls(dense)
    assert (x.name, named) == ("x", {})

    class Subclassed(keras.Model):
        pass

    assert inputs_structure(Subclassed()) is None
    assert outputs_structure(Subclassed()) is None


def test_an_optimizer_tells_its_rate_and_what_is_not_decayed():
    schedule = keras.optimizers.schedules.InverseTimeDecay(1.0, 1, 1.0)
    optimizer = keras.optimizers.AdamW(schedule)
    assert given_learning_rate(optimizer) is schedule
    assert not excludes_from_weight_decay(optimizer)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert excludes_from_weight_decay(optimizer)


def test_keras_own_is_told_from_a_class_that_derives_from_it():
    assert is_keras_own(keras.losses.binary_crossentropy)
    assert is_keras_own(keras.losses.BinaryCrossentropy())
    assert is_keras_own(keras.layers.Dense(1))
    assert not is_keras_own(Own())
    assert not is_keras_own(test_keras_own_is_told_from_a_class_that_derives_from_it)


@pytest.mark.parametrize("whole", [True, False])
def test_a_layer_in_build_knows_those_around_it(whole):
    seen = []

    class Inner(keras.layers.Layer):
        def build(self, shape=None):
            seen.append([each.name for each in layers_under_way()])

        def call(self, x):
            return x

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="outer")
            self.inner = Inner(name="inner")

        def build(self, shape):
            self.inner.build(shape)

        def call(self, x):
            return self.inner(x)

    if whole:
        x = keras.Input((3,))
        keras.Model(x, Outer()(x))
    else:
        Outer()(keras.ops.zeros((2, 3)))
    assert seen == [["outer", "inner"]]
    assert layers_under_way() == []


@pytest.mark.parametrize(
    ("names", "owner"),
    [
        (PRIVATE, "code/keras_internals.py"),
        (PRIVATE_OF_KERAS_RS, "model/embeddings/keras_rs_tables.py"),
    ],
)
def test_no_other_module_of_the_worker_names_what_is_private(names, owner):
    named = {
        each.relative_to(FOLDER).as_posix()
        for each in FOLDER.rglob("*.py")
        if names.search(each.read_text())
    }
    assert named == {owner}
