"""A SavedModel takes the features that the model declares, whatever the types of the data are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shoal.errors import UserError
from shoal.layers import Embedding
from shoal.worker.engines.tensorflow.outputs.saved_model import _Inputs
from shoal.worker.engines.tensorflow.outputs.served_features import as_served, served_spec
from tests.worker.engines.tensorflow.outputs.test_export_names import call
from tests.worker.exported import export_to

FEATURES = {
    "age": tf.constant([18, 40, 70]),
    "price": tf.constant([0.25, 1.5, 3.0], tf.float64),
    "vip": tf.constant([True, False, True]),
    "tags": tf.ragged.constant([[1, 2], [], [3]], tf.int32, row_splits_dtype=tf.int64),
    "words": tf.ragged.constant([[["a"], []], [], [["b", "c"]]]),
    "group": tf.constant([1, 2, 3]),  # of a metric: no input of the model
}
SPEC = {
    name: tf.TensorSpec([None], each.dtype)
    if isinstance(each, tf.Tensor)
    else tf.RaggedTensorSpec([None] * each.shape.rank, each.dtype)
    for name, each in FEATURES.items()
}


def build():
    numbers = [keras.Input([], name=name) for name in ("age", "price", "vip")]
    tags = keras.Input([None], dtype="int64", name="tags")
    words = keras.Input([None, None], dtype="string", name="words")
    vectors = [
        Embedding(2, "ones", combiner="sum", name="tag_table")(tags),
        keras.ops.sum(Embedding(2, "ones", combiner="sum", name="word_table")(words), axis=1),
    ]
    columns = [keras.ops.expand_dims(each, 1) for each in numbers]
    return keras.Model(
        [*numbers, tags, words],
        keras.layers.Dense(1)(keras.layers.Concatenate()([*columns, *vectors])),
    )


@pytest.mark.slow
def test_the_signature_has_the_types_of_the_inputs_and_names_for_the_parts_of_lists(
    served, tmp_path
):
    model = served(build=build, spec=SPEC)
    expected = np.asarray(model.predict_batch(FEATURES))
    export_to(tmp_path / "out", model)
    folder = str(tmp_path / "out" / "saved_model")
    loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["serving_default"]
    taken = signature.structured_input_signature[1].values()
    assert {spec.name: spec.dtype.name for spec in taken} == {
        "age": "float32",
        "price": "float32",
        "vip": "float32",
        "tags_values": "int64",
        "tags_row_splits": "int64",
        "words_values": "string",
        "words_row_splits_0": "int64",
        "words_row_splits_1": "int64",
    }
    given = {
        "age": [18.0, 40.0, 70.0],
        "price": [0.25, 1.5, 3.0],
        "vip": [1.0, 0.0, 1.0],
        "tags_values": [1, 2, 3],
        "tags_row_splits": [0, 2, 2, 3],
        "words_values": ["a", "b", "c"],
        "words_row_splits_0": [0, 2, 2, 3],
        "words_row_splits_1": [0, 1, 1, 3],
    }
    found = call(folder, "serving_default", given)["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    of_python = {spec.name: tf.constant(given[spec.name], spec.dtype) for spec in taken}
    np.testing.assert_allclose(signature(**of_python)["output"], expected, rtol=1e-6)
    features = as_served(FEATURES, served_spec(model.model, SPEC))
    assert list(features) == [*FEATURES][:-1]
    np.testing.assert_allclose(loaded.serve(features), expected, rtol=1e-6)


def test_a_model_with_a_call_of_its_own_takes_the_features_of_the_data():
    class Own(keras.Model):
        def call(self, features):
            return features["group"]

    assert served_spec(Own(), SPEC) == SPEC
    age = keras.Input([], name="age")
    assert served_spec(Own(age, age), SPEC) == SPEC
    assert served_spec(keras.Model(age, age), SPEC) == {"age": tf.TensorSpec([None], tf.float32)}


def test_a_part_of_a_list_and_a_feature_of_its_name_are_refused():
    with pytest.raises(UserError, match="two inputs of the model would both be called 'tags_val"):
        _Inputs({"tags": SPEC["tags"], "tags_values": SPEC["age"]})
