"""Names of features and outputs, in the signatures of an export."""

import keyword

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.worker.engines.tensorflow.outputs.signature_names import arguments_of, names_of
from tests.worker.exported import export_to
from tests.worker.networks import served_embedding
from tests.worker.shapes import NestedFeatures, odd_names

pytestmark = pytest.mark.slow

NAMES = st.lists(st.text(min_size=1, max_size=6), unique=True, max_size=8)
LEAVES = st.integers(0, 9)
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text("ab-", min_size=1, max_size=3), inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=9,
)


@given(NAMES)
def test_arguments_are_unique_identifiers_in_the_order_of_the_names(names):
    arguments = arguments_of(names)
    assert list(arguments.values()) == names
    for argument in arguments:
        assert argument.isascii()
        assert argument.isidentifier()
        assert not keyword.iskeyword(argument)


@given(STRUCTURES)
def test_each_leaf_has_a_name_in_the_order_of_tensorflow(structure):
    names = names_of(structure, "input", "inputs")
    assert len(set(names)) == len(names) == len(tf.nest.flatten(structure))
    # The values put at the leaves come out by the paths that the names spell.
    counted = tf.nest.pack_sequence_as(structure, range(len(names)))
    for number, name in enumerate(names):
        at = counted
        path = [] if name == "inputs" else name.removeprefix("input_").split("/")
        if isinstance(structure, list | tuple) and name == "inputs":
            continue
        for key in path:
            at = at[key] if isinstance(at, dict) else at[int(key)]
        assert at == number


def test_two_features_of_one_name_are_refused():
    with pytest.raises(UserError, match="two inputs of the model would both be called 'a/b'"):
        names_of({"a/b": 0, "a": {"b": 1}}, "input", "inputs")


def ids(count, seed):
    return np.random.default_rng(seed).integers(-99, 99, (count, 3))


def call(folder, signature, features):
    """What a signature gives for features by name, as TensorFlow Serving calls it."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        description = loaded.signature_def[signature]
        assert set(description.inputs) == set(features)
        fed = {description.inputs[name].name: value for name, value in features.items()}
        return session.run({k: each.name for k, each in description.outputs.items()}, fed)


def same_letters(table):
    """Names of which TensorFlow would make the same argument."""
    names = ("user id", "user-id", "user_id", "self")
    given = {name: keras.Input((3,), dtype="int64", name=name) for name in names}
    rows = [keras.layers.Flatten()(table(i + 1, f"t{i}")(given[n])) for i, n in enumerate(names)]
    return keras.Model(given, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))


def spec(features):
    return tf.nest.map_structure(lambda _: tf.TensorSpec([None, 3], tf.int64), features)


@pytest.mark.parametrize("build", [same_letters, odd_names])
def test_a_server_of_the_signature_takes_the_original_names(served, tmp_path, build):
    features = {name: ids(4, i) for i, name in enumerate(build(served_embedding).input)}
    model = served(build=lambda: build(served_embedding), spec=spec(features))
    expected = np.asarray(model.predict_batch(tf.nest.map_structure(tf.constant, features)))
    export_to(tmp_path / "out", model)
    folder = tmp_path / "out" / "saved_model"
    assert set(call(folder, "serving_default", features)) == {"output"}
    found = call(folder, "serving_default", features)["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    loaded = tf.saved_model.load(str(folder))
    found = loaded.serve(tf.nest.map_structure(tf.constant, features))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_vectors_are_given_beside_nested_features(served, exports):
    """The process that gives them is test_model_shapes.py's last test."""
    features = tf.nest.map_structure(lambda _: tf.constant(ids(4, 1)), NestedFeatures.features)
    model = served(build=lambda: NestedFeatures(served_embedding), spec=spec(features))
    model.group.assign_rows(0, np.arange(-99, 99), np.ones((198, 4), np.float32))
    exports.add("large, nested", model, features, export_max_table_mb=0)


@settings(max_examples=5, deadline=None)
@given(NAMES.filter(lambda names: names and all("\0" not in each for each in names)))
def test_any_names_can_be_saved(tmp_path_factory, names):
    from shoal.worker.engines.tensorflow.outputs.saved_model import Signature
    from shoal.worker.engines.tensorflow.outputs.signature_names import rename

    specs = {name: tf.TensorSpec([None], tf.float32) for name in names}

    def body(named):
        return {"sum": tf.add_n([named[name] * 10.0**i for i, name in enumerate(names)])}

    signature = Signature(body, specs)
    folder = tmp_path_factory.mktemp("names")
    tf.saved_model.save(tf.Module(), str(folder), signatures={"s": signature.function})
    rename(folder, {"s": signature.arguments})
    found = call(folder, "s", {name: [1.0] for name in names})
    assert found["sum"] == pytest.approx(sum(10.0**i for i in range(len(names))))
