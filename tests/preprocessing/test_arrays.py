"""Layers give for arrays of NumPy what they give for tensors."""

import math
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.feeding import giving_arrays
from shoal.data.columns import ListColumn
from shoal.errors import UserError
from shoal.preprocessing import (
    ConcatenateWithOffset,
    Discretization,
    Hashing,
    IndexLookup,
    LogRound,
    Normalizer,
    RoundIdentity,
    ToNumber,
    ToRagged,
    ToSparse,
    string_ids,
)
from tests.examples import examples

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=80), st.sampled_from("abc")
)
NUMBERS = st.one_of(
    st.floats(width=32),
    st.integers(-100, 100).map(float),
    st.integers(-20, 20).map(lambda n: n / 2),
)
SPELLED = st.one_of(
    st.floats(width=32, allow_nan=False).map(repr),
    st.integers(-(2**31), 2**31 - 1).map(str),
    st.sampled_from(["", " ", "\t1\n", "+7", "1.", ".5e1", "-inf", "1E3", "0012"]),
)
CASES = {
    "hash integers": (Hashing(), INT64, np.int64),
    "hash strings": (Hashing(salt=7), TEXT, object),
    "hash into bins": (Hashing(97, salt=2**70), TEXT, object),
    "look strings up": (IndexLookup(["b", "", "caf\u00e9"], 4), TEXT, object),
    "look integers up": (IndexLookup([7, -1], 3), st.one_of(INT64, st.just(7)), np.int64),
    "discretize": (Discretization([-0.5, 1, 1, 10]), NUMBERS, np.float64),
    "discretize float32": (Discretization([0.1, 1]), NUMBERS, np.float32),
    "round the logarithm": (LogRound(9, 3.7), NUMBERS, np.float64),
    "round": (RoundIdentity(11, 6), NUMBERS, np.float32),
    "normalize": (Normalizer(1.5, -4), NUMBERS, np.float64),
    "normalize integers": (Normalizer(2, 3, dtype="float64"), INT64, np.int64),
    "read numbers": (ToNumber("float64", -1), SPELLED, object),
    "read float32": (ToNumber(), SPELLED, object),
    "cast": (ToNumber("int64"), st.integers(-9, 9), np.float32),
}


def arrays(layer, given):
    with giving_arrays():
        return layer(given)


def of_objects(texts):
    made = np.empty(len(texts), object)
    made[:] = texts
    return made


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_an_array_gives_what_a_tensor_does(case, data):
    layer, elements, dtype = CASES[case]
    values = data.draw(st.lists(elements, min_size=1, max_size=8))
    column = of_objects(values) if dtype is object else np.array(values, dtype)
    expected = layer(tf.constant(values, tf.string if dtype is object else dtype)).numpy()
    found = arrays(layer, column)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    if dtype is object:  # as readers give them
        encoded = of_objects([each.encode() for each in values])
        np.testing.assert_array_equal(arrays(layer, encoded), expected)
    # Of any shape, and the elements of lists.
    matrix = arrays(layer, column.reshape(1, -1, 1))
    np.testing.assert_array_equal(matrix, expected.reshape(1, -1, 1))
    scalar = arrays(layer, column[0])
    assert scalar.shape == ()
    assert scalar.dtype == expected.dtype
    inner = ListColumn(column, np.array([0, len(values)]))
    lists = arrays(layer, ListColumn(inner, np.array([2])))
    np.testing.assert_array_equal(lists.values.values, expected)
    assert lists.values.row_lengths.tolist() == [0, len(values)]
    assert lists.row_lengths.tolist() == [2]


@settings(max_examples=examples(300))
@given(st.text("0123456789+-.eEinfaty_x ", max_size=7))
def test_an_array_refuses_what_a_tensor_does(text):
    for dtype in ("float64", "int64"):
        layer = ToNumber(dtype)
        try:
            expected = layer(tf.constant([text])).numpy()
        except tf.errors.InvalidArgumentError:
            with pytest.raises(ValueError, match=f"is no number of type {dtype}"):
                arrays(layer, [text])
        else:
            np.testing.assert_array_equal(arrays(layer, [text]), expected)


def test_an_integer_beyond_its_type_is_no_number_of_it():
    assert arrays(ToNumber("int32"), [str(2**31 - 1)]).tolist() == [2**31 - 1]
    with pytest.raises(ValueError, match=r"to_number\w*: b'2147483648' is no number of type int32"):
        arrays(ToNumber("int32"), [b"2147483648"])


def plain(found):
    """A column of lists, or an array, as Python's lists of str."""
    if isinstance(found, ListColumn):
        values, ends = plain(found.values), np.cumsum(found.row_lengths)
        return [values[end - n : end] for n, end in zip(found.row_lengths, ends, strict=True)]
    return [each.decode() if isinstance(each, bytes) else each for each in found.tolist()]


def told(tensor):
    """A ragged tensor, or a vector, in the same way."""
    lists = tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()
    decoded = lambda x: x.decode() if isinstance(x, bytes) else x  # noqa: E731
    walk = lambda x: [walk(each) for each in x] if isinstance(x, list) else decoded(x)  # noqa: E731
    return walk(lists)


LISTS = st.lists(st.text("ab|-", max_size=7), min_size=1, max_size=6)


@settings(max_examples=examples(60))
@given(LISTS, st.sampled_from(["|", "|-"]), st.sampled_from([None, "a", "-"]))
def test_strings_are_split_as_those_of_tensors(texts, separator, padding):
    layer = ToRagged(separator, padding=padding)
    for column in (of_objects(texts), of_objects([each.encode() for each in texts])):
        found = arrays(layer, column)
        assert plain(found) == told(layer(tf.constant(texts)))
        assert plain(arrays(layer, column[0])) == told(layer(tf.constant(texts[0])))
        square = np.resize(column, (2, 3))
        assert plain(arrays(layer, square)) == told(layer(tf.constant(square.tolist())))
        rows = ListColumn(column, np.array([0, len(texts)]))
        ragged = tf.RaggedTensor.from_row_lengths(texts, [0, len(texts)])
        assert plain(arrays(layer, rows)) == told(layer(ragged))


PADDED = st.lists(st.integers(-2, 1), min_size=12, max_size=12).map(np.array)


@settings(max_examples=examples(60))
@given(PADDED, st.sampled_from([np.int64, np.float32]))
def test_padding_is_dropped_as_from_tensors(values, dtype):
    layer = ToRagged(padding=-1)
    values = values.astype(dtype)
    for shape in ((12,), (3, 4), (2, 3, 2), (12, 1)):
        given_values = values.reshape(shape)
        assert plain(arrays(layer, given_values)) == told(layer(tf.constant(given_values)))
    rows = ListColumn(values, np.array([5, 0, 7]))
    ragged = tf.RaggedTensor.from_row_lengths(values, [5, 0, 7])
    assert plain(arrays(layer, rows)) == told(layer(ragged))
    assert plain(arrays(layer, ListColumn(rows, np.array([2, 1])))) == told(
        layer(tf.RaggedTensor.from_row_lengths(ragged, [2, 1]))
    )


def test_nan_is_dropped_from_arrays():
    lists = arrays(ToRagged(padding=math.nan), np.array([[1.0, math.nan], [math.nan] * 2]))
    assert plain(lists) == [[1.0], []]


def test_ids_stand_side_by_side_as_those_of_tensors():
    layer = ConcatenateWithOffset([0, 10])
    first, second = np.array([[1, 2], [3, 4]]), np.array([[0], [9]], np.int32)
    found = arrays(layer, [first, second])
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, layer([first, second]))
    columns = [ListColumn(np.arange(3), np.array(n)) for n in ([1, 2, 0], [3, 0, 0])]
    ragged = layer([tf.RaggedTensor.from_row_lengths(c.values, c.row_lengths) for c in columns])
    assert plain(arrays(layer, columns)) == told(ragged)
    assert plain(arrays(ConcatenateWithOffset([0, 10], axis=1), columns)) == told(ragged)
    for wrong in ([columns[0], first], [ListColumn(columns[0], np.array([3]))] * 2):
        with pytest.raises(ValueError, match=r"joined record by record.*column.padded\(n\)"):
            arrays(layer, wrong)


@pytest.mark.parametrize(
    ("make", "given_values", "error", "words"),
    [
        (lambda: Hashing(), [1.5], ValueError, "can be hashed, not float64"),
        (lambda: Hashing(), [True], ValueError, "can be hashed, not bool"),
        (lambda: Hashing(), np.array(["a", None]), TypeError, "value 1 is no string: None"),
        (lambda: IndexLookup(["a"]), [1], ValueError, "type string, the input of type int64"),
        (lambda: IndexLookup([1]), ["a"], ValueError, "type int64, the input of type string"),
        (lambda: IndexLookup([1]), [1.0], ValueError, "integers are looked up, not float64"),
        (lambda: ToRagged(","), [1], ValueError, "strings can be split, not int64"),
        (lambda: ToRagged(padding=1), 1, ValueError, "the input needs an axis"),
        (lambda: ToRagged(padding=1), ["a"], ValueError, "padding=1 is none of type string"),
        (lambda: ToRagged(padding="a"), [1], ValueError, "padding='a' is none of type int64"),
        (lambda: ConcatenateWithOffset([0]), [np.ones(1)], ValueError, "input 0 is float64"),
        (lambda: ConcatenateWithOffset([0, 1]), [np.ones(1)], ValueError, "2 offsets for 1"),
        (lambda: ToSparse(","), ["a"], UserError, r"engine tensorflow alone.*padded\(n\)"),
    ],
)
def test_arrays_that_a_layer_refuses(make, given_values, error, words):
    with pytest.raises(error, match=words):
        arrays(make(), given_values)


def test_string_ids_are_those_of_an_embedding():
    texts = ["a", "caf\u00e9", ""]
    expected = tf.strings.to_hash_bucket_fast(texts, 2**63 - 1).numpy().tolist()
    assert string_ids(np.array(texts, object)).tolist() == expected


def test_arrays_still_give_tensors_beside_a_job_with_tensorflow():
    assert tf.is_tensor(Hashing()(np.array([1])))
    with giving_arrays():
        assert isinstance(Hashing()(np.array([1])), np.ndarray)
        assert tf.is_tensor(Hashing()(tf.constant([1])))


IN_PYTORCH = """
import sys, torch, numpy as np
from shoal.preprocessing import Hashing, IndexLookup, Normalizer, Statistics, ToNumber, ToRagged
import shoal.preprocessing
texts = np.array([b"a|b", b"", b"c"], object)
lists = ToRagged("|")(texts)
print(Hashing(10)(lists).padded(2).tolist(), IndexLookup(["a", "c"])(lists).values.tolist())
print(ToNumber("int64")(["7"]).tolist(), Normalizer(1, 2, name="n", dtype="float64")([5]).tolist())
print(Hashing(10).get_config(), type(Hashing(10)).__mro__[-2].__name__)
try:
    Hashing(10, name="column")(torch.tensor([1]))
except shoal.UserError as error:
    print(error)
try:
    shoal.preprocessing.ToSparse
except shoal.UserError as error:
    print(error)
print([name for name in ("keras", "tensorflow", "jax") if name in sys.modules])
"""


@pytest.mark.slow
def test_a_program_of_pytorch_needs_no_keras():
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", IN_PYTORCH], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    hashed = {text: int(Hashing(10)(tf.constant(text))) for text in "abc"}
    bins = [[hashed["a"], hashed["b"]], [0, 0], [hashed["c"], 0]]
    places = IndexLookup(["a", "c"])(tf.constant(list("abc"))).numpy().tolist()
    assert lines[0] == f"{bins} {places}"
    assert lines[1] == "[7] [2.0]"
    assert lines[2].startswith("{'name': 'Hashing', 'dtype': 'float32', 'num_bins': 10")
    assert lines[3].startswith("Hashing 'column' was given a tensor")
    assert "call it in feed_batch" in lines[3]
    assert "ToSparse is for models of Keras: import keras before" in lines[4]
    assert lines[5] == "[]"
