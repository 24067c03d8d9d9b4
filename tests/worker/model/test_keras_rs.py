"""Models with a DistributedEmbedding on real servers: training, exports, refusals."""

import dataclasses
import json
import subprocess
import sys

import keras
import keras_rs
import numpy as np
import pytest
import tensorflow as tf

import shoal.layers
from shoal.checkpoints.saved import Export
from shoal.errors import UserError
from shoal.native.optimizers import OptimizerSpec
from shoal.worker.input.batch import Batch
from tests.worker.exported import export_to, tried
from tests.worker.networks import CONFIG

pytestmark = pytest.mark.slow

if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 9):
    pytest.skip("keras_rs 0.4 needs Keras 3.9", allow_module_level=True)

TABLES = {
    "users": (8, 4, "mean", lambda: keras.optimizers.Adagrad(0.3)),
    "items": (5, 3, "sqrtn", lambda: keras.optimizers.SGD(0.7)),
    "words": (6, 4, "sum", lambda: keras.optimizers.Adam(0.1)),
}
"""Vocabulary, length of a row, combiner and optimizer of each table."""

SPEC = {
    "user": tf.TensorSpec([None], tf.int64),
    "friends": tf.RaggedTensorSpec([None, None], tf.int64),
    "items": tf.TensorSpec([None, 5], tf.int64),
    "words": tf.RaggedTensorSpec([None, None], tf.int64),
    "weights": tf.RaggedTensorSpec([None, None], tf.float32),
}
LABELS_SPEC = tf.TensorSpec([None, 1], tf.float32)


def table_config(name, **changes):
    size, dim, combiner, optimizer = TABLES[name]
    given = {
        "vocabulary_size": size,
        "embedding_dim": dim,
        "combiner": combiner,
        "optimizer": optimizer(),
    }
    return keras_rs.layers.TableConfig(name, **given | changes)


def feature(name, table, *width):
    return keras_rs.layers.FeatureConfig(name, table, (None, *width), (None, table.embedding_dim))


def layers_of(kind=keras_rs.layers.DistributedEmbedding):
    """A layer for nested features without weights, and one with; users are shared by two."""
    users = table_config("users")
    plain = {
        "people": {"user": feature("user", users), "friends": feature("friends", users, None)},
        "items": [feature("items", table_config("items"), 5)],
    }
    weighted = {"words": feature("words", table_config("words"), None)}
    return kind(plain, name="plain"), kind(weighted, name="weighted")


def head(plain, weighted, out):
    vectors = [*plain["people"].values(), *plain["items"], weighted["words"]]
    return out(keras.ops.concatenate(vectors, axis=1))


def nested(given):
    plain = {
        "people": {"user": given["user"], "friends": given["friends"]},
        "items": [given["items"]],
    }
    return plain, {"words": given["words"]}, {"words": given["weights"]}


def functional(kind=keras_rs.layers.DistributedEmbedding):
    given = {
        name: keras.Input(
            spec.shape[1:],
            dtype=spec.dtype.name,
            name=name,
            ragged=isinstance(spec, tf.RaggedTensorSpec),
        )
        for name, spec in SPEC.items()
    }
    plain, weighted = layers_of(kind)
    ids, words, weights = nested(given)
    out = keras.layers.Dense(1, activation="sigmoid", name="out")
    return keras.Model(given, head(plain(ids), weighted(words, weights), out))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.plain, self.weighted = layers_of()
        self.out = keras.layers.Dense(1, activation="sigmoid", name="out")

    def call(self, features):
        ids, words, weights = nested(features)
        return head(self.plain(ids), self.weighted(words, weights), self.out)


def features_of(seed):
    """A batch of four records that has every id of every table."""
    rng = np.random.default_rng(seed)
    users, words = rng.permutation(8), rng.permutation(6)
    lengths = [4, 0, 1, 1]
    return {
        "user": tf.constant(users[:4]),
        "friends": tf.RaggedTensor.from_row_lengths(tf.constant(users[4:]), [0, 3, 1, 0]),
        "items": tf.constant(np.stack([rng.permutation(5) for _ in range(4)])),
        "words": tf.RaggedTensor.from_row_lengths(tf.constant(words), lengths),
        "weights": tf.RaggedTensor.from_row_lengths(
            tf.constant(rng.uniform(0.5, 2, 6), tf.float32), lengths
        ),
    }


LABELS = tf.constant([[1.0], [0.0], [1.0], [0.0]])


def embeddings_of(model):
    """The layers of the tables, by name."""
    found = {each.name: each for each in model._flatten_layers()}
    return {name: found[name] for name in TABLES}


def rows_of(model, name, count):
    """All rows of a table on the servers."""
    position = list(model.tables).index(name)
    wanted = [[np.arange(count if i == position else 0)] for i in range(len(model.tables))]
    pulled = model.group.pull(wanted, training=False)
    return pulled.rows[position][pulled.ids[position].inverses[0]]


@pytest.fixture
def serve(served):
    def make(build, **options):
        options = {"spec": SPEC, "labels_spec": LABELS_SPEC} | options
        return served(build=build, optimizer=lambda: keras.optimizers.Adagrad(0.2), **options)

    return make


@pytest.mark.parametrize("build", [functional, Subclassed])
def test_it_trains_as_keras_does_where_each_table_has_its_optimizer(serve, build):
    model = serve(build)
    assert set(model.tables) == set(TABLES)
    kinds = {each.name: OptimizerSpec.from_json(each.optimizer).kind for each in model.spec.tables}
    assert kinds == {"users": "adagrad", "items": "sgd", "words": "adam"}
    assert [v.path.split("/")[-2] for v in model.trainable.variables] == ["out", "out"]

    twin = build()
    twin(features_of(0))
    rules = []
    for name, layer in embeddings_of(twin).items():
        layer.embeddings.assign(rows_of(model, name, TABLES[name][0]))
        rules.append((TABLES[name][3](), [layer.embeddings]))
    dense = twin.get_layer("out").trainable_variables
    rules.append((keras.optimizers.Adagrad(0.2), dense))
    for ours, theirs in zip(model.trainable.variables, dense, strict=True):
        theirs.assign(ours)

    for seed in range(5):
        features = features_of(seed)
        loss = model.train_batch(Batch(features, LABELS, 4, 0, 0), 1)
        with tf.GradientTape(persistent=True) as tape:
            outputs = twin(features, training=True)
            expected = tf.reduce_mean(keras.losses.binary_crossentropy(LABELS, outputs))
        assert loss == pytest.approx(float(expected), rel=1e-4)
        for rule, variables in rules:
            gradients = tape.gradient(expected, [v.value for v in variables])
            rule.apply([tf.convert_to_tensor(each) for each in gradients], variables)
    for name, layer in embeddings_of(twin).items():
        trained = rows_of(model, name, TABLES[name][0])
        np.testing.assert_allclose(trained, layer.embeddings, rtol=1e-3, atol=1e-5, err_msg=name)


LOAD = """
import pickle, sys
sys.modules["shoal"] = None  # importing it raises
import keras, keras_rs, numpy as np, tensorflow as tf
folder = sys.argv[1]
spec, values, expected = pickle.loads(open(folder + "/case.pickle", "rb").read())
features = tf.nest.pack_sequence_as(spec, list(map(tf.constant, values)), expand_composites=True)
saved = tf.saved_model.load(folder + "/saved_model")
np.testing.assert_allclose(saved.serve(features), expected, rtol=1e-6, atol=1e-6)
model = keras.models.load_model(folder + "/model.keras")
np.testing.assert_allclose(model(features), expected, rtol=1e-6, atol=1e-6)
tables = {}
for each in model.layers:
    if type(each) is keras_rs.layers.DistributedEmbedding:
        tables |= each.get_embedding_tables()
np.savez(folder + "/found.npz", **{name: np.array(each) for name, each in tables.items()})
"""


@pytest.mark.parametrize(
    "kind", [keras_rs.layers.DistributedEmbedding, shoal.layers.DistributedEmbedding]
)
def test_an_export_is_keras_rs_own_layer_with_the_trained_tables(serve, tmp_path, kind):
    import pickle

    model = serve(lambda: functional(kind))
    for seed in range(2):
        model.train_batch(Batch(features_of(seed), LABELS, 4, 0, 0), 1)
    assert not tried(model)
    features = features_of(7)
    expected = np.asarray(model.predict_batch(features))
    folder = tmp_path / "export"
    export_to(folder, model)
    spec = tf.nest.map_structure(tf.type_spec_from_value, features)
    values = [np.asarray(each) for each in tf.nest.flatten(features, expand_composites=True)]
    (folder / "case.pickle").write_bytes(pickle.dumps((spec, values, expected)))
    command = [sys.executable, "-c", LOAD, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "found.npz") as found:
        assert set(found) == set(TABLES)
        for name, (size, dim, _, _) in TABLES.items():
            assert found[name].shape == (size, dim)
            np.testing.assert_array_equal(found[name], rows_of(model, name, size))


ANY_SPEC = {name: SPEC[name] for name in ("user", "friends")}
ANY = {
    "user": tf.constant([-7, 2**61, 3, -(2**63)], tf.int64),
    "friends": tf.ragged.constant([[2**61, 3], [-7], [], [2**63 - 1]], dtype=tf.int64),
}
NEW = {
    "user": tf.constant([5, -7], tf.int64),
    "friends": tf.ragged.constant([[3, 6], [2**62, 2**61]], dtype=tf.int64),
}
"""Ids that were not trained among some that were."""


def of_any_id(calling=lambda layer, ids, weights: layer(ids), placement="parameter_server"):
    """A model with a table of any id, for two features, and one of a few words."""
    users = keras_rs.layers.TableConfig(
        "users",
        None,
        4,
        initializer="ones",
        optimizer=keras.optimizers.SGD(0.5),
        placement=placement,
    )
    layer = shoal.layers.DistributedEmbedding(
        {
            "user": feature("user", users),
            "friends": feature("friends", users, None),
            "kind": feature("kind", keras_rs.layers.TableConfig("kinds", 2, 4)),
        },
        name="any",
    )
    given = {
        "user": keras.Input((), dtype="int64", name="user"),
        "friends": keras.Input((None,), dtype="int64", name="friends", ragged=True),
    }
    ids = {**given, "kind": given["user"] % 2}
    weights = {
        name: keras.ops.cast(keras.ops.ones_like(each), "float32") * 3
        for name, each in ids.items()
        if name != "friends"
    }
    weights["friends"] = Halves()(given["friends"])
    vectors = calling(layer, ids, weights)
    out = keras.layers.Dense(1, activation="sigmoid", name="out")
    return keras.Model(given, out(vectors["user"] * vectors["friends"] + vectors["kind"]))


@keras.saving.register_keras_serializable("tests")
class Halves(keras.layers.Layer):
    """0.5 for each id of a ragged feature."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._convert_input_args = False

    def call(self, ids):
        return tf.ones_like(ids, tf.float32) / 2

    def compute_output_spec(self, ids):
        return keras.KerasTensor(ids.shape, dtype="float32", ragged=True)


CALLS = {
    "ids": lambda layer, ids, weights: layer(ids),
    "named": lambda layer, ids, weights: layer(inputs=ids),
    "weights": lambda layer, ids, weights: layer(ids, weights),
    "preprocessed": lambda layer, ids, weights: layer(layer.preprocess(ids, weights)),
}


@pytest.mark.parametrize("calling", CALLS.values(), ids=list(CALLS))
def test_a_table_without_a_vocabulary_takes_any_id(serve, tmp_path, calling):
    model = serve(lambda: of_any_id(calling), spec=ANY_SPEC)
    assert {each.name: each.vocabulary for each in model.spec.tables} == {"users": 0, "kinds": 2}
    preprocessed = calling is CALLS["preprocessed"]
    assert tried(model) == preprocessed * [
        "the export has the SavedModel, and no model.keras: 'any' is called with what preprocess() "
        "gave"
    ]
    before = np.asarray(model.predict_batch(ANY))
    for _ in range(3):
        model.train_batch(Batch(ANY, LABELS, 4, 0, 0), 1)
    expected = np.asarray(model.predict_batch(ANY))
    assert (np.abs(expected - before)[[0, 1, 3]] > 1e-4).all()
    folder = tmp_path / "export"
    export_to(folder, model)
    found = Export(str(folder))
    (ids,) = [ids for ids, _ in found.rows("users", 4)]
    assert sorted(ids.tolist()) == [-(2**63), -7, 3, 2**61, 2**63 - 1]
    saved = tf.saved_model.load(str(folder / "saved_model"))
    for features in (ANY, NEW):
        expected = np.asarray(model.predict_batch(features))
        np.testing.assert_allclose(saved.serve(features), expected, rtol=1e-6)
    if preprocessed:
        return
    plain = keras.models.load_model(folder / "model.keras")
    np.testing.assert_allclose(plain(NEW), expected, rtol=1e-6)
    np.testing.assert_allclose(plain(ANY), model.predict_batch(ANY), rtol=1e-6)
    layer, index = plain.get_layer("any"), plain.get_layer("users_index")
    assert type(layer) is keras_rs.layers.DistributedEmbedding
    table = layer.get_embedding_tables()["users"]
    for ids, rows in found.rows("users", 4):
        np.testing.assert_array_equal(tf.gather(table, index(ids)), rows)


def test_an_export_of_a_table_of_any_id_needs_a_functional_model(serve):
    def build():
        table = keras_rs.layers.TableConfig("users", None, 4, placement="parameter_server")
        layer = shoal.layers.DistributedEmbedding(feature("user", table))
        return keras.Sequential(
            [keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)], name="line"
        )

    model = serve(build, spec=tf.TensorSpec([None], tf.int64))
    assert tried(model) == [
        "the export has the SavedModel, and no model.keras: table 'users' in Sequential 'line' "
        "takes any id"
    ]


def test_shoals_layer_survives_its_configuration():
    (layer,) = [each for each in built_in_a_job(of_any_id).layers if each.name == "any"]
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    copy = built_in_a_job(lambda: keras.saving.deserialize_keras_object(config))
    assert type(copy) is shoal.layers.DistributedEmbedding
    assert copy.get_config()["tables"] == layer.get_config()["tables"]
    users, kinds = copy.get_config()["tables"]  # users are shared by two features
    assert (users["placement"], users["vocabulary_size"]) == ("parameter_server", None)
    assert (kinds["placement"], kinds["vocabulary_size"]) == ("auto", 2)


def built_in_a_job(build):
    from shoal.layers import lookup_with
    from shoal.worker.engines.tensorflow.model.lookups import RecordLookup
    from shoal.worker.model.embeddings.keras_embeddings import tables_above
    from shoal.worker.model.refusals import Refusals

    with tables_above(1 << 40), lookup_with(RecordLookup(Refusals())):
        return build()


def test_shoals_layer_says_where_its_rows_are_outside_a_job():
    with pytest.raises(RuntimeError, match=r"'any' are on parameter servers: run the model with"):
        of_any_id()


def with_table(kind=keras_rs.layers.DistributedEmbedding, **changes):
    """A model with the feature `items` alone."""
    table = table_config("items", **changes)
    ids = keras.Input((5,), dtype="int64", name="items")
    vectors = kind({"items": feature("items", table, 5)}, name="layer")({"items": ids})
    return keras.Model({"items": ids}, keras.layers.Dense(1, name="out")(vectors["items"]))


def two_of_one_name():
    ids = keras.Input((5,), dtype="int64", name="items")
    kind = keras_rs.layers.DistributedEmbedding
    rows = [
        kind({"a": feature("a", table_config("items"), 5)}, name=name)({"a": ids})["a"]
        for name in ("first", "second")
    ]
    return keras.Model({"items": ids}, keras.layers.Dense(1)(rows[0] * rows[1]))


def in_dtype(dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        return with_table()
    finally:
        keras.config.set_dtype_policy(before)


SHOALS = shoal.layers.DistributedEmbedding
ITEMS = {"items": SPEC["items"]}
REFUSED = {
    "sparsecore": (
        lambda: with_table(placement="sparsecore"),
        r"the model of model.py places 'items' of a DistributedEmbedding on SparseCore, which only "
        r"TPUs have: give each TableConfig placement=\"auto\"",
    ),
    "sparsecore, shoal's": (
        lambda: with_table(SHOALS, placement="sparsecore"),
        r"table 'items' of feature 'items' has placement=\"sparsecore\", which only TPUs have",
    ),
    "no vocabulary": (
        lambda: with_table(vocabulary_size=None),
        "a table of keras_rs.layers.DistributedEmbedding, 'items', has vocabulary_size=None: "
        "give a number, or take shoal.layers.DistributedEmbedding",
    ),
    "no vocabulary, on the device": (
        lambda: with_table(SHOALS, vocabulary_size=None, placement="default_device"),
        r"'items' of feature 'items' has vocabulary_size=None, .* placement='default_device': give",
    ),
    "a matrix without a size": (
        lambda: with_table(SHOALS, vocabulary_size=None, initializer="orthogonal"),
        r"'items': initializer Orthogonal is not supported",
    ),
    "two of a name": (two_of_one_name, r"two tables are named 'items': each TableConfig"),
    "values that rows cannot be": (
        lambda: in_dtype("float64"),
        r"table 'items' of 'layer' in model.py has float64 values: take a dtype policy",
    ),
    "an optimizer of no server": (
        lambda: with_table(optimizer="nadam"),
        r"optimizer of embedding 'items': .*Nadam",
    ),
}


@pytest.mark.parametrize(("build", "words"), REFUSED.values(), ids=list(REFUSED))
def test_what_servers_cannot_do_is_refused_by_name(served, build, words):
    with pytest.raises(UserError, match=words) as refused:
        served(build=build, spec=ITEMS)
    assert "\n" not in str(refused.value)


def test_one_that_was_built_before_the_job_is_refused(served):
    early = with_table()
    with pytest.raises(UserError, match=r"'items' of 'layer' in model.py was built before the"):
        served(build=lambda: early, spec=ITEMS)


def test_an_optimizer_is_given_once(served):
    def optimizer():
        return {"default": keras.optimizers.SGD(), "items": keras.optimizers.SGD()}

    with pytest.raises(UserError, match=r"'items' is given twice: by its TableConfig, which has"):
        served(build=with_table, spec=ITEMS, optimizer=optimizer)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_id_out_of_range_is_named(serve, wrong):
    model = serve(with_table, spec=ITEMS)
    features = {"items": tf.constant([[0, 1, 2, 3, wrong]], tf.int64)}
    words = (
        rf"table 'items' was given the id {wrong}: its ids go from 0 to 4 \(vocabulary_size=5\); "
        "map the ids in feed, or use shoal.layers.DistributedEmbedding with vocabulary_size=None"
    )
    with pytest.raises(UserError, match=words):
        model.train_batch(Batch(features, LABELS[:1], 1, 0, 0), 1)


def test_a_frozen_layer_has_frozen_tables(served):
    def build():
        table = table_config("items")
        layer = keras_rs.layers.DistributedEmbedding({"items": feature("items", table, 5)})
        layer.trainable = False
        ids = keras.Input((5,), dtype="int64", name="items")
        vectors = layer({"items": ids})["items"]
        return keras.Model({"items": ids}, keras.layers.Dense(1, name="out")(vectors))

    model = served(build=build, spec=ITEMS)
    assert [each.frozen for each in model.spec.tables] == [True]
    before = rows_of(model, "items", 5)
    features = {"items": tf.constant([[0, 1, 2, 3, 4]], tf.int64)}
    model.train_batch(Batch(features, LABELS[:1], 1, 0, 0), 1)
    np.testing.assert_array_equal(rows_of(model, "items", 5), before)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # keras-rs's own
@pytest.mark.parametrize("trainable", [True, False])
def test_tables_begin_with_the_weights_of_a_saved_model(served, tmp_path, trainable):
    saved = with_table()
    saved.save(tmp_path / "m.keras")
    inner = next(e for e in saved._flatten_layers() if isinstance(e, keras.layers.Embedding))

    def build():
        model = keras.models.load_model(tmp_path / "m.keras")
        model.layers[1].trainable = trainable
        return model

    model = served(build=build, spec=ITEMS)
    np.testing.assert_array_equal(rows_of(model, "items", 5), inner.embeddings)
    assert [each.frozen for each in model.spec.tables] == [not trainable]
    features = {"items": tf.constant([[0, 1, 2, 3, 4]], tf.int64)}
    np.testing.assert_allclose(model.predict_batch(features), saved(features), rtol=1e-5)


def test_the_size_of_a_table_does_not_matter(served):
    config = dataclasses.replace(CONFIG, embedding_threshold=1 << 40)
    assert list(served(build=with_table, spec=ITEMS, config=config).tables) == ["items"]


WITHOUT = """
import sys
{block}
import shoal.layers, shoal.worker.model.model, shoal.worker.outputs.export
assert "keras_rs" not in sys.modules or sys.modules["keras_rs"] is None
from shoal.errors import UserError
try:
    from shoal.layers import DistributedEmbedding
    print("found")
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("installed", [True, False])
def test_keras_rs_is_imported_only_for_the_layer_and_named_where_it_is_missing(installed):
    block = "" if installed else 'sys.modules["keras_rs"] = None'
    command = [sys.executable, "-c", WITHOUT.format(block=block)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    needs = "shoal.layers.DistributedEmbedding needs keras-rs: pip install 'shoal[keras-rs]'"
    assert line == "found" if installed else line.startswith(needs)
