"""The same batches as TensorFlow's pipeline gives, for functions that are alike."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.config.groups.event_time import EventTime
from shoal.data.opening import open_reader
from shoal.proto import shoal_pb2 as pb
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.engines.tensorflow.input.feed import InputPipeline
from shoal.worker.input.modes import EVALUATION, PREDICTION, TRAINING
from shoal.worker.input.shuffling import Shuffled
from tests.worker.engines.host.conftest import text_of

pytestmark = pytest.mark.slow

HOST = text_of("""
    features = {
        "stack": np.stack([columns["a"], columns["b"]], axis=1).astype(np.float32),
        "quarter": columns["a"] / 4,
        "text": columns["text"],
        "lists": columns["lists"].padded(3, -1),
        "words": (columns["words"].padded(2), columns["fixed"]),
    }
    if mode == "prediction":
        return features
    return features, {"y": columns["b"] * 2}, columns["weight"]
""")

TENSORFLOW = "import tensorflow as tf\n" + text_of("""
    a = columns["a"]
    features = {
        "stack": tf.cast(tf.stack([a, tf.cast(columns["b"], tf.int64)], axis=1), tf.float32),
        "quarter": a / 4,
        "text": columns["text"],
        "lists": columns["lists"].to_tensor(-1, shape=[None, 3]),
        "words": (columns["words"].to_tensor("", shape=[None, 2]), columns["fixed"]),
    }
    if mode == "prediction":
        return features
    return features, {"y": columns["b"] * 2}, columns["weight"]
""")

RECORD = st.fixed_dictionaries(
    {
        "a": st.integers(-(2**53), 2**53),
        "b": st.integers(-100, 100),
        "text": st.text(max_size=4),
        "lists": st.lists(st.integers(-9, 9), max_size=5),
        "words": st.lists(st.text(max_size=3), max_size=3),
        "weight": st.floats(0, 4, width=32),
        "fixed": st.tuples(st.booleans(), st.booleans()),
    }
)
SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int32()),
        ("text", pa.string()),
        ("lists", pa.list_(pa.int64())),
        ("unused", pa.int64()),
        ("words", pa.list_(pa.string())),
        ("weight", pa.float32()),
        ("fixed", pa.list_(pa.bool_(), 2)),
    ]
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(RECORD, min_size=1, max_size=40), st.data())
def test_batches_are_those_of_tensorflow(module, tmp_path, rows, data):
    path = str(tmp_path / "data.parquet")
    for number, row in enumerate(rows):
        row["unused"] = number
    group = data.draw(st.integers(1, len(rows)), "rows of a group")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=group)
    size = data.draw(st.integers(1, 9), "batch size")
    mode = data.draw(st.sampled_from([TRAINING, EVALUATION, PREDICTION]))
    start = data.draw(st.integers(0, len(rows) - 1), "start")
    records = pb.Range(source=path, start=start, end=data.draw(st.integers(start + 1, len(rows))))
    shuffled = None
    if mode == TRAINING and data.draw(st.booleans(), "shuffled"):
        edges = {0, len(rows), data.draw(st.integers(0, len(rows)))}
        shuffled = Shuffled(data.draw(st.integers(0, 9)), 1, path, tuple(sorted(edges)))
    event_time = EventTime.parse("unused:s") if mode == TRAINING else None

    def batches(pipeline, text):
        reader = open_reader(path, "--training-data")
        made = pipeline(reader, module(text), mode, "--training-data", size, event_time=event_time)
        return made, list(made.batches(records, shuffled))

    ours, host = batches(HostPipeline, HOST)
    theirs, expected = batches(InputPipeline, TENSORFLOW)
    assert ours._records.used == theirs._records.used
    assert len(host) == len(expected)
    for one, other in zip(host, expected, strict=True):
        for name in ("size", "first", "records_done", "records", "event_time"):
            assert getattr(one, name) == getattr(other, name)
        for name in ("features", "labels", "weights"):
            alike(getattr(one, name), getattr(other, name))
    for name in ("features_spec", "labels_spec", "weights_spec"):
        tf.nest.map_structure(fits, getattr(theirs, name), getattr(ours, name))


def alike(array, tensor):
    tf.nest.map_structure(
        lambda one, other: (
            np.testing.assert_array_equal(one, other.numpy(), strict=True)
            if one is not None
            else other is None
        ),
        array,
        tensor,
    )


def fits(theirs, ours):
    if theirs is None or ours is None:
        assert theirs is ours
        return
    assert theirs.dtype == (tf.string if ours.dtype == object else tf.as_dtype(ours.dtype))
    # What is read tells a size that a graph leaves open.
    assert theirs.shape.is_compatible_with(ours.shape)
    assert ours.shape[0] is None
