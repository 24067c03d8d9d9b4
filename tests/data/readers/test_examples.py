"""tf.train.Example and SequenceExample, as TensorFlow writes and parses them."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.groups.data_format import FormatOptions
from shoal.data import open_reader
from shoal.errors import UserError
from shoal.native import examples as native
from tests.examples import examples

FLAG = "--training-data"


def feature(values):
    if all(isinstance(value, bytes) for value in values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if all(isinstance(value, float) for value in values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def features(**values):
    return tf.train.Features(feature={name: feature(each) for name, each in values.items()})


def example(**values):
    return tf.train.Example(features=features(**values)).SerializeToString(deterministic=True)


def sequence(context, lists):
    made = {
        name: tf.train.FeatureList(feature=[feature(step) for step in steps])
        for name, steps in lists.items()
    }
    return tf.train.SequenceExample(
        context=features(**context), feature_lists=tf.train.FeatureLists(feature_list=made)
    ).SerializeToString(deterministic=True)


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records:
            file.write(record)
    return path


def opened(path, kind="example"):
    return open_reader(str(path), FLAG, data_format=FormatOptions(data_format=kind).format_of_data)


def rows(reader, start=0, end=None):
    (source,) = reader.sources()
    batches = reader.read(source.name, start, source.records if end is None else end)
    return [row for batch in batches for row in batch.to_pylist()]


def test_columns_are_the_features(tmp_path):
    records = [
        example(user=[i], price=[i / 4], name=[b"n%d" % i], tags=list(range(i % 3)), zip=[b"a"])
        for i in range(100)
    ]
    reader = opened(write(tmp_path / "a.tfrecord", records))
    assert reader.metadata.column_types == {
        "name": "binary",
        "price": "float",
        "tags": "list<item: int64>",
        "user": "int64",
        "zip": "binary",
    }
    expected = [
        {"name": b"n%d" % i, "price": i / 4, "tags": list(range(i % 3)), "user": i, "zip": b"a"}
        for i in range(100)
    ]
    assert [dict(sorted(row.items())) for row in rows(reader, 31, 77)] == expected[31:77]
    reader.narrow({"tags", "user"})
    assert rows(reader, 5, 6) == [{name: expected[5][name] for name in reader.schema().names}]


def test_a_feature_that_a_record_lacks_is_missing(tmp_path):
    records = [example(x=[1], y=[1, 2]), example(), example(x=[3], y=[])]
    reader = opened(write(tmp_path / "a.tfrecord", records))
    found = rows(reader)
    assert [row["x"] for row in found] == [1, None, 3]
    assert [row["y"] for row in found] == [[1, 2], None, []]
    filled = open_reader(
        f"{tmp_path}/a.tfrecord#format=example",
        FLAG,
        data_format=FormatOptions(fill_missing="x=-1,y=0").format_of_data,
    )
    assert [(row["x"], row["y"]) for row in rows(filled)] == [(1, [1, 2]), (-1, []), (3, [])]


def test_sequences_are_lists_of_their_steps(tmp_path):
    records = [
        sequence(
            {"user": [i]}, {"item": [[j] for j in range(i)], "words": [[b"a"] * j for j in (0, i)]}
        )
        for i in range(5)
    ]
    reader = opened(write(tmp_path / "a.tfrecord", records), "sequence-example")
    types = reader.metadata.column_types
    assert types["item"] == "list<item: int64>"
    assert types["words"] == "list<item: list<item: binary>>"
    for i, row in enumerate(rows(reader)):
        assert row == {"user": i, "item": list(range(i)), "words": [[], [b"a"] * i]}


VALUES = {
    "a": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    "b": st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
    "c": st.lists(st.binary(max_size=9), min_size=1, max_size=3),
}
WANTED = [(b"a", native.INTEGERS, False), (b"b", native.FLOATS, False), (b"c", native.BYTES, False)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=VALUES), max_size=8))
def test_the_values_are_those_that_tensorflow_reads(records):
    texts = [example(**record, other=[1.5] * 3) for record in records]
    (ints, _, a, _), (floats, _, b, _), (text, ends, c, _) = native.columns_of(texts, WANTED)
    parsed = [tf.train.Example.FromString(each).features.feature for each in texts]
    for name, counts, kind in (
        ("a", a, "int64_list"),
        ("b", b, "float_list"),
        ("c", c, "bytes_list"),
    ):
        lengths = [len(getattr(p[name], kind).value) if name in p else -1 for p in parsed]
        assert counts.tolist() == lengths
    assert ints.tolist() == [v for p in parsed for v in p["a"].int64_list.value]
    assert floats.tolist() == [v for p in parsed for v in p["b"].float_list.value]
    starts = [0, *ends.tolist()]
    found = [text[i:j].tobytes() for i, j in zip(starts, ends.tolist(), strict=False)]
    assert found == [v for p in parsed for v in p["c"].bytes_list.value]


def many(last):
    """Records of which only the first are looked at for types."""
    return [example(x=[i], note=[b"n" * 2000]) for i in range(1000)] + [last]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (example(x=[1, 2], note=[b""]), "row 1001: feature 'x' has 2 values, and one in each of"),
        (example(x=[1.5], note=[b""]), "row 1001: .*feature 'x' is of another type than before"),
        (b"\xff\xff", "row 1001: not a tf.train.Example .*: it is no message of this kind"),
    ],
)
def test_a_record_of_another_form_is_named(tmp_path, last, message):
    reader = opened(write(tmp_path / "a.tfrecord", many(last)))
    reader.narrow({"x"})
    with pytest.raises(UserError, match=rf"a\.tfrecord: {message}"):
        rows(reader, 990)


def test_what_is_no_example_is_told_at_once(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"plain text"])
    with pytest.raises(UserError, match=r"a\.tfrecord: row 1: not a tf\.train\.Example"):
        opened(path).schema()
    path = write(tmp_path / "a.tfrecord", [sequence({}, {"item": [[1]]})])
    with pytest.raises(UserError, match="give --data-format sequence-example"):
        opened(path).schema()


def test_examples_with_nothing_in_them_are_told(tmp_path):
    with pytest.raises(UserError, match="holds no features"):
        opened(write(tmp_path / "a.tfrecord", [example()])).schema()
