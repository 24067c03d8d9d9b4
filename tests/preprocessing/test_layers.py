"""Each layer against NumPy or plain Python, dense, ragged, in tf.data and in a model."""

import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

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
)

MASK = 2**64 - 1
WORDS = ["", "a", "bc", "def", "ghij", "seven77", "eight888", "sixteen letters!", "caf\u00e9"]
INTEGERS = [0, 1, -1, 7, 2**63 - 1, -(2**63), 123_456_789]
NUMBERS = [-3.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5, 9.99, 10.0, 1e6, math.inf, -math.inf, math.nan]


def fingerprint(text):
    """FarmHash's Fingerprint64 for up to 16 bytes, in plain Python."""
    k0, k2 = 0xC3A5C85C97CB3127, 0x9AE16A3B2F90404F
    data, n = text.encode(), len(text.encode())
    word = lambda start, size: int.from_bytes(data[start : start + size], "little")  # noqa: E731
    turn = lambda value, by: (value >> by | value << (64 - by)) & MASK  # noqa: E731

    def joined(u, v, factor):
        a = (u ^ v) * factor & MASK
        b = (v ^ a ^ a >> 47) * factor & MASK
        return (b ^ b >> 47) * factor & MASK

    factor = k2 + 2 * n
    if n >= 8:
        a, b = (word(0, 8) + k2) & MASK, word(n - 8, 8)
        c = (turn(b, 37) * factor + a) & MASK
        return joined(c, (turn(a, 25) + b) * factor & MASK, factor)
    if n >= 4:
        return joined((n + (word(0, 4) << 3)) & MASK, word(n - 4, 4), factor)
    if n:
        value = (data[0] + (data[n >> 1] << 8)) * k2 & MASK
        value ^= (n + (data[-1] << 2)) * k0 & MASK
        return (value ^ value >> 47) * k2 & MASK
    return k2


def expected_hash(value, salt=0):
    bits = fingerprint(value) % (2**63 - 1) if isinstance(value, str) else value & MASK
    bits = bits + (salt + 1) * 0x9E3779B97F4A7C15 & MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & MASK
    return bits ^ bits >> 31


def signed(values):
    return np.array(values, np.uint64).view(np.int64)


def log_rounded(values, bins, base):
    values = np.where(np.array(values) > 1, values, 1.0)
    return np.minimum(np.round(np.log(values) / np.log(base)), bins - 1).astype(np.int64)


def round_identity(values, bins, default):
    rounded = np.round(values)
    valid = (rounded >= 0) & (rounded < bins)
    return np.where(valid, rounded, default).astype(np.int64)


# Layer, input, expected output: of the same shape.
ELEMENTWISE = {
    "hashing-words": (Hashing(), WORDS, signed([expected_hash(w) for w in WORDS])),
    "hashing-integers": (Hashing(), INTEGERS, signed([expected_hash(i) for i in INTEGERS])),
    "hashing-bins": (
        Hashing(97, salt=3),
        WORDS,
        np.array([expected_hash(w, 3) % 97 for w in WORDS]),
    ),
    "lookup-words": (
        IndexLookup(["b", "a", ""], num_oov_indices=4),
        ["a", "b", "", "x", "y"],
        np.array([1, 0, 2, 3 + expected_hash("x") % 4, 3 + expected_hash("y") % 4]),
    ),
    "lookup-integers": (
        IndexLookup(np.array([7, -1]), num_oov_indices=5),
        INTEGERS,
        np.array([{7: 0, -1: 1}.get(i, 2 + expected_hash(i) % 5) for i in INTEGERS]),
    ),
    "discretization": (
        Discretization([-0.5, 1, 10]),
        NUMBERS,
        np.digitize(NUMBERS, [-0.5, 1, 10]),
    ),
    "log-round": (LogRound(8, base=2), NUMBERS, log_rounded(NUMBERS, 8, 2)),
    "log-round-e": (LogRound(100), NUMBERS[:-3], log_rounded(NUMBERS[:-3], 100, math.e)),
    "round-identity": (RoundIdentity(11, 6), NUMBERS, round_identity(NUMBERS, 11, 6)),
    "normalizer": (
        Normalizer(1.5, -4),
        NUMBERS,
        ((np.array(NUMBERS) - 1.5) / -4).astype(np.float32),
    ),
    "to-number": (
        ToNumber("float64", default_value=-1),
        ["1.5", "", " ", " -2e3 ", "7"],
        np.array([1.5, -1, -1, -2000, 7]),
    ),
    "to-number-int64": (
        ToNumber("int64"),
        ["9007199254740993", "", "-1"],
        np.array([9007199254740993, 0, -1]),
    ),
}


def test_what_a_string_spells_is_no_other_number():
    large = ToNumber("int64", default_value=10**18)
    assert large(tf.constant(["", "1"])).numpy().tolist() == [10**18, 1]
    assert ToNumber("float64", default_value=0.1)(tf.constant([""])).numpy().tolist() == [0.1]
    for dtype in ("float32", "float64", "int64"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="0x1F"):
            ToNumber(dtype)(tf.constant(["0x1F"]))
    with pytest.raises(ValueError, match="is not of type int32"):
        ToNumber("int32", default_value=2**40)


def test_nan_is_a_padding():
    lists = ToRagged(padding=float("nan"))(tf.constant([[1.0, float("nan")], [float("nan")] * 2]))
    assert lists.to_list() == [[1.0], []]


def test_a_byte_order_mark_is_no_part_of_a_vocabulary(tmp_path):
    (tmp_path / "words.txt").write_text("a\nb\n", encoding="utf-8-sig")
    assert IndexLookup(tmp_path / "words.txt").vocabulary == ("a", "b")


def reloaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


@pytest.mark.parametrize("case", ELEMENTWISE)
def test_elementwise(case, tmp_path):
    layer, given, expected = ELEMENTWISE[case]
    values = tf.constant(given, tf.float64 if isinstance(given[0], float) else None)
    if isinstance(given[0], int):
        values = tf.constant(given, tf.int64)
    result = layer(values)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    ragged = layer(tf.RaggedTensor.from_row_lengths(values, [2, 0, len(given) - 2]))
    assert ragged.row_lengths().numpy().tolist() == [2, 0, len(given) - 2]
    np.testing.assert_array_equal(ragged.flat_values, expected)
    matrix = layer(values[tf.newaxis, :])
    np.testing.assert_array_equal(matrix, expected[np.newaxis])

    # As in `feed`: record by record, in a graph.
    dataset = tf.data.Dataset.from_tensor_slices(values).map(layer.__call__)
    np.testing.assert_array_equal(list(dataset.as_numpy_iterator()), expected)

    inputs = keras.Input([], dtype=values.dtype.name)
    model = keras.Model(inputs, layer(inputs))
    assert model.output.dtype == expected.dtype
    np.testing.assert_array_equal(model(values), expected)
    loaded = reloaded(model, tmp_path)
    assert loaded.layers[1].get_config() == layer.get_config()
    np.testing.assert_array_equal(loaded(values), expected)


def test_concatenate_with_offset(tmp_path):
    first, second = np.array([[1, 2], [3, 4]]), np.array([[0], [9]], np.int32)
    expected = np.concatenate([first, second + np.int64(10)], axis=1)
    layer = ConcatenateWithOffset([0, 10])
    np.testing.assert_array_equal(layer([first, second]), expected)
    dataset = tf.data.Dataset.from_tensor_slices((first, second))
    dataset = dataset.map(lambda a, b: layer([a, b]))
    np.testing.assert_array_equal(list(dataset.as_numpy_iterator()), expected)
    inputs = [keras.Input([2], dtype="int64"), keras.Input([1], dtype="int32")]
    model = keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, 3)
    loaded = reloaded(model, tmp_path)
    np.testing.assert_array_equal(loaded([tf.constant(first), tf.constant(second)]), expected)
    ragged = layer([tf.ragged.constant([[1], []]), tf.ragged.constant([[2], [3, 4]])])
    assert ragged.to_list() == [[1, 12], [13, 14]]


def test_concatenate_with_offset_does_not_join_the_batch():
    with pytest.raises(ValueError, match=r"is the batch; give each input a second axis"):
        ConcatenateWithOffset([0, 5])([keras.Input([], dtype="int64") for _ in range(2)])
    with pytest.raises(ValueError, match="2 offsets for 1 inputs"):
        ConcatenateWithOffset([0, 5])([tf.constant([1])])
    with pytest.raises(ValueError, match="input 0 is float32"):
        ConcatenateWithOffset([0])([tf.constant([1.0])])


def test_to_ragged_splits_strings():
    layer = ToRagged(",", padding="-")
    lines = ["a,b", "", "c,,-,d,"]
    expected = [[part for part in line.split(",") if part not in ("", "-")] for line in lines]
    words = layer(tf.constant(lines))
    assert [[word.decode() for word in row] for row in words.to_list()] == expected
    dataset = tf.data.Dataset.from_tensor_slices(lines).map(layer.__call__)
    assert [[w.decode() for w in row] for row in dataset.as_numpy_iterator()] == expected


def test_to_ragged_drops_padding():
    matrix = np.array([[1, -1, 2], [-1, -1, -1], [3, 4, 5]])
    layer = ToRagged(padding=-1)
    expected = [row[row != -1].tolist() for row in matrix]
    assert layer(matrix).to_list() == expected
    dataset = tf.data.Dataset.from_tensor_slices(matrix).map(layer.__call__)
    assert [row.tolist() for row in dataset.as_numpy_iterator()] == expected
    assert layer(tf.ragged.constant([[1, -1], [2]])).to_list() == [[1], [2]]


@pytest.mark.parametrize("case", ELEMENTWISE)
def test_elementwise_of_sparse_tensors(case, tmp_path):
    layer, given, expected = ELEMENTWISE[case]
    values = tf.constant(given, {float: tf.float64, int: tf.int64}.get(type(given[0])))
    places = [[2 * i, i % 3] for i in range(len(given))]
    sparse = tf.SparseTensor(places, values, [2 * len(given), 3])
    column = keras.Input([3], dtype=values.dtype.name, sparse=True)
    model = keras.Model(column, layer(column))
    for made in (layer, model, reloaded(model, tmp_path)):
        result = made(sparse)
        assert isinstance(result, tf.SparseTensor)
        np.testing.assert_array_equal(result.values, expected)
        np.testing.assert_array_equal(result.indices, places)
        np.testing.assert_array_equal(result.dense_shape, sparse.dense_shape)
    (result,) = tf.data.Dataset.from_tensors(sparse).map(layer.__call__)
    np.testing.assert_array_equal(result.values, expected)


def test_sparse_lists_from_layer_to_layer(tmp_path):
    columns = [keras.Input([], dtype="string", name=name) for name in ("a", "b")]
    ids = [Hashing(10)(ToSparse("|")(column)) for column in columns]
    model = keras.Model(columns, ConcatenateWithOffset([0, 10])(ids))
    given = [tf.constant(["x|y", "z"]), tf.constant(["x", "y|z"])]
    hashes = {word: expected_hash(word) % 10 for word in "xyz"}
    expected = [
        *(hashes["x"], hashes["y"], hashes["x"] + 10),
        *(hashes["z"], hashes["y"] + 10, hashes["z"] + 10),
    ]
    for made in (model, reloaded(model, tmp_path)):
        np.testing.assert_array_equal(made(given).values, expected)
        assert made(given).dense_shape.numpy().tolist() == [2, 4]
    with pytest.raises(ValueError, match="some inputs are sparse, and some are not"):
        ConcatenateWithOffset([0, 1])([tf.sparse.from_dense([[1]]), tf.constant([[1]])])


def chain():
    """A model of a string column: split, read, look up; ragged from step to step."""
    column = keras.Input([], dtype="string", name="column")
    numbers = ToNumber("int64")(ToRagged("|")(column))
    return keras.Model(column, IndexLookup([5, 6], num_oov_indices=1)(numbers))


def test_ragged_through_a_model(tmp_path):
    column = tf.constant(["5|6", "", "8|5|"])
    expected = [[0, 1], [], [2, 0]]
    model = chain()
    assert model(column).to_list() == expected
    assert reloaded(model, tmp_path)(column).to_list() == expected
    batch = tf.data.Dataset.from_tensors(column).map(model.__call__)
    assert next(iter(batch)).to_list() == expected


def test_lookup_reads_a_file_once(tmp_path):
    (tmp_path / "words.txt").write_text("b\na\u2028c\n", encoding="utf-8")
    layer = IndexLookup(tmp_path / "words.txt")
    (tmp_path / "words.txt").unlink()
    assert layer.num_indices == 3
    again = IndexLookup.from_config(layer.get_config())
    assert again(tf.constant(["a\u2028c", "b", "?"])).numpy().tolist() == [1, 0, 2]
    (tmp_path / "ids.txt").write_text("12\n-3")
    ids = IndexLookup(str(tmp_path / "ids.txt"), token_type="int64")
    assert ids(tf.constant([-3, 12, 4], tf.int32)).numpy().tolist() == [1, 0, 2]


def test_lookup_outlives_its_layer_in_a_dataset():
    dataset = tf.data.Dataset.from_tensor_slices(["a", "z"])
    dataset = dataset.map(IndexLookup(["z", "a"]).__call__)
    assert list(dataset.as_numpy_iterator()) == [1, 0]


@pytest.mark.slow
def test_a_saved_model_needs_no_shoal(tmp_path):
    column = keras.Input([], dtype="string", name="column")
    ids = Hashing(50)(IndexLookup(["x", "y"], num_oov_indices=3)(column))
    model = keras.Model(column, Normalizer(1, 2)(ids))
    expected = model(tf.constant(["y", "q"])).numpy().tolist()
    model.export(tmp_path / "saved", verbose=False)
    program = (
        "import sys, tensorflow as tf; saved = tf.saved_model.load(sys.argv[1])\n"
        "print(saved.serve(tf.constant(['y', 'q'])).numpy().tolist(), 'shoal' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{expected} False"


@pytest.mark.parametrize(
    ("content", "token_type", "message"),
    [
        ("a\nb\na\n", None, r"words.txt, line 3: 'a' is already line 1"),
        ("1\nx\n", "int64", r"words.txt, line 2: 'x' is not an integer"),
        ("", None, r"words.txt is empty"),
        (None, None, r"words.txt cannot be read"),
    ],
)
def test_bad_vocabulary_files(tmp_path, content, token_type, message):
    if content is not None:
        (tmp_path / "words.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        IndexLookup(tmp_path / "words.txt", token_type=token_type)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IndexLookup(["a", 1]), "element 1: 1 is not of type string"),
        (lambda: IndexLookup([1, 2.5]), "element 1: 2.5 is not of type int64"),
        (lambda: IndexLookup(["a"])(tf.constant([1])), "vocabulary is of type string"),
        (lambda: IndexLookup([1])(tf.constant([1.0])), "integers are looked up, not float32"),
        (lambda: IndexLookup(["a"], num_oov_indices=0), "num_oov_indices must be a positive"),
        (lambda: Hashing(0), "num_bins must be a positive integer, not 0"),
        (lambda: Hashing(salt=-1), "salt must be a non-negative integer"),
        (lambda: Hashing()(tf.constant([1.0])), "can be hashed, not float32"),
        (lambda: Discretization([1, 0.5]), r"bin_boundaries\[1\] is 0.5, below the one"),
        (lambda: Discretization([math.nan]), r"bin_boundaries\[0\] is nan, not finite"),
        (lambda: LogRound(4, base=1), "base must be above 1"),
        (lambda: RoundIdentity(3, default_value=3), r"default_value must be in \[0, num_bins\)"),
        (lambda: Normalizer(0, 0), "divisor must be finite and not 0"),
        (lambda: ToNumber("string"), "output_dtype must be one of float32"),
        (lambda: ToRagged(), "give a separator, to split strings, or padding"),
        (lambda: ToRagged(",")(tf.constant([1])), "strings can be split, not int32"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_to_number_shows_what_is_no_number():
    with pytest.raises(tf.errors.InvalidArgumentError, match="12x"):
        ToNumber()(tf.constant(["1", "12x"]))
