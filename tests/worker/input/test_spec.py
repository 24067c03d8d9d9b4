"""One view of the specs of all engines."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shoal.errors import UserError
from shoal.worker.input.spec import ArraySpec, array_spec
from shoal.worker.model.embeddings.integers import CastFeature, cast_features
from shoal.worker.model.supported import check_features, rounded_features


def of(shape, dtype):
    return ArraySpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (tf.TensorSpec([None, 3], tf.float32), of((None, 3), "float32")),
        (tf.TensorSpec([None], tf.string), of((None,), object)),
        (tf.TensorSpec(None, tf.int64), of((), "int64")),
        (tf.RaggedTensorSpec([None, None], tf.int32), of((None, None), "int32")),
        (tf.SparseTensorSpec([None, 9], tf.bool), of((None, 9), "bool")),
        (of((None, 3), "int8"), of((None, 3), "int8")),
        ({"a": tf.TensorSpec([None], tf.int64)}, None),
        (None, None),
    ],
)
def test_a_spec_of_tensorflow_is_seen_as_one_of_arrays(spec, expected):
    assert array_spec(spec) == expected


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        (tf.float16, "floating"),
        (tf.float64, "floating"),
        (tf.bfloat16, "floating"),
        (tf.int8, "integer"),
        (tf.uint64, "integer"),
        (tf.bool, ""),
        (tf.string, "text"),
    ],
)
def test_kinds_of_types(dtype, told):
    spec = array_spec(tf.TensorSpec([None], dtype))
    for kind in ("floating", "integer", "text"):
        assert getattr(spec, f"is_{kind}") == (kind == told)


def model(**inputs):
    made = {
        name: keras.Input(shape, dtype=dtype, name=name) for name, (shape, dtype) in inputs.items()
    }
    outputs = [keras.ops.cast(each, "float32") for each in made.values() if each.dtype != "string"]
    return keras.Model(made, outputs)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"x": ([None], tf.int64)}, "gives no feature 'y'"),
        ({"x": ([None], tf.string), "y": ([None, 2], tf.float32)}, "gives text as feature 'x'"),
        ({"x": ([None, 4], tf.int64), "y": ([None, 2], tf.float32)}, "gives lists as feature 'x'"),
        (
            {"x": ([None], tf.int64), "y": ([None, 2, 3, 4], tf.float32)},
            "lists of lists as feature",
        ),
        ({"x": ([None, 1], tf.float32), "y": ([None, 2], tf.float32)}, None),
    ],
)
def test_features_are_checked_alike(features, message):
    given = model(x=([], "int64"), y=([2], "float32"))
    theirs = {name: tf.TensorSpec(*each) for name, each in features.items()}
    ours = {name: array_spec(each) for name, each in theirs.items()}
    told = []
    for spec in (theirs, ours):
        try:
            check_features(given, spec, "feed() of model.py")
        except UserError as error:
            told.append(str(error))
    assert len(told) in (0, 2)
    assert told[:1] == told[1:]
    assert (message or "") in (told or [""])[0]
    assert bool(told) == bool(message)


def test_casts_are_found_alike():
    given = model(a=([], "int32"), b=([], "int64"), c=([], "int64"), d=([], "string"))
    theirs = {
        "a": tf.TensorSpec([None], tf.int64),
        "b": tf.TensorSpec([None], tf.float64),
        "c": tf.TensorSpec([None], tf.int32),
        "d": tf.TensorSpec([None], tf.string),
    }
    ours = {name: array_spec(each) for name, each in theirs.items()}
    expected = [CastFeature("a", "int64", "int32"), CastFeature("b", "float64", "int64")]
    assert cast_features(given, theirs) == cast_features(given, ours) == expected
    (told,) = rounded_features(given, ours, "feed()")
    assert told.startswith("feed() gives float64 as feature 'b', and the model's input takes int64")
    assert rounded_features(given, theirs, "feed()") == [told]
