"""What plain Keras exports of a model that trains, an export of a job has too."""

import dataclasses
import importlib
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import shoal.model_zoo
from shoal.errors import UserError
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.input.batch import Batch
from tests.worker.corpus import MODELS
from tests.worker.exported import tried
from tests.worker.networks import CONFIG

pytestmark = pytest.mark.slow

SERVED = dataclasses.replace(CONFIG, embedding_threshold=150)
"""Tables of 40 rows are above it, positions and columns below."""

NOTHING_HOLDS_LOOKUPS = "census wide and deep, lookups in call"

CODE_HOLDS_TABLES = {"ranking", "factorization", "census, a layer with a table"}
"""Plain Keras may load its own file of them. docs/guide/models.md tells that there is none here."""


def spec_of(features):
    return tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), features)


def plain_keras_can(build, features, folder):
    """Which forms plain Keras makes of a model and reads again."""
    warnings.simplefilter("ignore")  # pytest makes errors of them, and puts the filters back
    model = build()
    model(features)
    can = set()
    try:
        model.save(folder / "model.keras")
        own = {type(each) for each in model._flatten_layers() if not is_keras_own(type(each))}
        objects = {each.__name__: each for each in own}
        found = keras.models.load_model(folder / "model.keras", objects)(features)
        np.testing.assert_allclose(found, model(features), rtol=1e-5, atol=1e-6)
        can.add("keras")
    except Exception as error:
        print("no file of plain Keras:", error)
    try:
        model.export(folder / "saved", verbose=False)
        can.add("savedmodel")
    except Exception as error:
        print("no SavedModel of plain Keras:", error)
    return can


@pytest.mark.parametrize("name", MODELS)
def test_an_export_has_what_plain_keras_exports(served, exports, tmp_path, name):
    """The process that loads it is test_model_shapes.py's last test."""
    build, features = MODELS[name]
    can = plain_keras_can(build, features, tmp_path)
    model = served(
        build=build,
        optimizer=lambda: keras.optimizers.Adagrad(0.5),
        spec=spec_of(features),
        config=SERVED,
    )
    labels = tf.constant(np.arange(6)[:, None] % 2, tf.float32)
    assert np.isfinite(model.train_batch(Batch(features, labels, 6, 0, 0), 1))
    model.pull_dense()
    if name == NOTHING_HOLDS_LOOKUPS:
        assert not can
        with pytest.raises(
            UserError, match=r"layer 'lookup_in_call\w*' \(LookupInCall\) uses a lookup"
        ):
            tried(model)
        assert tried(model, export="none") == []
        return
    lines = tried(model)
    exports.add(f"corpus, {name}", model, features)
    if name in CODE_HOLDS_TABLES:
        can.discard("keras")
    assert exports.keras[f"corpus, {name}"] == ("keras" in can)
    assert len(lines) == ("keras" not in can)
    if name == "census sequential":
        assert (
            "layer 'dense_features' (DenseFeatures) gets weights only when it is called" in lines[0]
        )


ZOO = {
    "census.dnn": False,
    "census.wide_and_deep": False,
    "criteo.dcn_v2": True,
    "criteo.deepfm": True,
    "criteo.dlrm": True,
    "criteo.dlrm_dcn_v2": True,
    "digits.cnn": True,
    "iris.quick_start": True,
    "movielens.dcn_v2": True,
    "movielens.deepfm": True,
    "movielens.retrieval": True,
    "movielens.two_tower": True,
    "movielens.wide_and_deep": True,
    "movielens.xdeepfm": True,
    "movielens_1m.deepfm": True,
    "online.clicks": True,
}
"""Whether there is a model.keras: not with tables of texts, which Keras has no layer for."""


@pytest.mark.parametrize("name", ZOO)
def test_a_model_of_the_zoo_is_exported(served, exports, name):
    """The process that loads it is test_model_shapes.py's last test."""
    module = importlib.import_module(f"shoal.model_zoo.{name}")
    random = np.random.default_rng(4)

    def value(spec):
        shape = [size or 6 for size in spec.shape]
        if spec.dtype == tf.string:
            return tf.constant(random.integers(0, 30, shape).astype(str))
        drawn = (
            random.normal(0, 9, shape) if spec.dtype.is_floating else random.integers(0, 30, shape)
        )
        return tf.constant(drawn, spec.dtype)

    spec = tf.TensorSpec([None, 4]) if name == "iris.quick_start" else None
    model = served(build=module.custom_model, spec=spec, config=SERVED)
    features = tf.nest.map_structure(value, model.features_spec)
    for position, table in enumerate(model.tables.values()):
        rows = random.normal(size=(30, table.dim)).astype(np.float32)
        model.group.assign_rows(position, np.arange(30), rows)
    folder, expected = exports.add(f"zoo, {name}", model, features)
    assert exports.keras[f"zoo, {name}"] == ZOO[name]
    assert len(tried(model)) == (not ZOO[name])
    if name == "movielens_1m.deepfm":  # whose layer is in a module that imports shoal
        loaded = keras.models.load_model(folder / "model.keras")
        np.testing.assert_allclose(loaded(features), expected, rtol=1e-5)
        (folder / "model.keras").unlink()
        exports.keras[f"zoo, {name}"] = False


def test_every_model_of_the_zoo_is_here():
    folder = Path(shoal.model_zoo.__file__).parent
    modules = [path for path in folder.glob("*/*.py") if "def custom_model" in path.read_text()]
    assert {f"{path.parent.name}.{path.stem}" for path in modules} == set(ZOO)
