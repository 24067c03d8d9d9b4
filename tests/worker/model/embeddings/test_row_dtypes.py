"""A table's rows are of the dtype of its layer's variables; the layer gives its compute dtype."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import shoal.layers
from shoal.errors import UserError
from tests.worker.model.test_training_semantics import network, train_both
from tests.worker.networks import CONFIG, IDS, as_batch
from tests.worker.twins import initial_rows, rows_of


def of_dtype(served, dtype):
    def build():
        return network(shoal.layers.Embedding(4, "uniform", name="items", dtype=dtype))

    return served(build=build, optimizer=keras.optimizers.SGD)


@pytest.mark.parametrize(
    ("dtype", "rows", "computes"),
    [
        (None, "", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("mixed_bfloat16", "", "bfloat16"),
        (keras.DTypePolicy("bfloat16"), "bfloat16", "bfloat16"),
    ],
)
def test_rows_are_of_the_variables_dtype_and_the_result_is_computed(served, dtype, rows, computes):
    model = of_dtype(served, dtype)
    assert model.spec.tables[0].value_dtype == rows
    layer = model.model.get_layer("items")
    assert layer.output.dtype == computes
    found = initial_rows(model, "items")
    rounded = tf.cast(tf.cast(found, tf.bfloat16), tf.float32).numpy()
    assert (found == rounded).all() == bool(rows)


def test_a_plain_layer_above_the_threshold_keeps_its_dtype_on_the_servers(served):
    def build():
        return network(keras.layers.Embedding(IDS.size, 4, name="items", dtype="bfloat16"))

    config = dataclasses.replace(CONFIG, embedding_threshold=0)
    model = served(build=build, optimizer=keras.optimizers.SGD, config=config)
    (table,) = model.spec.tables
    assert (table.value_dtype, table.vocabulary) == ("bfloat16", IDS.size)


def test_training_is_that_of_keras_but_for_the_last_place_of_a_row(served):
    """Keras rounds each update to the nearest bfloat16, the servers up or down at random."""

    def sgd():
        return keras.optimizers.SGD(0.5)

    losses, expected, pairs = train_both(
        served,
        sgd,
        lambda: shoal.layers.Embedding(4, "uniform", name="items", dtype="bfloat16"),
        lambda: keras.layers.Embedding(IDS.size, 4, name="items", dtype="bfloat16"),
    )
    # Six updates, each with an error of at most one unit in the last place.
    np.testing.assert_allclose(losses, expected, rtol=2.0**-8 * 6)
    for name, ours, theirs in pairs:
        units = np.maximum(np.abs(theirs.astype(np.float32)), 2.0**-5) * 2.0**-7
        assert (np.abs(ours - theirs.astype(np.float32)) <= 6 * units).all(), name


def test_updated_rows_are_bfloat16(served):
    model = of_dtype(served, "bfloat16")
    positions = np.arange(IDS.size).reshape(-1, 3)
    x = np.ones((len(positions), 2), np.float32)
    before = initial_rows(model, "items")
    model.train_batch(as_batch(positions, x, np.ones((len(positions), 1), np.float32)), 1)
    rows = rows_of(model, "items")
    assert (rows != before).any()
    np.testing.assert_array_equal(rows, tf.cast(tf.cast(rows, tf.bfloat16), tf.float32))


def test_a_dtype_that_rows_cannot_have_is_refused_by_the_layers_name():
    for dtype in ("float64", "int8"):
        words = rf"'users' has the dtype {dtype}: .* rows as float32, bfloat16 or float16"
        with pytest.raises(UserError, match=words):
            shoal.layers.Embedding(4, name="users", dtype=dtype)


def test_layers_of_one_table_agree_on_its_dtype(served):
    def build():
        ids = keras.Input((3,), dtype="int64", name="ids")
        x = keras.Input((2,), name="x")
        rows = [
            shoal.layers.Embedding(4, name=name, table="items", dtype=dtype)(ids)
            for name, dtype in (("a", "bfloat16"), ("b", "float32"))
        ]
        joined = keras.layers.Concatenate()([keras.layers.Flatten()(each) for each in rows])
        return keras.Model({"ids": ids, "x": x}, keras.layers.Dense(1)(joined))

    with pytest.raises(UserError, match="share table 'items', but differ in dtype"):
        served(build=build, optimizer=keras.optimizers.SGD)
