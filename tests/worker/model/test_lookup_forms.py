"""Lookups of every form, on real servers, train and export as plain Keras does.

Each shape is a model of shoal's layers and its twin, in which a keras variable holds the
rows of the few ids and TensorFlow's own embedding_lookup_sparse does the combining.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import shoal.layers
from shoal.errors import UserError
from shoal.worker.input.batch import Batch
from tests.worker.exported import tried

pytestmark = pytest.mark.slow

IDS = np.array([-(2**63), -7, 0, 3, 11, 2**61], np.int64)  # ascending
TEXTS = np.array(["", "a", "bc", "déjà"])


def hashed(texts):
    return tf.strings.to_hash_bucket_fast(texts, 2**63 - 1)


class Twin(keras.layers.Layer):
    """shoal.layers.Embedding for known ids, made of TensorFlow's own functions."""

    def __init__(self, dim, combiner=None, mask_zero=False, rows=None, trainable=True, **kwargs):
        super().__init__(trainable=trainable, **kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.rows = rows
        self.combiner, self.mask_zero, self.dim = combiner, mask_zero, dim

    def call(self, ids, weights=None):
        keep = None
        if self.mask_zero:
            empty = "" if ids.dtype == tf.string else 0
            keep = tf.not_equal(ids, empty)
        known = self.rows.ids

        def positions(x):
            return tf.argmax(
                tf.equal((hashed(x) if x.dtype == tf.string else x)[..., None], known), -1
            )

        if isinstance(ids, tf.Tensor) and self.combiner is None:
            return tf.gather(self.rows.values.value, positions(ids))
        if isinstance(ids, tf.RaggedTensor) and self.combiner is None:
            return ids.with_flat_values(
                tf.gather(self.rows.values.value, positions(ids.flat_values))
            )
        if isinstance(ids, tf.RaggedTensor):
            sparse, weights = ids.to_sparse(), None if weights is None else weights.to_sparse()
        elif isinstance(ids, tf.SparseTensor):
            sparse = ids
        else:
            where = tf.where(tf.ones_like(ids, bool) if keep is None else keep)
            shape = tf.shape(ids, tf.int64)
            sparse = tf.SparseTensor(where, tf.gather_nd(ids, where), shape)
            if weights is not None:
                weights = tf.SparseTensor(where, tf.gather_nd(weights, where), shape)
        sparse = tf.SparseTensor(sparse.indices, positions(sparse.values), sparse.dense_shape)
        out = tf.nn.safe_embedding_lookup_sparse(
            self.rows.values.value, sparse, weights, combiner=self.combiner
        )
        return tf.ensure_shape(out, [None, self.dim])


class Rows:
    """The rows of a table in the twin."""

    def __init__(self, ids, values, trainable=True):
        self.ids = tf.constant(ids)
        self.values = keras.Variable(values, trainable=trainable)


class Net(keras.Model):
    """One or two lookups of `ids`, added up, below a dense layer."""

    def __init__(self, layers, call):
        super().__init__()
        self.embeddings = layers
        self.out = keras.layers.Dense(1, kernel_initializer="ones")
        self.how = call

    def call(self, features):
        return self.out(self.how(self.embeddings, features))


def spec(kind, dtype=tf.int64):
    if kind == "ragged":
        return tf.RaggedTensorSpec([None, None], dtype, 1, tf.int64)
    if kind == "sparse":
        return tf.SparseTensorSpec([None, None], dtype)
    return tf.TensorSpec([None, 3], dtype)


def data(kind, table):
    """Two batches of ids of `table` with a weight each; some bags hold an id twice."""
    dense = [[[0, 1, 1], [2, 3, 4], [5, 2, 0]], [[4, 4, 4], [1, 2, 3], [3, 5, 0]]]
    ragged = [[[0, 1, 1], [2], [5, 3]], [[4, 4], [1, 2, 3, 0], [5]]]
    for places in dense if kind == "dense" else ragged:
        ids = tf.ragged.constant(places, tf.int32)
        taken = ids.with_values(tf.gather(table, ids.values % len(table)))
        count = tf.size(taken.values)
        weights = ids.with_values(0.5 + tf.cast(tf.range(count), tf.float32) / 4)
        if kind == "dense":
            yield tf.ensure_shape(taken.to_tensor(), [3, 3]), weights.to_tensor()
        elif kind == "sparse":
            indices = tf.stack([taken.value_rowids(), tf.range(tf.size(taken.values, tf.int64))], 1)
            shape = tf.cast([3, count], tf.int64)
            yield (
                tf.SparseTensor(indices, taken.values, shape),
                tf.SparseTensor(indices, weights.values, shape),
            )
        else:
            yield taken, weights


def one(layers, features):
    out = layers[0](features["ids"])
    return keras.ops.sum(out, axis=1) if len(out.shape) == 3 else out


def ragged_sum(layers, features):
    return tf.reduce_sum(layers[0](features["ids"]), axis=1)


def weighted(layers, features):
    return layers[0](features["ids"], features["weights"])


def twice(layers, features):
    return one(layers, features) - 2 * tf.square(layers[0](features["ids"])[:, 0])


def two(layers, features):
    return one(layers, features) + 3 * tf.square(one(layers[1:], features))


SHAPES = {
    "dense": ("dense", one, [{}]),
    "called twice": ("dense", twice, [{}]),
    "dense sum": ("dense", one, [{"combiner": "sum"}]),
    "dense mean masked": ("dense", one, [{"combiner": "mean", "mask_zero": True}]),
    "dense sqrtn masked": ("dense", one, [{"combiner": "sqrtn", "mask_zero": True}]),
    "dense sum weighted": ("dense", weighted, [{"combiner": "sum"}]),
    "dense mean weighted": ("dense", weighted, [{"combiner": "mean", "mask_zero": True}]),
    "ragged": ("ragged", ragged_sum, [{}]),
    "ragged sum": ("ragged", one, [{"combiner": "sum"}]),
    "ragged mean weighted": ("ragged", weighted, [{"combiner": "mean"}]),
    "ragged sqrtn weighted": ("ragged", weighted, [{"combiner": "sqrtn"}]),
    "sparse sum": ("sparse", one, [{"combiner": "sum"}]),
    "sparse mean": ("sparse", one, [{"combiner": "mean"}]),
    "sparse sqrtn weighted": ("sparse", weighted, [{"combiner": "sqrtn"}]),
    "strings": ("dense text", one, [{}]),
    "strings mean masked": ("dense text", one, [{"combiner": "mean", "mask_zero": True}]),
    "ragged strings": ("ragged text", one, [{"combiner": "mean"}]),
    "shared table": ("dense", two, [{"combiner": "sum"}, {"combiner": "mean"}]),
    "shared, one frozen": (
        "dense",
        two,
        [{"combiner": "sum"}, {"combiner": "mean", "trainable": False}],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_two_steps_equal_plain_keras_and_the_export_predicts_alike(served, exports, name):
    form, how, arguments = SHAPES[name]
    kind, *text = form.split()
    table = TEXTS if text else IDS
    numbers = hashed(table).numpy() if text else table
    features_spec = {
        "ids": spec(kind, tf.string if text else tf.int64),
        "weights": spec(kind, tf.float32),
    }

    def build():
        layers = [
            shoal.layers.Embedding(4, "uniform", name=f"layer_{i}", table="items", **each)
            for i, each in enumerate(arguments)
        ]
        return Net(layers, how)

    model = served(build=build, spec=features_spec)
    assert list(model.tables) == ["items"]
    pulled = model.group.pull([[numbers]], training=True)
    rows = Rows(numbers, pulled.rows[0][pulled.ids[0].inverses[0]])
    twin = Net([Twin(4, rows=rows, **each) for each in arguments], how)
    if any(not each.get("trainable", True) for each in arguments):

        def stopped(layers, features):
            first, second = one(layers, features), one(layers[1:], features)
            return first + 3 * tf.square(tf.stop_gradient(second))

        twin.how = stopped
    batches = list(data(kind, table))
    twin({"ids": batches[0][0], "weights": batches[0][1]})
    for ours, theirs in zip(model.trainable.variables, twin.out.trainable_variables, strict=True):
        theirs.assign(ours)
    variables = [rows.values, *twin.out.trainable_variables]
    rule = keras.optimizers.SGD(0.5)
    labels = np.array([[1.0], [0.0], [1.0]], np.float32)
    for ids, weights in batches:
        features = {"ids": ids, "weights": weights}
        loss = model.train_batch(Batch(features, tf.constant(labels), 3, 0, 0), 1)
        with tf.GradientTape() as tape:
            outputs = twin(features, training=True)
            expected = tf.reduce_mean(keras.losses.binary_crossentropy(labels, outputs))
        gradients = tape.gradient(expected, [each.value for each in variables])
        rule.apply([tf.convert_to_tensor(each) for each in gradients], variables)
        assert loss == pytest.approx(float(expected), rel=1e-5)
    model.pull_dense()
    for ours, theirs in zip(model.trainable.variables, twin.out.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    after = model.group.pull([[numbers]], training=True)
    np.testing.assert_allclose(
        after.rows[0][after.ids[0].inverses[0]], rows.values, rtol=1e-5, atol=1e-6
    )
    # The process without shoal that loads it is test_model_shapes.py's last test.
    exports.add(f"lookup, {name}", model, {"ids": batches[1][0], "weights": batches[1][1]})


DENSE = {"ids": tf.TensorSpec([None, 3], tf.int64)}


def test_a_frozen_table_is_not_trained(served):
    def build():
        return Net([shoal.layers.Embedding(4, "ones", name="items", trainable=False)], one)

    model = served(build=build, spec=DENSE)
    features = {"ids": tf.constant([[0, 3, 11]], tf.int64)}
    before = model.group.pull([[IDS]], training=True).rows[0]
    model.train_batch(Batch(features, tf.constant([[1.0]]), 1, 0, 0), 1)
    np.testing.assert_array_equal(model.group.pull([[IDS]], training=True).rows[0], before)
    assert (
        list(model.group.read_table(0)) == []
        or sum(ids.size for ids, _ in model.group.read_table(0)) == 0
    )


def test_an_unseen_id_of_a_frozen_table_is_the_default_row_in_training_too(served):
    def build():
        frozen = shoal.layers.Embedding(4, "normal", name="frozen", trainable=False)
        return Net([frozen, shoal.layers.Embedding(4, "normal", name="free")], two)

    model = served(build=build, spec=DENSE)
    frozen, free = model.group.pull([[IDS], [IDS]], training=True).rows
    assert list(model.tables) == ["frozen", "free"]
    assert not frozen.any()
    assert free.all()


def test_layers_that_share_a_table_must_agree(served):
    def build():
        layers = [shoal.layers.Embedding(dim, table="items") for dim in (4, 5)]
        return Net(layers, lambda e, f: tf.concat([one(e, f), one(e[1:], f)], 1))

    with pytest.raises(UserError, match="share table 'items', but differ in output_dim"):
        served(build=build, spec=DENSE)


FUNCTIONAL = {
    "ragged": ({"shape": (None,), "ragged": True, "dtype": "int64"}, {"combiner": "mean"}),
    "strings": ({"shape": (3,), "dtype": "string"}, {}),
    "masked": ({"shape": (3,), "dtype": "int64"}, {"mask_zero": True}),
    "bags": ({"shape": (3,), "dtype": "int64"}, {"combiner": "sqrtn"}),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_a_functional_model_of_other_forms_is_exported_as_a_saved_model(served, exports, name):
    given, arguments = FUNCTIONAL[name]

    def build():
        ids = keras.Input(name="ids", **given)
        rows = shoal.layers.Embedding(4, "ones", name="items", **arguments)(ids)
        if len(rows.shape) == 3:
            rows = keras.layers.GlobalAveragePooling1D()(rows)
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(rows))

    text = given["dtype"] == "string"
    kind = "ragged" if "ragged" in given else "dense"
    ids, _ = next(iter(data(kind, TEXTS if text else IDS)))
    model = served(build=build, spec={"ids": spec(kind, tf.string if text else tf.int64)})
    model.train_batch(Batch({"ids": ids}, tf.ones([3, 1]), 3, 0, 0), 1)
    (why,) = tried(model)
    assert "no model.keras: embedding '" in why
    exports.add(f"functional, {name}", model, {"ids": ids})
    assert not exports.keras[f"functional, {name}"]


class OwnStep(keras.Model):
    def call(self, features):
        return features

    def train_step(self, data):
        return {}


def test_a_training_step_of_the_models_own_is_refused(served):
    with pytest.raises(UserError, match=r"OwnStep in model.py defines train_step\(\)"):
        served(build=OwnStep, spec=DENSE)


def test_a_constraint_is_refused_by_name(served):
    def build():
        x = keras.Input((3,), name="ids")
        out = keras.layers.Dense(1, kernel_constraint="non_neg", name="bounded")(x)
        return keras.Model({"ids": x}, out)

    with pytest.raises(UserError, match=r"variable bounded/kernel .* constraint NonNeg"):
        served(build=build, spec={"ids": tf.TensorSpec([None, 3])})


@pytest.mark.parametrize(
    ("ids", "weights", "combiner", "words"),
    [
        (tf.sparse.from_dense([[1]]), None, None, "sparse ids need a combiner"),
        (tf.constant([[1]]), tf.constant([[1.0]]), None, "weights of ids need a combiner"),
        (tf.ragged.constant([[1]]), tf.constant([[1.0]]), "sum", "must have one form"),
    ],
)
def test_forms_that_do_not_go_together_are_refused(ids, weights, combiner, words):
    layer = shoal.layers.Embedding(2, combiner=combiner)
    with pytest.raises(ValueError, match=words):
        layer(ids, weights)
    with pytest.raises(ValueError, match="combiner must be None or one of"):
        shoal.layers.Embedding(2, combiner="max")
