"""Models of many shapes, on real servers, train as Keras's own fit does and export alike.

Each shape is trained two steps by shoal, with tables of any id or with plain Keras layers
that the servers hold, and by Keras itself from the same initial values.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import shoal.layers
from shoal.worker.input.batch import Batch
from tests.worker.networks import CONFIG
from tests.worker.shapes import COUNT, SHAPES, batches

pytestmark = pytest.mark.slow

SERVED = dataclasses.replace(CONFIG, embedding_threshold=0)

PLAIN = ("subclassed", "called twice", "masked recurrent", "losses of layers", "frozen table")
"""Shapes that are also built of plain Keras layers which the servers hold."""

CASES = [(name, False) for name in SHAPES] + [(name, True) for name in PLAIN]


def open_table(dim, name, **arguments):
    return shoal.layers.Embedding(dim, name=name, **arguments)


def plain_table(dim, name, **arguments):
    return keras.layers.Embedding(COUNT, dim, name=name, **arguments)


def spec_of(value):
    return tf.nest.map_structure(
        lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), value
    )


def tables_of(model):
    return {
        layer.name: layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Embedding)
    }


def rows_of(model):
    everything = [[np.arange(COUNT)] for _ in model.tables]
    pulled = model.group.pull(everything, training=True)
    return {
        name: rows[ids.inverses[0]]
        for name, rows, ids in zip(model.tables, pulled.rows, pulled.ids, strict=True)
    }


@pytest.mark.parametrize(("name", "plain"), CASES)
def test_two_steps_equal_keras_and_the_export_predicts_alike(served, exports, name, plain):
    shape, losses = SHAPES[name]
    twin = shape(plain_table)
    data = list(batches(twin, losses["loss"]))
    (features, labels), _ = data
    model = served(
        build=lambda: shape(plain_table if plain else open_table),
        optimizer=lambda: keras.optimizers.SGD(0.5),
        spec=spec_of(features),
        labels_spec=spec_of(labels),
        config=SERVED,
        **losses,
    )
    twin(features)
    tables = tables_of(twin)
    assert sorted(model.tables) == sorted(tables)
    for table, rows in rows_of(model).items():
        tables[table].embeddings.assign(rows)
    held = {id(layer.embeddings) for layer in tables.values()}

    def dense_of(variables):
        return [each for each in variables if id(each) not in held]

    def pairs():
        yield from zip(
            model.model.trainable_variables, dense_of(twin.trainable_variables), strict=True
        )
        yield from zip(
            model.model.non_trainable_variables,
            dense_of(twin.non_trainable_variables),
            strict=True,
        )

    for ours, theirs in pairs():
        theirs.assign(ours)
    twin.compile(keras.optimizers.SGD(0.5), run_eagerly=True, **losses)
    for step_features, step_labels in data:
        loss = model.train_batch(Batch(step_features, step_labels, 6, 0, 0), 1)
        twin.reset_metrics()
        expected = twin.train_on_batch(step_features, step_labels, return_dict=True)["loss"]
        assert loss == pytest.approx(float(expected), rel=1e-5)
    model.pull_dense()
    for ours, theirs in pairs():
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=theirs.path)
    for table, rows in rows_of(model).items():
        np.testing.assert_allclose(rows, tables[table].embeddings, rtol=1e-5, atol=1e-6)
    _, outputs = exports.add(f"{name}{', plain layers' if plain else ''}", model, features)
    for ours, theirs in zip(tf.nest.flatten(outputs), tf.nest.flatten(twin(features)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_every_export_predicts_alike_in_a_process_without_shoal(exports):
    """Those of this file, of the lookups' forms and of the exports' tests."""
    if not exports.keras:
        pytest.skip("the tests that export were not run")
    loaded = exports.load()
    assert set(loaded) == set(exports.keras)
    for name, has_keras in exports.keras.items():
        assert ("keras" in loaded[name]) == has_keras
