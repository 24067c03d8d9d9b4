"""What a dataset may be made of records by, and which of their columns it is computed from."""

import importlib
import pkgutil

import pytest
import tensorflow as tf

from shoal.worker.engines.tensorflow.input.transformations import (
    ALLOWED,
    REFUSED,
    misaligned,
    refusal,
    used_columns,
)

UNKNOWN = {
    *("DatasetSource", "DatasetV1", "DatasetV1Adapter", "UnaryDataset"),
    *("UnaryUnchangedStructureDataset", "_VariantDataset"),
    *("CsvDatasetV1", "CsvDatasetV2", "FixedLengthRecordDatasetV1", "FixedLengthRecordDatasetV2"),
    *("MatchingFilesDataset", "ParallelInterleaveDataset", "RandomDatasetV1", "RandomDatasetV2"),
    *("SqlDatasetV1", "SqlDatasetV2", "TFRecordDatasetV1", "TFRecordDatasetV2"),
    *("TextLineDatasetV1", "TextLineDatasetV2", "_FixedLengthRecordDataset", "_TFRecordDataset"),
    *("_TextLineDataset", "_GeneratorDataset", "_ListDataset", "_ListSnapshotChunksDataset"),
    *("_LoadDataset", "_PerDeviceGenerator", "_RandomDataset", "_RangeDataset", "_RemoteDataset"),
    *("_ReincarnatedPerDeviceGenerator", "_SnapshotChunkDataset", "_SparseTensorSliceDataset"),
    *("_TensorDataset", "_TensorSliceDataset", "_DataServiceDatasetV1", "_DataServiceDatasetV2"),
    *("_AssertCardinalityDataset", "_AssertNextDataset", "_AssertPrevDataset"),
    *("_AutoShardDataset", "_CopyToDeviceDataset", "_DenseToSparseBatchDataset"),
    *("_GlobalShuffleDataset", "_GroupByReducerDataset", "_LegacyRebatchDataset"),
    *("_LegacySnapshotDataset", "_MapAndBatchDataset", "_MapOnGpuDataset"),
    *("_NonSerializableDataset", "_ParseExampleDataset", "_ShuffleAndRepeatDataset"),
    *("_SleepDataset", "DTensorDataset"),
}
"""TensorFlow's other classes of datasets: sources, bases, and what few use. These are refused."""

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
    "batch, map, unbatch": (lambda d: d.map(one).batch(2).unbatch(), {"a"}),
    "flat_map": (lambda d: d.flat_map(many), {"a"}),
    "interleave": (lambda d: d.interleave(many), {"a"}),
    "all": (lambda d: d, None),
    "filter alone": (lambda d: d.filter(positive), None),
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


@pytest.fixture
def records():
    rows = {"a": tf.range(6, dtype=tf.int64), "b": tf.range(6, dtype=tf.int64)}
    return tf.data.Dataset.from_tensor_slices(rows)


def later(record):
    return record["a"]


def unordered(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.map(later).with_options(options)


GOOD = {
    "map": (lambda d: d.map(later), None),
    "as it is": (lambda d: d, None),
    "parallel map": (lambda d: d.map(later, num_parallel_calls=2).prefetch(1), None),
    "options": (lambda d: d.map(later).with_options(tf.data.Options()), None),
    "in order": (lambda d: d.map(later, num_parallel_calls=2, deterministic=True), None),
    "filter": (lambda d: d.filter(lambda r: r["a"] > 2).map(later), "filters"),
    "flat_map": (lambda d: d.flat_map(many), "has flat_map()"),
    "interleave": (lambda d: d.interleave(many), "interleaves"),
    "shuffle": (lambda d: d.shuffle(4).map(later), "shuffles"),
    "repeat": (lambda d: d.map(later).repeat(2), "repeats"),
    "batch": (lambda d: d.batch(2).map(later).unbatch(), "unbatches"),
    "padded batch": (lambda d: d.padded_batch(2).map(later).unbatch(), "unbatches"),
    "ragged batch": (lambda d: d.map(later).ragged_batch(2).map(tf.size), "batches"),
    "any order": (
        lambda d: d.map(later, num_parallel_calls=2, deterministic=False).prefetch(1),
        "uses deterministic=False",
    ),
    "options of any order": (lambda d: unordered(d).prefetch(1), "sets deterministic to False"),
}


@pytest.mark.parametrize(("feed", "what"), GOOD.values(), ids=GOOD)
def test_what_may_stand_between_records_and_elements(records, feed, what):
    made = feed(records)
    assert refusal(made, records) is None
    assert misaligned(made, records) == what
    once, again = (len(list(made.batch(2))) for _ in range(2))
    assert once == again > 0


BAD = {
    "cache": (lambda d: d.map(later).cache(), "uses cache(), which keeps the records of the first"),
    "snapshot": (lambda d: d.snapshot("unused"), "uses snapshot(), which keeps the records"),
    "save": (lambda d: d.save("unused") or d.cache().map(later), "uses cache()"),
    "endless": (lambda d: d.repeat().map(later), "uses repeat() without a count, which never ends"),
    "take": (lambda d: d.take(3), "uses take(), which sees the records of one task"),
    "take_while": (lambda d: d.take_while(lambda r: r["a"] < 3), "uses take_while(), which sees"),
    "skip": (lambda d: d.skip(3), "uses skip(), which sees the records of one task"),
    "shard": (lambda d: d.shard(2, 0), "uses shard(), which sees the records of one task"),
    "unique": (lambda d: d.map(later).unique(), "uses unique(), which sees the records of one"),
    "scan": (
        lambda d: d.scan(tf.constant(0, tf.int64), lambda s, r: (s + 1, s)),
        "uses scan(), which begins anew with each task",
    ),
    "enumerate": (lambda d: d.enumerate(), "uses enumerate() or zip(), which has more than one"),
    "concatenate": (lambda d: d.concatenate(d), "uses concatenate(), which has more than one"),
    "samples": (
        lambda d: tf.data.Dataset.sample_from_datasets([d, d.shuffle(2)]),
        "uses sample_from_datasets(), which has more than one input",
    ),
    "window": (lambda d: d.map(later).window(2).flat_map(lambda w: w), "uses window(), which grou"),
    "buckets": (
        lambda d: d.map(later).bucket_by_sequence_length(lambda x: 1, [2], [2, 2]).unbatch(),
        "uses group_by_window() or bucket_by_sequence_length(), which groups",
    ),
    "errors": (lambda d: d.ignore_errors(), "uses ignore_errors(), which also hides data"),
    "not known": (
        lambda d: d.apply(tf.data.experimental.assert_cardinality(6)),
        "uses AssertCardinalityDataset, which is nothing that shoal knows. Use map(), filter()",
    ),
    "other data": (lambda d: tf.data.Dataset.range(3), "returned a dataset that is not made of"),
    "a generator": (
        lambda d: tf.data.Dataset.from_generator(lambda: iter(d), output_types=tf.int64),
        "returned a dataset that is not made of the records it got",
    ),
}


@pytest.mark.parametrize(("feed", "what"), BAD.values(), ids=BAD)
def test_what_may_not_is_refused_by_name(records, feed, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = refusal(feed(records), records)
    assert found is not None
    assert found.startswith(what)


def test_every_class_of_tensorflows_datasets_is_known():
    for package in ("tensorflow.python.data.ops", "tensorflow.python.data.experimental.ops"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")
    found, waiting = set(), [tf.data.Dataset]
    while waiting:
        waiting += (new := waiting.pop().__subclasses__())
        found |= {each.__name__ for each in new if each.__module__.startswith("tensorflow.")}
    assert not {*ALLOWED} & ({*REFUSED} | UNKNOWN)
    # A new one is refused, until somebody decides.
    assert found - {*ALLOWED} - {*REFUSED} - UNKNOWN == set()
    assert {*ALLOWED} <= found
