"""What only the engine of JAX does, in a process of its own: ../test_jax.py."""

import importlib
import logging
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops

from shoal.errors import UserError
from shoal.layers import Embedding
from shoal.worker.input.spec import ArraySpec
from tests.worker.engines.keras_ops.models import (
    IDS,
    INT64,
    LARGE,
    SPEC,
    OfIds,
    batch,
    module_of,
    of_ids,
    served,
)


@pytest.fixture(autouse=True)
def new_names():
    keras.utils.clear_session(free_memory=False)


def test_no_other_framework_is_imported():
    """After models were built, trained and evaluated, and with all that a worker imports."""
    importlib.import_module("shoal.worker.loop")
    assert "jax" in sys.modules
    assert not {"tensorflow", "torch"} & sys.modules.keys()


def test_constants_of_64_bits_in_a_model_are_refused():
    with pytest.raises(UserError) as told:
        of_ids(lambda _, f: ops.mod(f["ids"], 2**45))
    assert f"Python int {2**45} too large" in str(told.value)
    assert "so compute such ids in feed_batch" in str(told.value)


@pytest.mark.parametrize("wrong", [-1, 24])
@pytest.mark.parametrize("shift", [0, 5])
def test_an_id_beyond_a_layer_of_the_workers_is_refused(wrong, shift):
    """JAX would take the last row for -1, and no number for 24."""

    def build():
        hours = keras.Input((), dtype="int64", name="hour")
        rows = layers.Embedding(24, 4, name="hours")(hours - shift)
        return keras.Model({"hour": hours}, layers.Dense(1)(rows))

    spec = {"hour": SPEC["hour"]}
    model = served(module_of(build, "mse"), spec)
    assert list(model.tables) == []
    right = {"hour": np.array([0, 23]) + shift}
    assert np.isfinite(model.compute(model.prepare(batch(right)), 0)[0])
    with pytest.raises(UserError, match=f"'hours' was given the id {wrong}: its ids go from 0"):
        model.pull({"hour": np.array([3, wrong]) + shift}, training=True)


class Reading(keras.Model):
    """A model that computes with its ids."""

    def __init__(self):
        super().__init__(name="reading")
        self.factors = Embedding(1, name="factors")
        self.top = layers.Dense(1, name="top")

    def call(self, features):
        numbers = ops.cast(features["ids"], "float32")
        return self.top(numbers) + ops.sum(self.factors(features["ids"]), axis=1)


def test_values_that_a_step_reads_must_have_32_bits():
    model = served(module_of(Reading, "mse"), IDS)
    small = np.array([[1, -2], [2**31 - 1, -(2**31)]])
    assert np.isfinite(model.compute(model.prepare(batch({"ids": small})), 0)[0])
    for value in (2**31, -(2**31) - 1):
        given = {"ids": np.array([[1, value]])}
        with pytest.raises(UserError, match=f"gives {value} as feature 'ids', and the model"):
            model.compute(model.prepare(batch(given)), 0)
        with pytest.raises(UserError, match=f"gives {value} as feature 'ids', and the model"):
            model.predict_batch(given)


def test_labels_must_have_32_bits():
    model = served(
        module_of(lambda: OfIds(lambda _, f: f["ids"]), "mse"), IDS, ArraySpec((None, 1), INT64)
    )
    with pytest.raises(UserError, match=f"gives {2**33} among the labels, and the model"):
        model.compute(model.prepare(batch({"ids": LARGE}, np.array([[1], [2**33]]))), 0)


def test_many_sizes_of_batches_are_told_of_once(caplog):
    model = of_ids(lambda _, f: f["ids"])
    with caplog.at_level(logging.WARNING):
        for size in range(1, 12):
            given = {"ids": np.arange(2 * size).reshape(size, 2)}
            model.compute(model.prepare(batch(given)), 0)
    (line,) = [each.message for each in caplog.records if "--batch-size" in each.message]
    assert "so far for 1, 2, 3, 4, 5, 6, 7, 8, 9: take a --batch-size" in line


def test_a_module_of_flax_is_refused():
    bare = type("Net", (), {"__module__": "flax.nnx.module"})
    with pytest.raises(UserError) as told:
        served(module_of(bare), IDS)
    assert str(told.value) == (
        "Net() of model.py returned a Net of flax: put everything but the tables into a "
        "keras.layers.FlaxLayer or keras.layers.JaxLayer, which gets the vectors of "
        "shoal.layers.Embedding, and give a keras.Model of these layers"
    )
