"""A plain keras.layers.Embedding that the servers hold, against the same model in Keras."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import shoal.layers
from shoal.errors import UserCodeError, UserError
from shoal.native.initializers import variance_scaling
from shoal.preprocessing import SparseEmbedding
from shoal.worker.input.batch import Batch
from shoal.worker.model.embeddings.given_weights import GivenRows
from shoal.worker.model.embeddings.initial_rows import initializer_spec
from tests.worker.exported import export_to, tried
from tests.worker.networks import CONFIG

pytestmark = pytest.mark.slow

SPEC = {"ids": tf.TensorSpec([None, 3], tf.int64)}
COUNT, DIM = 10, 4
SERVED = dataclasses.replace(CONFIG, embedding_threshold=COUNT * DIM * 4 - 1)
FEATURES = [
    {"ids": tf.constant([[0, 1, 1], [2, 9, 4], [5, 2, 0]], tf.int64)},
    {"ids": tf.constant([[4, 4, 4], [1, 2, 3], [3, 5, 0]], tf.int64)},
]
LABELS = tf.constant([[1.0], [0.0], [1.0]])


def functional(**arguments):
    ids = keras.Input([3], dtype="int64", name="ids")
    rows = keras.layers.Embedding(COUNT, DIM, name="items", **arguments)(ids)
    hidden = keras.layers.GlobalAveragePooling1D(name="pool")(rows)
    return keras.Model({"ids": ids}, keras.layers.Dense(1, name="out")(hidden))


class Subclassed(keras.Model):
    def __init__(self, **arguments):
        super().__init__()
        self.items = keras.layers.Embedding(COUNT, DIM, name="items", **arguments)
        self.out = keras.layers.Dense(1, name="out")

    def call(self, features):
        return self.out(tf.reduce_sum(self.items(features["ids"]), axis=1))


def combined(**arguments):
    ids = keras.Input([3], dtype="int64", name="ids")
    rows = SparseEmbedding(COUNT, DIM, "sqrtn", name="items", **arguments)(ids)
    return keras.Model({"ids": ids}, keras.layers.Dense(1, name="out")(rows))


def matrix_of(model):
    everything = np.arange(COUNT)
    pulled = model.group.pull([[everything]], training=False)
    return pulled.rows[0][pulled.ids[0].inverses[0]]


def embedding_of(model):
    return next(e for e in model._flatten_layers() if isinstance(e, keras.layers.Embedding))


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (functional, {"mask_zero": True}),
        (functional, {"trainable": False}),
        (combined, {"mask_zero": True}),
        (Subclassed, {}),
    ],
)
def test_it_trains_and_exports_as_in_keras(served, tmp_path, build, arguments):
    model = served(build=lambda: build(**arguments), spec=SPEC, config=SERVED)
    assert list(model.tables) == ["items"]
    assert [v.path.split("/")[-2] for v in model.trainable.variables] == ["out", "out"]
    initial = matrix_of(model)
    assert (np.abs(initial) <= 0.05).all()
    assert initial.std() > 0.01  # evaluation reads it as Keras would: not the default row
    twin = build(**arguments)
    twin(FEATURES[0])
    embedding_of(twin).embeddings.assign(initial)
    for ours, theirs in zip(
        model.trainable.variables, twin.get_layer("out").trainable_variables, strict=True
    ):
        theirs.assign(ours)
    rule = keras.optimizers.SGD(0.5)
    for features in FEATURES:
        loss = model.train_batch(Batch(features, LABELS, 3, 0, 0), 1)
        with tf.GradientTape() as tape:
            outputs = twin(features, training=True)
            expected = tf.reduce_mean(keras.losses.binary_crossentropy(LABELS, outputs))
        variables = twin.trainable_variables
        rule.apply(tape.gradient(expected, [v.value for v in variables]), variables)
        assert loss == pytest.approx(float(expected), rel=1e-5)
    trained = matrix_of(model)
    np.testing.assert_allclose(trained, embedding_of(twin).embeddings, rtol=1e-5, atol=1e-7)
    tried(model)
    folder = tmp_path / "export"
    export_to(folder, model)
    loaded = tf.saved_model.load(str(folder / "saved_model"))
    wanted = twin(FEATURES[0])
    np.testing.assert_allclose(loaded.serve(FEATURES[0]), wanted, rtol=1e-5, atol=1e-6)
    if build is not Subclassed:
        plain = keras.models.load_model(folder / "model.keras")
        assert type(plain.get_layer("items")) is type(twin.get_layer("items"))
        np.testing.assert_array_equal(plain.get_layer("items").embeddings, trained)
        np.testing.assert_allclose(plain(FEATURES[0]), wanted, rtol=1e-5, atol=1e-6)


def test_one_below_the_threshold_stays_a_dense_variable(served):
    config = dataclasses.replace(SERVED, embedding_threshold=COUNT * DIM * 4)
    model = served(build=functional, spec=SPEC, config=config)
    assert not model.tables
    assert any(v.path == "items/embeddings" for v in model.trainable.variables)


def counted(shape, dtype):
    return keras.ops.reshape(keras.ops.arange(shape[0] * shape[1], dtype=dtype), shape)


class Doubled(keras.initializers.RandomUniform):
    """One of the user's own, which must not be taken for the one that it derives from."""

    def __call__(self, shape, dtype=None):
        return 2 + super().__call__(shape, dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.initializers.Orthogonal(seed=3),
        lambda: keras.initializers.Identity(),
        lambda: counted,
        lambda: Doubled(seed=4),
    ],
)
def test_an_initializer_of_the_whole_matrix_gives_the_rows_that_keras_has(served, make):
    build = lambda: functional(embeddings_initializer=make())  # noqa: E731
    expected = embedding_of(build()).embeddings
    model = served(build=build, spec=SPEC, config=SERVED)
    np.testing.assert_array_equal(matrix_of(model), expected)


def test_a_seed_of_the_initializer_gives_the_same_rows_in_every_layer_and_job(served):
    def rows_of(name, seed, job_seed=5):
        def build():
            ids = keras.Input([3], dtype="int64", name="ids")
            initializer = keras.initializers.RandomNormal(seed=seed)
            layer = keras.layers.Embedding(COUNT, DIM, initializer, name=name)
            return keras.Model({"ids": ids}, keras.layers.Flatten()(layer(ids)))

        config = dataclasses.replace(SERVED, seed=job_seed)
        model = served(build=build, spec=SPEC, config=config)
        assert not list(model.given_rows())
        return matrix_of(model)

    np.testing.assert_array_equal(rows_of("a", 7), rows_of("b", 7, job_seed=6))
    assert (rows_of("a", 7) != rows_of("a", 8)).all()
    assert (rows_of("a", None) != rows_of("b", None)).all()


MATRIX = np.random.default_rng(1).normal(size=(COUNT, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Files of the model's weights in Keras's forms; those of the table are MATRIX."""
    folder = tmp_path_factory.mktemp("pretrained")
    keras.utils.clear_session(free_memory=False)
    model = functional()
    model.get_layer("items").set_weights([MATRIX])
    model.save(folder / "m.keras")
    model.save(folder / "m.h5")
    model.save_weights(folder / "m.weights.h5")
    return folder


def having(take):
    """The functional model, once `take` was called with it."""
    model = functional()
    take(model)
    return model


GIVEN = {
    "weights=": lambda _: functional(weights=[MATRIX]),
    "Constant": lambda _: functional(embeddings_initializer=keras.initializers.Constant(MATRIX)),
    "layer.set_weights": lambda _: having(lambda m: m.get_layer("items").set_weights([MATRIX])),
    "model.set_weights": lambda _: having(
        lambda m: m.set_weights([MATRIX, np.ones((DIM, 1)), np.ones(1)])
    ),
    "assign": lambda _: having(lambda m: m.get_layer("items").embeddings.assign(MATRIX)),
    "load_model": lambda f: keras.models.load_model(f / "m.keras"),
    "load_model of h5": lambda f: keras.models.load_model(f / "m.h5"),
    "load_weights": lambda f: having(lambda m: m.load_weights(f / "m.weights.h5")),
    "set_weights of get_weights": lambda f: having(
        lambda m: m.set_weights(keras.models.load_model(f / "m.keras").get_weights())
    ),
}


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("given", GIVEN)
def test_rows_that_the_module_gives_are_the_initial_ones(served, pretrained, given, trainable):
    def build():
        model = GIVEN[given](pretrained)
        model.get_layer("items").trainable = trainable
        return model

    model = served(build=build, spec=SPEC, config=SERVED)
    np.testing.assert_array_equal(matrix_of(model), MATRIX)
    twin = build()
    twin.set_weights([MATRIX, *(each.numpy() for each in model.trainable.variables)])
    np.testing.assert_allclose(
        model.predict_batch(FEATURES[0]), twin(FEATURES[0]), rtol=1e-5, atol=1e-6
    )
    model.train_batch(Batch(FEATURES[0], LABELS, 3, 0, 0), 1)
    changed = np.flatnonzero((matrix_of(model) != MATRIX).any(axis=1))
    assert bool(changed.size) == trainable
    assert np.isin(changed, FEATURES[0]["ids"]).all()


@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5"])
def test_a_worker_never_holds_a_file_s_matrix_whole(served, pretrained, monkeypatch, file):
    read, begin = [], GivenRows.__init__

    def noting(self, matrix):
        # A file in memory would have no path.
        read.append(Path(matrix.file.filename).is_file())
        begin(self, matrix)

    monkeypatch.setattr(GivenRows, "__init__", noting)
    given = GIVEN["load_model" if file == "m.keras" else "load_weights"]
    model = served(build=lambda: given(pretrained), spec=SPEC, config=SERVED)
    assert read == [True]
    np.testing.assert_array_equal(matrix_of(model), MATRIX)


@pytest.mark.parametrize("file", ["m.weights.h5", "m.h5"])
def test_weights_of_another_shape_are_refused_with_layer_and_file(served, pretrained, file):
    def build():
        ids = keras.Input([3], dtype="int64", name="ids")
        rows = keras.layers.Embedding(COUNT + 1, DIM, name="items")(ids)
        rows = keras.layers.GlobalAveragePooling1D(name="pool")(rows)
        model = keras.Model({"ids": ids}, keras.layers.Dense(1, name="out")(rows))
        model.load_weights(pretrained / file)
        return model

    words = r"model.py.*items.*\(11, 4\).*\(10, 4\)"
    with pytest.raises((UserError, UserCodeError), match=words):
        served(build=build, spec=SPEC, config=SERVED)


def test_rows_that_a_job_begins_with_come_from_another_job_instead(served):
    config = dataclasses.replace(SERVED, restore_from="elsewhere")
    model = served(build=lambda: functional(weights=[MATRIX]), spec=SPEC, config=config)
    assert not config.first_rows
    assert not np.any(matrix_of(model))  # where --restore-from gives none


def test_variance_scaling_takes_the_fans_that_keras_takes(served):
    build = lambda: functional(embeddings_initializer="glorot_uniform")  # noqa: E731
    model = served(build=build, spec=SPEC, config=SERVED)
    spec = initializer_spec(model.tables["items"].layer)
    assert spec == variance_scaling(COUNT, DIM, mode="fan_avg", distribution="uniform")


@pytest.mark.parametrize("build", [functional, Subclassed])
def test_an_id_out_of_range_is_named_below_the_threshold_too(served, build):
    model = served(build=build, spec=SPEC)
    features = {"ids": tf.constant([[1, 2, 425]], tf.int64)}
    message = r"^embedding 'items' was given the id 425: its ids go from 0 to 9 \(input_dim=10\); "
    if build is functional:
        message += ".*It looks up the feature 'ids'$"
    for call in (
        lambda: model.train_batch(Batch(features, LABELS[:1], 1, 0, 1), 1),
        lambda: model.predict_batch(features),
    ):
        with pytest.raises(UserError, match=message):
            call()


@pytest.mark.parametrize("wrong", [-1, COUNT])
def test_an_id_out_of_range_is_named(served, wrong):
    model = served(build=functional, spec=SPEC, config=SERVED)
    features = {"ids": tf.constant([[1, 2, wrong]], tf.int64)}
    with pytest.raises(UserError, match=rf"'items' was given the id {wrong}: .*from 0 to 9"):
        model.train_batch(Batch(features, LABELS[:1], 1, 0, 0), 1)


def tied():
    ids = keras.Input([3], dtype="int64", name="ids")
    layer = keras.layers.Embedding(COUNT, DIM, name="items")
    rows = keras.ops.mean(layer(ids), axis=1)
    return keras.Model({"ids": ids}, keras.ops.matmul(rows, keras.ops.transpose(layer.embeddings)))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: functional(embeddings_regularizer="l2"),
            r"'items'.*embeddings_regularizer \(L2\)",
        ),
        (
            lambda: functional(embeddings_constraint="non_neg"),
            r"'items'.*embeddings_constraint \(NonNeg\)",
        ),
        (
            lambda: having(lambda m: m.get_layer("items").embeddings.assign(MATRIX[:5])),
            r"model.py: embedding 'items' has a weight of shape \(10, 4\), and .* \(5, 4\)",
        ),
        (
            lambda: functional(weights=[np.where(np.arange(DIM), MATRIX, np.nan)]),
            r"model.py: the weights that embedding 'items' begins with .* not finite in row 0",
        ),
        (
            lambda: functional(embeddings_initializer=lambda shape, dtype: np.zeros(3)),
            r"'items': initializer <lambda> gave shape \(3,\), not \(10, 4\)",
        ),
        (tied, r"'items' .*uses its weight itself"),
    ],
)
def test_what_needs_the_whole_matrix_is_refused_by_name(served, build, words):
    with pytest.raises(UserError, match=words):
        served(build=build, spec=SPEC, config=SERVED)


class Computed(keras.Model):
    """Ids of the table `second` that do not follow from the features alone."""

    def __init__(self, how):
        super().__init__()
        self.first = shoal.layers.Embedding(DIM, "normal", name="first")
        self.second = shoal.layers.Embedding(DIM, "normal", name="second")
        self.out = keras.layers.Dense(1, name="out")
        self.how = how

    def call(self, features, training=False):
        ids = features["ids"]
        rows = self.first(ids)
        hidden = tf.reduce_sum(rows, axis=1)
        out = self.out(hidden)
        if self.how == "rows":
            more = tf.argmax(hidden, axis=1)
        elif self.how == "random":
            more = ids[:, 0] + tf.random.uniform([], 0, 5, tf.int64)
        elif self.how == "random in training":
            more = tf.where(tf.random.uniform([]) < 0.5, ids[:, 0], ids[:, 1])
            more = more if training else ids[:, 0]
        elif self.how == "random in a condition":
            more = tf.cond(
                tf.shape(ids)[0] > 2,
                lambda: ids[:, 0] + tf.random.uniform([], 0, 5, tf.int64),
                lambda: ids[:, 0],
            )
        elif self.how == "weight":
            more = tf.cast(tf.reduce_sum(self.out.kernel) * 0 + 1, tf.int64) + ids[:, 0]
        else:
            # Of the rows only their shape: known beforehand.
            more = ids[:, 0] + tf.shape(rows, tf.int64)[2]
        return out + tf.reduce_sum(self.second(more), axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("rows", "'second' are computed from the rows of table 'first'"),
        ("random", "'second' are computed from random numbers"),
        ("random in training", "'second' are computed from random numbers"),
        ("random in a condition", "'second' are computed from random numbers"),
        ("weight", r"'second' are computed from the variable .*out/kernel"),
    ],
)
def test_ids_that_cannot_be_known_before_the_step_are_refused(served, how, words):
    with pytest.raises(UserError, match=words):
        served(build=lambda: Computed(how), spec=SPEC).train_batch(
            Batch(FEATURES[0], LABELS, 3, 0, 0), 1
        )


def test_ids_may_be_computed_from_the_shape_of_rows(served):
    model = served(build=lambda: Computed("shape"), spec=SPEC)
    assert model.train_batch(Batch(FEATURES[0], LABELS, 3, 0, 0), 1) > 0


class Biased(keras.layers.Embedding):
    """One with a weight of its own beside the table."""

    def build(self, input_shape=None):
        super().build(input_shape)
        self.bias = self.add_weight(shape=[DIM], name="bias", initializer="ones")

    def call(self, inputs):
        return super().call(inputs) + self.bias


def test_a_layer_with_a_weight_beside_its_table_has_both(served):
    def build():
        ids = keras.Input([3], dtype="int64", name="ids")
        layer = Biased(COUNT, DIM, name="items")
        model = keras.Model({"ids": ids}, keras.ops.sum(layer(ids), axis=1))
        layer.set_weights([MATRIX, np.arange(DIM)])
        return model

    model = served(build=build, spec=SPEC, config=SERVED)
    assert [each.path for each in model.trainable.variables] == ["items/bias"]
    np.testing.assert_allclose(model.predict_batch(FEATURES[0]), build()(FEATURES[0]), rtol=1e-5)
    assert len(model.model.get_layer("items").get_weights()) == 1
