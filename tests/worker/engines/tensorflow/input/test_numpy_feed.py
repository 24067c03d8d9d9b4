"""A feed_batch of arrays on TensorFlow: told from one of tensors, and called with arrays."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from shoal.data.opening import open_reader
from shoal.errors import UserCodeError, UserError
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.engines.tensorflow.engine import ENGINE
from shoal.worker.engines.tensorflow.input import numpy_feed
from shoal.worker.engines.tensorflow.input.feed import InputPipeline
from shoal.worker.input.modes import TRAINING
from tests.worker.conftest import MODULE
from tests.worker.engines.host.conftest import records, text_of

pytestmark = pytest.mark.slow


@pytest.fixture
def make(module, parquet, monkeypatch):
    monkeypatch.setattr(numpy_feed, "_told", set())
    path = parquet(
        x=np.arange(100),
        y=2.0 * np.arange(100),
        s=[f"a{i}" for i in range(100)],
        tags=[[i] * (i % 4) for i in range(100)],
    )

    def made(body, text=None):
        loaded = module(text or "import tensorflow as tf\n" + text_of(body))
        reader = open_reader(path, "--training-data")
        return ENGINE.pipeline(reader, loaded, TRAINING, "--training-data", 8)

    made.path = path
    return made


def feature(make, value):
    made = make(f"return {{'f': {value}}}, columns['y']")
    (batch,) = made.batches(records(make.path, 4, 8))
    np.testing.assert_array_equal(batch.labels.numpy(), [8, 10, 12, 14])
    assert made.labels_spec == tf.TensorSpec([None], tf.float64)
    return made, batch.features["f"]


@pytest.mark.parametrize(
    ("value", "spec", "expected"),
    [
        ("np.stack([columns['x'], columns['y']], axis=1)", ([2], tf.float64), [[4, 8], [5, 10]]),
        ("columns['x'].astype(np.float32)", ([], tf.float32), [4, 5, 6, 7]),
        ("np.log1p(columns['x'] - columns['x'])", ([], tf.float64), [0] * 4),
        ("columns['tags'].padded(2, -1)", ([2], tf.int64), [[-1, -1], [5, -1], [6, 6], [7, 7]]),
        ("columns['tags'].offsets", ([], tf.int64), [0, 0, 1, 3]),
        ("columns['tags'].row_lengths", ([], tf.int64), [0, 1, 2, 3]),
        ("[len(s) for s in columns['s']]", ([], tf.int64), [2] * 4),
        ("np.zeros(len(columns['x']), bool)", ([], tf.bool), [False] * 4),
        ("np.array([{b'a5': 3}.get(s, 0) for s in columns['s']])", ([], tf.int64), [0, 3, 0, 0]),
        ("columns['s'].astype(str)", ([], tf.string), [b"a4", b"a5", b"a6", b"a7"]),
        ("np.char.upper(columns['s'].astype(str))", ([], tf.string), [b"A4", b"A5", b"A6", b"A7"]),
    ],
)
def test_a_function_of_arrays_gives_tensors(make, value, spec, expected):
    made, tensor = feature(make, value)
    assert isinstance(made, HostPipeline)
    assert isinstance(tensor, tf.Tensor)
    assert tensor.numpy().tolist()[: len(expected)] == expected
    assert made.features_spec == {"f": tf.TensorSpec([None, *spec[0]], spec[1])}


@pytest.mark.parametrize(
    "value",
    [
        "columns['x']",
        "tf.stack([columns['x'], columns['x']], axis=1)",
        "columns['x'] + np.int64(3)",
        "columns['tags'].to_tensor(0, shape=[None, 2])",
        "columns['tags']",
        "tf.strings.length(columns['s'])",
    ],
)
def test_a_function_of_tensors_is_traced_as_ever(make, value, caplog):
    with caplog.at_level(logging.INFO):
        made, _ = feature(make, value)
    assert type(made) is InputPipeline
    assert not caplog.records


def test_a_feed_stays_a_dataset(make):
    assert type(make("", MODULE)) is InputPipeline


def test_it_is_told_once(make, caplog):
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            make("return np.log1p(columns['x']), columns['y']")
    (told,) = caplog.records
    assert told.levelno == logging.INFO
    assert told.message.startswith("feed_batch() of model.py works on NumPy's arrays: it is called")


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        # Of a function of arrays, what it raises with arrays.
        ("return np.log1p(columns['x']) // undefined, 1", UserCodeError, "NameError: .*undefi"),
        ("return np.log1p(columns['x'])[:3], columns['y']", UserError, "gives 3 elements as the f"),
        ("return columns['x'].astype(float) + columns['z'], 1", UserError, "no column 'z'"),
        ("return {'f': columns['tags'].padded(3), 'g': columns['tags']}, 1", UserError, "a column"),
        # Of any other, what it raises with tensors.
        ("return columns['x'].numpy(), columns['y']", UserCodeError, "'SymbolicTensor' object has"),
        (
            "return columns['x'] + columns['y'], columns['y']",
            UserCodeError,
            "type float64 that doe",
        ),
        (
            "return tf.strings.length(columns['x']), columns['y']",
            UserCodeError,
            "'StringLength' Op",
        ),
        ("return 1 // 0, columns['y']", UserCodeError, "ZeroDivisionError"),
        ("return columns['z'], columns['y']", UserError, "there is no column 'z'"),
        ("return columns['x']", UserError, r"must give \(features, labels\)"),
    ],
)
def test_an_error_is_that_of_the_function_that_it_is(make, body, error, message):
    with pytest.raises(error, match=message):
        make(body)
