"""Stacks of columns that are made before feed_batch's function: the same results, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from shoal.data.columns import ListColumn
from shoal.worker.engines.tensorflow.input.chunks import MappedChunks, spec_of, tensors_of

RECORDS = 37
TABLE = tf.constant([3.0, 4.0])


def columns_of(records=RECORDS, seed=0):
    random = np.random.default_rng(seed)
    return {
        "a": random.integers(-(2**62), 2**62, records),
        "b": random.integers(0, 9, records),
        "c": random.integers(0, 9, records),
        "x": random.normal(size=records).astype(np.float32),
        "y": np.full(records, np.nan, np.float32),
        "pair": random.normal(size=(records, 2)).astype(np.float32),
        "list": ListColumn(np.arange(records), np.ones(records, np.int64)),
        "text": np.array([b"t%d" % i for i in range(records)], object),
    }


def ids(columns, names="abc"):
    return tf.stack([columns[name] for name in names], axis=1)


STACKED = {
    "ids": lambda c: ids(c),
    "named": lambda c: ({"ids": ids(c), "dense": tf.math.log1p(ids(c, "xy"))}, c["b"]),
    "twice": lambda c: (ids(c), ids(c) + 1),
    "other order": lambda c: (ids(c), ids(c, "cab"), ids(c, "aa")),
    "used alone too": lambda c: (ids(c), c["a"] * 2),
    "last axis": lambda c: tf.stack([c["a"], c["b"]], axis=-1),
    "beside others": lambda c: (ids(c), c["list"], c["text"], c["pair"]),
}

NOT_STACKED = {
    "another axis": lambda c: tf.stack([c["a"], c["b"]]),
    "of results": lambda c: tf.stack([c["a"] + 1, c["b"]], axis=1),
    "of rows": lambda c: tf.stack([c["pair"], c["pair"]], axis=1),
    "of texts": lambda c: tf.stack([c["text"], c["text"]], axis=1),
    "no stack": lambda c: c["a"],
    "a tensor from outside": lambda c: (ids(c), tf.gather(TABLE, c["b"] % 2)),
    "an effect": lambda c: (ids(c), tf.debugging.check_numerics(c["x"], "bad")),
    "nothing for one": lambda c: (ids(c), None),
    "random": lambda c: (ids(c), tf.zeros_like(tf.random.uniform([2]))),
    "a loop": lambda c: (ids(c), tf.map_fn(lambda each: each + 1, c["b"])),
}


def mapped(function):
    return MappedChunks(lambda: iter([]), function, spec_of(tensors_of(columns_of())))


def same(one, other):
    tf.nest.assert_same_structure(one, other, expand_composites=True)
    pairs = (tf.nest.flatten(each, expand_composites=True) for each in (one, other))
    for a, b in zip(*pairs, strict=True):
        if a is None:
            assert b is None
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.numpy().tolist() == b.numpy().tolist() or (
            a.numpy().tobytes() == b.numpy().tobytes()
        )


@pytest.mark.parametrize(
    ("function", "stacks"),
    [(each, True) for each in STACKED.values()] + [(each, False) for each in NOT_STACKED.values()],
    ids=[*STACKED, *NOT_STACKED],
)
def test_it_gives_what_the_function_gives(function, stacks):
    chunks = mapped(function)
    assert (chunks._stacked is not None) == stacks
    for records in (RECORDS, 1, 64):
        columns = columns_of(records, seed=records)
        expected = tf.function(function)(
            {
                name: (
                    tf.RaggedTensor.from_row_lengths(each.values, each.row_lengths)
                    if isinstance(each, ListColumn)
                    else tf.constant(each)
                )
                for name, each in columns.items()
            }
        )
        same(chunks.of(columns), expected)


def test_it_takes_besides_the_stacks_only_the_columns_that_are_used():
    stacked = mapped(STACKED["named"])._stacked
    assert list(stacked._stacks) == [("a", "b", "c"), ("x", "y")]
    assert stacked._names == ["b"]


def test_a_column_of_another_type_is_refused_as_the_function_refuses_it():
    chunks = mapped(STACKED["ids"])
    with pytest.raises(Exception, match="int64"):
        chunks.of(columns_of() | {"b": np.zeros(RECORDS, np.int32)})


def test_a_reader_may_write_to_its_columns_afterwards():
    columns = columns_of()
    (stack, one) = mapped(lambda c: (ids(c), c["pair"])).of(columns)
    before = stack.numpy(), one.numpy()
    for name in ("a", "b", "c", "pair"):
        columns[name][...] = 7
    same((stack, one), tuple(map(tf.constant, before)))
