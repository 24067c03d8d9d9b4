"""Which columns of its records a dataset is computed from."""

import pytest
import tensorflow as tf

from shoal.worker.input.transformations import used_columns

SPEC = {
    "a": tf.TensorSpec([None], tf.int64),
    "b": tf.TensorSpec([None], tf.int64),
    "c": tf.TensorSpec([None], tf.string),
    "ragged": tf.RaggedTensorSpec([None, None], tf.int64, 1),
}


def one(row):
    return row["a"] + 1


def branch(row):
    total = row["a"]
    if row["b"] > 3:
        total += 1
    return total


def shape_only(row):
    del row["b"]
    return {"x": row["a"], "r": row["ragged"]}


def asserting(row):
    tf.debugging.assert_greater(row["b"], tf.constant(0, tf.int64))
    return row["a"]


def printing(row):
    tf.print(row["c"])
    return row["a"]


def popping(row):
    label = row.pop("b")
    return row, label


def positive(row):
    return row["b"] > 0


def many(row):
    return tf.data.Dataset.from_tensors(row["a"]).repeat(2)


USED = {
    "map": (lambda d: d.map(one), {"a"}),
    "parallel map": (lambda d: d.map(one, num_parallel_calls=2).prefetch(1), {"a"}),
    "a branch": (lambda d: d.map(branch), {"a", "b"}),
    "ragged": (lambda d: d.map(shape_only), {"a", "ragged"}),
    "an assertion": (lambda d: d.map(asserting), {"a", "b"}),
    "a print": (lambda d: d.map(printing), {"a", "c"}),
    "the rest of the row": (lambda d: d.map(popping), {"a", "b", "c", "ragged"}),
    "filter, then map": (lambda d: d.filter(positive).map(one), {"a", "b"}),
    "map, then filter": (lambda d: d.map(one).filter(lambda x: x > 2), {"a"}),
    "shuffle, then map": (lambda d: d.shuffle(4).repeat(2).map(one), {"a"}),
    "batch, map, unbatch": (lambda d: d.take(8).map(one).batch(2).unbatch(), {"a"}),
    "flat_map": (lambda d: d.flat_map(many), {"a"}),
    "interleave": (lambda d: d.interleave(many), {"a"}),
    "all": (lambda d: d, None),
    "filter alone": (lambda d: d.filter(positive), None),
    "what is not known": (lambda d: d.enumerate().map(lambda i, row: row["a"]), None),
    "two ways": (lambda d: tf.data.Dataset.zip((d.map(one), d.map(branch))), None),
}


@pytest.mark.parametrize(("feed", "columns"), USED.values(), ids=USED)
def test_the_columns_read(feed, columns):
    chunks = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=SPEC)
    records = chunks.unbatch()
    assert used_columns(feed(records), records) == columns


def test_what_a_function_captures_is_no_column():
    chunks = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=SPEC)
    offset = tf.Variable(3, dtype=tf.int64)
    assert used_columns(chunks.map(lambda rows: rows["b"] + offset), chunks) == {"b"}
