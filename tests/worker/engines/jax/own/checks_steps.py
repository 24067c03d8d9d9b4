"""What only the engine of JAX does, in a process of its own: ../test_jax.py."""

import dataclasses
import importlib
import logging
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops

from shoal.errors import UserCodeError, UserError
from shoal.layers import Embedding
from shoal.worker.engines import chosen_engine
from shoal.worker.input.spec import ArraySpec
from tests.worker.engines.keras_ops.models import (
    CONFIG,
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


@pytest.mark.parametrize(
    "ids_of",
    [
        lambda _, f: ops.cast(f["ids"], "int64"),
        lambda _, f: ops.cast(f["ids"][:, :1], "int32") + 7,
    ],
    ids=["whole", "a part"],
)
def test_floats_that_are_too_large_for_ids_are_refused(ids_of):
    model = of_ids(ids_of, {"ids": ArraySpec((None, 2), np.dtype(np.float32))})
    good = np.array([[3, 2**24 - 1], [0.5, -9]], np.float32)
    model.prepare(batch({"ids": good}))
    bad = np.array([[3, 4], [2**24, 4]], np.float32)
    with pytest.raises(UserError, match=r"model\.py: feature 'ids' is 16777216 as float32, and"):
        model.prepare(batch({"ids": bad}))


def test_floats_of_a_functional_model_s_integer_input_are_looked_at():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        vectors = ops.sum(Embedding(2, name="factors")(ids), axis=1)
        return keras.Model({"ids": ids}, layers.Dense(1)(vectors))

    model = served(module_of(build, "mse"), {"ids": ArraySpec((None, 2), np.dtype(np.float32))})
    model.prepare(batch({"ids": np.array([[3, 4]], np.float32)}))
    with pytest.raises(UserError, match="feature 'ids' is 33554432 as float32"):
        model.prepare(batch({"ids": np.array([[3, 2**25]], np.float32)}))


class Looking(layers.Layer):
    """A layer whose function looks at values of what it is given."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)

    def compute_output_shape(self, shape):
        return shape


BY_VALUES = {
    "if": (lambda x: x if ops.sum(x) > 0 else -x, r"keras\.ops\.where .* jax\.lax\.cond"),
    "int": (lambda x: x * int(x[0, 0]), r"makes a number of Python's .* sizes are in \.shape"),
    "range": (lambda x: sum(x for _ in range(ops.cast(x[0, 0], "int32"))), "fori_loop"),
    "numpy": (lambda x: x + np.maximum(x, 0).sum(), "gives an array to NumPy, .* feed_batch"),
    "a condition": (lambda x: x + ops.sum(x[x > 0]), r"jnp\.where\(condition, array, 0\)"),
}


@pytest.mark.parametrize("where", ["layer", "loss", "metric"])
@pytest.mark.parametrize("name", BY_VALUES)
def test_code_that_looks_at_values_is_told_where_and_what_to_write(name, where):
    looking, instead = BY_VALUES[name]
    message = rf"^(the metrics of )?checks_steps\.py, line \d+: the code .*{instead}"

    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        vectors = ops.sum(Embedding(2, name="factors")(ids), axis=1)
        top = layers.Dense(1)(Looking(looking)(vectors) if where == "layer" else vectors)
        return keras.Model({"ids": ids}, top)

    def of_predictions(labels, predictions):
        return labels + looking(predictions)

    loss = of_predictions if where == "loss" else "mse"
    metrics = (lambda: {"own": of_predictions}) if where == "metric" else None
    module = module_of(build, loss, eval_metrics_fn=metrics)

    def first_batch():
        model, given = served(module, IDS), batch({"ids": LARGE})
        if where == "metric":
            chosen_engine().evaluator(model, module).add(given)
        model.compute(model.prepare(given), 0)

    with pytest.raises(UserError, match=message):
        first_batch()


def test_the_weight_of_a_table_is_not_in_a_worker():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        table = Embedding(2, name="factors")
        return keras.Model(ids, ops.sum(table(ids)) + ops.sum(table.embeddings))

    message = "'factors' has no weight `embeddings` in a worker, .* call the layer with the ids"
    with pytest.raises(UserCodeError, match=message):
        served(module_of(build), IDS)

    def build_of_keras():
        ids = keras.Input((2,), dtype="int64", name="ids")
        table = layers.Embedding(100, 2, name="users")
        return keras.Model(ids, ops.sum(table(ids)) + ops.sum(table.embeddings))

    message = (
        r"^model\.py: embedding 'users' .*\(layer\.embeddings, checks_steps\.py, line \d+\): call"
    )
    above = dataclasses.replace(CONFIG, embedding_threshold=0)
    with pytest.raises(UserError, match=message):
        served(module_of(build_of_keras), IDS, config=above)


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
