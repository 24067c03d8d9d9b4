"""keras_rs's DistributedEmbedding on pulled rows gives what it gives on weights of its own."""

import keras
import keras_rs
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.worker.code.keras_internals import all_layers
from shoal.worker.engines.tensorflow.model.lookups import RecordLookup, RowsLookup
from shoal.worker.model.embeddings.keras_embeddings import tables_above
from shoal.worker.model.refusals import Refusals
from tests.examples import examples

if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 9):
    pytest.skip("keras_rs 0.4 needs Keras 3.9", allow_module_level=True)

DIM, BATCH = 3, 4
FORMS = ("one", "dense", "ragged", "sparse")


@st.composite
def configurations(draw):
    """Tables as (vocabulary, combiner); features as (table, form); with weights or not; a seed."""
    tables = draw(
        st.lists(
            st.tuples(st.integers(1, 9), st.sampled_from(["sum", "mean", "sqrtn"])),
            min_size=1,
            max_size=3,
        )
    )
    weighted = draw(st.booleans())
    features = draw(
        st.lists(
            st.tuples(st.integers(0, len(tables) - 1), st.sampled_from(FORMS)),
            min_size=1,
            max_size=4,
        )
    )
    return tables, features, weighted, draw(st.integers(0, 2**32 - 1))


def configured(tables, features):
    """Feature configurations by name."""
    configs = [
        keras_rs.layers.TableConfig(f"table_{i}", size, DIM, combiner=combiner)
        for i, (size, combiner) in enumerate(tables)
    ]
    return {
        f"feature_{i}": keras_rs.layers.FeatureConfig(
            f"feature_{i}",
            configs[table],
            (None,) if form == "one" else (None, None),
            (None, DIM),
        )
        for i, (table, form) in enumerate(features)
    }


def bags(rng, size, form, weighted):
    """Ids below `size` of a batch in one form, and their weights in the same; empty bags too."""
    lengths = rng.integers(0, 4, BATCH)
    count = {"one": BATCH, "dense": BATCH * 3}.get(form, lengths.sum())
    ids = tf.constant(rng.integers(0, size, count), tf.int64)
    weights = tf.constant(rng.normal(size=count), tf.float32)
    if form == "dense":
        shaped = [tf.reshape(each, (BATCH, 3)) for each in (ids, weights)]
    elif form == "ragged":
        shaped = [tf.RaggedTensor.from_row_lengths(each, lengths) for each in (ids, weights)]
    elif form == "sparse":
        ragged = [tf.RaggedTensor.from_row_lengths(each, lengths) for each in (ids, weights)]
        shaped = [each.to_sparse() for each in ragged]
    else:
        shaped = [ids, weights]
    return shaped if weighted else [shaped[0], None]


def tables_in(layer):
    return {each.name: each for each in all_layers(layer) if type(each).__name__ == "EmbedReduce"}


def served(layer, ids, weights, matrices):
    """The layer's outputs on rows pulled as a job pulls them, and the rows, ids of each table."""
    with tables_above(1 << 40):
        with lookup_with(RecordLookup(Refusals())):
            layer(ids, weights)  # builds it, for which Keras may call it symbolically
        record = RecordLookup(Refusals())
        with lookup_with(record):
            layer(ids, weights)
        pulled = {}
        for name in matrices:
            calls = zip(record.layers, record.ids, strict=True)
            found = [ids for each, ids in calls if each.name == name]
            everything = np.concatenate([*found, np.zeros(0, np.int64)])
            unique, inverse = np.unique(everything, return_inverse=True)
            parts = iter(np.split(inverse.astype(np.int32), np.cumsum([len(x) for x in found])))
            pulled[name] = unique, parts
        inverses = [tf.constant(next(pulled[each.name][1])) for each in record.layers]
        rows = [tf.Variable(matrices[name][unique]) for name, (unique, _) in pulled.items()]
        positions = {name: i for i, name in enumerate(matrices)}
        lookup = RowsLookup(
            Refusals(), positions, rows, inverses, [each.table for each in record.layers]
        )
        with lookup_with(lookup), tf.GradientTape() as tape:
            outputs = layer(ids, weights)
            loss = tf.add_n([tf.reduce_sum(tf.sin(3 * each)) for each in outputs.values()])
        gradients = tape.gradient(loss, rows)
    whole = {}
    for (name, (unique, _)), gradient in zip(pulled.items(), gradients, strict=True):
        whole[name] = np.zeros_like(matrices[name])
        if gradient is not None:
            whole[name][unique] = tf.convert_to_tensor(gradient)
    return outputs, whole


@settings(max_examples=examples(60), deadline=None)
@given(configurations())
@pytest.mark.slow
def test_outputs_and_gradients_are_those_of_keras_rs(configuration):
    tables, features, weighted, seed = configuration
    rng = np.random.default_rng(seed)
    configs = configured(tables, features)
    drawn = {
        name: bags(rng, tables[table][0], form, weighted)
        for name, (table, form) in zip(configs, features, strict=True)
    }
    ids = {name: each[0] for name, each in drawn.items()}
    weights = {name: each[1] for name, each in drawn.items()} if weighted else None

    own = keras_rs.layers.DistributedEmbedding(configs)
    with tf.GradientTape() as tape:
        expected = own(ids, weights)
        loss = tf.add_n([tf.reduce_sum(tf.sin(3 * each)) for each in expected.values()])
    inner = tables_in(own)
    matrices = {name: each.embeddings.numpy() for name, each in inner.items()}
    of_own = tape.gradient(loss, [each.embeddings.value for each in inner.values()])

    layer = keras_rs.layers.DistributedEmbedding(configs)
    outputs, gradients = served(layer, ids, weights, matrices)
    assert not layer.variables
    for name, wanted in expected.items():
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, atol=1e-6)
    for (name, found), wanted in zip(gradients.items(), of_own, strict=True):
        wanted = np.zeros_like(found) if wanted is None else tf.convert_to_tensor(wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_sparse_place_without_an_id_pulls_no_row():
    configs = configured([(9, "mean")], [(0, "sparse")])
    layer = keras_rs.layers.DistributedEmbedding(configs)
    record = RecordLookup(Refusals())
    with tables_above(1 << 40), lookup_with(record):
        layer({"feature_0": tf.sparse.from_dense([[0, 5, 0], [0, 0, 7]])})
    (ids,) = record.ids
    assert ids.numpy().tolist() == [5, 7]


def test_inputs_may_be_preprocessed_as_keras_rs_does():
    configs = configured([(5, "mean"), (6, "sum")], [(0, "dense"), (1, "one")])
    rng = np.random.default_rng(3)
    ids = {"feature_0": bags(rng, 5, "dense", False)[0], "feature_1": bags(rng, 6, "one", False)[0]}
    own = keras_rs.layers.DistributedEmbedding(configs)
    expected = own(ids)
    matrices = {name: each.embeddings.numpy() for name, each in tables_in(own).items()}

    class Preprocessed(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = keras_rs.layers.DistributedEmbedding(configs)

        def call(self, ids, weights=None):
            return self.inner(self.inner.preprocess(ids, weights))

    outputs, _ = served(Preprocessed(), ids, None, matrices)
    for name, wanted in expected.items():
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, atol=1e-6)


def test_one_outside_a_job_is_keras_rs_own():
    layer = keras_rs.layers.DistributedEmbedding(configured([(5, "mean")], [(0, "one")]))
    layer({"feature_0": tf.constant([1, 4])})
    assert [tuple(each.shape) for each in layer.variables] == [(5, DIM)]
    assert set(layer.get_embedding_tables()) == {"table_0"}


def test_the_tables_are_not_to_be_had_in_a_job():
    layer = keras_rs.layers.DistributedEmbedding(configured([(5, "mean")], [(0, "one")]))
    with tables_above(1 << 40), lookup_with(RecordLookup(Refusals())):
        layer({"feature_0": tf.constant([1, 4])})
    with pytest.raises(UserError, match=r"'table_0' .* call it on the exported model.keras"):
        layer.get_embedding_tables()
