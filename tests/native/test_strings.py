"""Ids of strings, against TensorFlow's, of strings of every length and of all its branches."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.native.strings import string_ids
from tests.examples import examples


def expected(texts):
    return tf.strings.to_hash_bucket_fast(tf.constant(texts, tf.string), 2**63 - 1).numpy()


def test_known_ids_never_change():
    # Rows of trained tables are found by them.
    texts = ["", "a", "user-123", "a string of thirty-two bytes....", "x" * 64, "y" * 65]
    assert string_ids(texts).tolist() == KNOWN


KNOWN = [
    *(1936946117179621456, 3694432073954588132, 6423773775453418201),
    *(3806242451184597727, 6916188127298655160, 4023130470993650269),
]


@pytest.mark.parametrize("length", [*range(200), 255, 256, 257, 1000, 4096, 10_001])
def test_ids_of_each_length_are_those_of_tensorflow(length):
    random = np.random.default_rng(length)
    texts = [random.bytes(length) for _ in range(20)]
    np.testing.assert_array_equal(string_ids(np.array(texts, object)), expected(texts))


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=100), st.binary(max_size=300)
)


@settings(max_examples=examples(200))
@given(st.lists(TEXTS, max_size=20))
@example(["", "\0", "\0\0", b"\xff", "caf\u00e9", "\U0001f41f" * 40])
def test_ids_are_those_of_tensorflow(texts):
    np.testing.assert_array_equal(string_ids(np.array(texts, object)), expected(texts))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (6,), (2, 3), (1, 2, 3)])
def test_ids_have_the_shape_of_the_strings(shape):
    texts = np.resize(np.array([f"text {i}" for i in range(6)], object), shape)
    wanted = expected(texts.tolist()).reshape(shape)
    for each in (texts, texts.astype("U"), texts.astype("S"), texts.tolist()):
        ids = string_ids(each)
        assert ids.dtype == np.int64
        np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(string_ids(texts.T), wanted.T)


def test_every_second_string_of_an_array_has_its_id():
    texts = np.array([b"a", b"b", b"c", b"d"], object)
    assert string_ids(texts[::2]).tolist() == string_ids([b"a", b"c"]).tolist()


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        (np.array([1, 2]), TypeError, "strings have ids, not int64"),
        (["a", None], TypeError, "value 1 is no string: None"),
        (["a", 2.5], TypeError, r"value 1 is no string: 2\.5"),
        (["\ud800"], UnicodeEncodeError, "surrogates not allowed"),
    ],
)
def test_what_is_no_string_has_no_id(values, error, words):
    with pytest.raises(error, match=words):
        string_ids(values)
