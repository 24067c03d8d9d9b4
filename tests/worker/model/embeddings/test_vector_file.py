"""Tables that begin with the vectors of a Parquet file, by id."""

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.bags import integers
from shoal.errors import UserError
from shoal.layers import Embedding
from shoal.worker.input.batch import Batch
from tests.worker.exported import tried

IDS = [5, -7, 2**61, 12]
VECTORS = np.random.default_rng(3).normal(size=(4, 2)).astype(np.float32)
LABELS = tf.constant([[1.0], [0.0], [1.0], [0.0]])


@pytest.fixture
def serve(served, tmp_path):
    """A model whose table begins with the vectors of a file of these columns."""

    def make(dtype="int64", file="vectors.parquet", layers=1, differ=False, **columns):
        if columns:
            pq.write_table(pa.table(columns), tmp_path / file)

        def build():
            ids = keras.Input([], dtype=dtype, name="ids")
            path = tmp_path / file
            shared = {"table": "words"} if layers > 1 else {"name": "words"}
            initials = [path, None if differ else path][:layers]
            rows = [Embedding(2, "ones", initial=each, **shared)(ids) for each in initials]
            hidden = keras.ops.concatenate(rows, axis=1) if layers > 1 else rows[0]
            out = keras.layers.Dense(1, "sigmoid", name="out")
            return keras.Model({"ids": ids}, out(hidden))

        spec = {"ids": tf.TensorSpec([None], dtype)}
        return served(build=build, spec=spec)

    return make


def vectors(values=VECTORS):
    return pa.array(values.tolist(), pa.list_(pa.float64()))


def rows_of(model, ids):
    ids = np.asarray(ids, np.int64)
    pulled = model.group.pull([[ids]], training=True)
    return pulled.rows[0][pulled.ids[0].inverses[0]]


def test_ids_of_the_file_begin_with_its_vectors_and_others_by_the_initializer(serve):
    model = serve(id=IDS, vector=vectors())
    np.testing.assert_array_equal(rows_of(model, [*IDS, 3]), [*VECTORS, [1, 1]])
    features = {"ids": tf.constant([5, 12, 3, 5], tf.int64)}
    model.train_batch(Batch(features, LABELS, 4, 0, 0), 1)
    after = rows_of(model, IDS)
    changed = (after != VECTORS).any(axis=1)
    assert not changed[[1, 2]].any()
    assert changed.any()
    tried(model)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_are_ids_by_their_hash(serve, kind):
    words = ["shoal", "", "grün", "fish"]
    model = serve("string", id=pa.array(words, kind), vector=vectors())
    np.testing.assert_array_equal(rows_of(model, integers(tf.constant(words))), VECTORS)


def test_a_shared_table_has_one_file(serve):
    model = serve(layers=2, id=IDS, vector=vectors())
    position = np.array(IDS, np.int64)
    pulled = model.group.pull([[position, position]], training=True)
    np.testing.assert_array_equal(pulled.rows[0][pulled.ids[0].inverses[0]], VECTORS)
    with pytest.raises(UserError, match="share table 'words', but differ in initial"):
        serve(layers=2, differ=True, id=IDS, vector=vectors())


NAN = np.where([[False, False], [False, True], [False, False], [False, False]], np.nan, VECTORS)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "which cannot be read: .*No such file"),
        (
            {"key": IDS, "vector": vectors()},
            "which has no column 'id'; its columns are key, vector",
        ),
        ({"id": [5, 1, 5, 2], "vector": vectors()}, "which has the id 5 twice"),
        ({"id": [5, None, 1, 2], "vector": vectors()}, "which has no id in row 1"),
        ({"id": [5.0, 2, 1, 3], "vector": vectors()}, "whose column id is double"),
        ({"id": pa.array([2**63, 2, 1, 3], pa.uint64()), "vector": vectors()}, "ids are int64"),
        ({"id": IDS, "vector": [[1.0, 2.0]] * 3 + [[1.0]]}, "1 numbers in row 3: output_dim is 2"),
        ({"id": IDS, "vector": [[1.0, 2.0], None, None, None]}, "which has no vector in row 1"),
        ({"id": IDS, "vector": vectors(NAN)}, "not finite in row 1"),
        ({"id": IDS, "vector": [1.0] * 4}, "whose column vector is double"),
        ({"id": pa.array([], pa.int64()), "vector": vectors(VECTORS[:0])}, "which has no rows"),
    ],
)
def test_a_file_of_another_form_is_refused_with_layer_and_file(serve, columns, words):
    with pytest.raises(UserError, match=rf"embedding 'words' begins with .*parquet.*{words}"):
        serve(**columns)


def test_a_frozen_table_has_no_optimizer_of_its_own(served):
    def build():
        ids = keras.Input([], dtype="int64", name="ids")
        rows = Embedding(2, name="words", optimizer="adam", trainable=False)(ids)
        return keras.Model({"ids": ids}, keras.layers.Dense(1, name="out")(rows))

    words = r"optimizer\(\) of model.py: table 'words' has trainable=False, and an optimizer"
    with pytest.raises(UserError, match=words):
        served(build=build, spec={"ids": tf.TensorSpec([None], tf.int64)})
