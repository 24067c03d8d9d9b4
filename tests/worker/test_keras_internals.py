"""Keras's private names mean what shoal takes them for, with the Keras that is installed."""

import re
from pathlib import Path

import keras
import pytest

from shoal.worker import keras_internals
from shoal.worker.keras_internals import (
    all_layers,
    direct_layers,
    excludes_from_weight_decay,
    given_learning_rate,
    inputs_of_calls,
    inputs_structure,
    is_keras_own,
    outputs_structure,
)

FOLDER = Path(keras_internals.__file__).parent
PRIVATE = re.compile(
    r"_flatten_layers|_inbound_nodes|_inputs_struct|_outputs_struct|(?<!self)\._layers\b"
    r"|_exclude_from_weight_decay|optimizer\._learning_rate|keras\.src"
)


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


def test_no_other_module_of_the_worker_names_what_is_private():
    named = {
        each.relative_to(FOLDER).as_posix()
        for each in FOLDER.rglob("*.py")
        if PRIVATE.search(each.read_text())
    }
    assert named == {"keras_internals.py"}
