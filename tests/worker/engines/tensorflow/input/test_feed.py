"""Batches: their content, their place in the range, and errors in feed."""

import decimal
import textwrap

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from shoal.data.custom import open_custom_reader
from shoal.data.opening import open_reader
from shoal.errors import UserCodeError, UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.engines.tensorflow.input import transformations
from shoal.worker.engines.tensorflow.input.feed import InputPipeline
from shoal.worker.input.modes import EVALUATION, PREDICTION, TRAINING
from shoal.worker.reports.progress import Progress
from tests.worker.conftest import MODULE

pytestmark = pytest.mark.slow


@pytest.fixture
def pipeline(module):
    def make(path, mode=TRAINING, text=MODULE, size=8):
        reader = open_reader(path, "--training-data")
        return InputPipeline(reader, module(text), mode, "--training-data", size)

    return make


def feed_with(line):
    """MODULE with another last line of feed."""
    return MODULE.replace("return dataset.map(parse)", line)


def records(path, start, end):
    return pb.Range(source=path, start=start, end=end)


def test_batches_hold_the_range_in_order(pipeline, numbers):
    batches = list(pipeline(numbers).batches(records(numbers, 30, 50)))
    assert [batch.size for batch in batches] == [8, 8, 4]
    assert [batch.records_done for batch in batches] == [8, 16, 20]
    features = np.concatenate([batch.features.numpy()[:, 0] for batch in batches])
    np.testing.assert_array_equal(features, np.arange(30, 50))
    labels = np.concatenate([batch.labels.numpy()[:, 0] for batch in batches])
    np.testing.assert_array_equal(labels, 2 * np.arange(30, 50))


def test_feed_is_traced_once_for_many_ranges(pipeline, numbers):
    made = pipeline(numbers)
    first = list(made.batches(records(numbers, 0, 8)))
    second = list(made.batches(records(numbers, 92, 100)))
    assert first[0].features.numpy()[0, 0] == 0
    assert second[0].features.numpy()[-1, 0] == 99


def test_prediction_has_no_labels(pipeline, numbers):
    batch = next(pipeline(numbers, PREDICTION).batches(records(numbers, 0, 8)))
    assert batch.labels is None
    assert batch.features.shape == (8, 1)


def test_a_pair_of_features_in_prediction_is_no_label(pipeline, numbers):
    text = MODULE.replace("return features\n", "return features, 2 * features\n")
    made = pipeline(numbers, PREDICTION, text)
    batch = next(made.batches(records(numbers, 4, 8)))
    assert batch.labels is None
    np.testing.assert_array_equal(batch.features[1].numpy()[:, 0], [8, 10, 12, 14])
    assert len(made.features_spec) == 2


def test_list_and_string_columns_reach_feed(pipeline, parquet):
    path = parquet(name="lists.parquet", x=["a", "bb", ""], y=[[1, 2], [], [3]])
    text = MODULE.replace(
        'tf.cast(record["x"], tf.float32)[None]', 'tf.strings.length(record["x"])'
    ).replace('tf.cast(record["y"], tf.float32)[None]', 'tf.reduce_sum(record["y"])')
    (batch,) = pipeline(path, text=text).batches(records(path, 0, 3))
    np.testing.assert_array_equal(batch.features, [1, 2, 0])
    np.testing.assert_array_equal(batch.labels, [3, 0, 3])


@pytest.mark.parametrize(
    ("line", "aligned"),
    [
        ("return dataset.map(parse)", True),
        ("return dataset.map(parse, num_parallel_calls=2).prefetch(1)", True),
        ("return dataset.map(parse).shuffle(10)", False),
        ("return dataset.filter(lambda r: r['x'] > 3).map(parse)", False),
        ("return dataset.map(parse).repeat(2)", False),
        ("return dataset.map(parse, num_parallel_calls=2, deterministic=False)", False),
    ],
)
def test_progress_counts_records_only_where_feed_keeps_them(pipeline, numbers, line, aligned):
    made = pipeline(numbers, text=feed_with(line))
    assert made.aligned is aligned
    done = [batch.records_done for batch in made.batches(records(numbers, 0, 16))]
    assert (done == [8, 16]) is aligned
    assert aligned or not any(done)


@pytest.mark.parametrize("mode", [TRAINING, EVALUATION, PREDICTION])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (".cache()", r"uses cache\(\), which keeps the records of the first task"),
        (".repeat()", r"uses repeat\(\) without a count, which never ends"),
        (".take(4)", r"uses take\(\), which sees the records of one task"),
    ],
)
def test_a_feed_that_is_no_function_of_one_task_is_refused(pipeline, numbers, mode, line, message):
    with pytest.raises(UserError, match=rf"feed\(\) of model.py, in mode '{mode}', {message}"):
        pipeline(numbers, mode, feed_with(f"return dataset.map(parse){line}"))


@pytest.mark.parametrize(
    ("line", "what"),
    [(".cache()", "read 0 records and gave 16"), (".take(12)", "read 16 records and gave 12")],
)
def test_a_dataset_that_gives_a_task_other_records_than_its_own_is_noticed(
    pipeline, numbers, monkeypatch, line, what
):
    """Also if it is one that should have been refused."""
    for kind in ("CacheDataset", "_TakeDataset"):
        monkeypatch.setitem(transformations.ALLOWED, kind, "")
    made = pipeline(numbers, text=feed_with(f"return dataset.map(parse){line}"))
    if line == ".cache()":
        assert len(list(made.batches(records(numbers, 0, 16)))) == 2
    with pytest.raises(UserError, match=rf"{what} elements of records 16 to 31 of "):
        list(made.batches(records(numbers, 16, 32)))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (
            "return dataset.map(parse, num_parallel_calls=2, deterministic=False).prefetch(1)",
            "uses deterministic=False",
        ),
        ("return dataset.filter(lambda r: r['x'] > 3).map(parse)", "filters"),
        ("return dataset.batch(4).unbatch().map(parse)", "unbatches"),
    ],
)
def test_prediction_takes_one_element_a_record_in_order_only(pipeline, numbers, line, what):
    with pytest.raises(UserError, match=rf"{what} in mode 'prediction': predictions could not be"):
        pipeline(numbers, PREDICTION, feed_with(line))


def test_an_error_in_feed_names_the_record(pipeline, numbers):
    text = MODULE.replace(
        "def parse(record):",
        "def parse(record):\n"
        "        bad = tf.constant(43, tf.int64)\n"
        "        tf.debugging.assert_none_equal(record['x'], bad)",
    )
    batches = pipeline(numbers, text=text).batches(records(numbers, 24, 80))
    assert next(batches).size == 8
    assert next(batches).size == 8
    with pytest.raises(UserCodeError, match=r"feed\(\) of model.py on .*, record 43 raised"):
        next(batches)


def test_a_column_that_is_missing_is_named(pipeline, numbers):
    text = MODULE.replace('record["y"]', 'record["label"]')
    with pytest.raises(UserError, match=r"there is no column 'label' in .*; the columns are x, y"):
        pipeline(numbers, text=text)


def test_a_feed_that_gives_no_pairs_is_told(pipeline, numbers):
    text = MODULE.replace('mode == "prediction"', "True")
    with pytest.raises(
        UserError, match=r"must give \(features, labels\) or \(.*, weights\) in mode 'evaluation'"
    ):
        pipeline(numbers, EVALUATION, text)


def test_a_third_element_is_the_weights_of_the_records(pipeline, numbers):
    third = 'tf.cast(record["y"], tf.float32)[None], record["y"] / 4'
    text = MODULE.replace('tf.cast(record["y"], tf.float32)[None]', third)
    made = pipeline(numbers, text=text)
    assert made.weights_spec == tf.TensorSpec([None], tf.float64)
    batches = list(made.batches(records(numbers, 10, 22)))
    found = np.concatenate([batch.weights.numpy() for batch in batches])
    np.testing.assert_array_equal(found, np.arange(10, 22) / 2)
    assert pipeline(numbers).weights_spec is None
    assert next(pipeline(numbers).batches(records(numbers, 0, 8))).weights is None
    with pytest.raises(UserError, match="gives weights of the type string: they must be numbers"):
        pipeline(numbers, text=text.replace('record["y"] / 4', '"heavy"'))
    with pytest.raises(UserError, match="in mode 'training', not a tuple of 4"):
        pipeline(numbers, text=text.replace('record["y"] / 4', "1, 2"))


def test_a_feed_that_gives_no_dataset_is_told(pipeline, numbers):
    with pytest.raises(UserError, match=r"returned int, not a tf\.data\.Dataset"):
        pipeline(numbers, text=feed_with("return 3"))


def test_data_that_cannot_be_read_is_the_readers_error(pipeline, numbers):
    batches = pipeline(numbers).batches(records(numbers, 90, 120))
    with pytest.raises(UserError, match="it holds 100"):
        list(batches)


class BrokenReader:
    """A user's reader that raises at a record."""

    def __init__(self, at):
        self.at = at

    def sources(self):
        return [("shard", 2000)]

    def read(self, source, start, end):
        for record in range(start, end):
            if record == self.at:
                raise KeyError("broken shard")
            yield {"x": record, "y": record}


@pytest.mark.parametrize("at", [0, 1500])
def test_an_exception_in_the_users_reader_is_the_users(module, at):
    loaded = module()
    object.__setattr__(loaded, "custom_data_reader", BrokenReader)
    reader = open_custom_reader(lambda _: BrokenReader(at), "", "--training-data")
    with pytest.raises(UserCodeError, match=r"custom_data_reader\(\) .* KeyError.*broken"):
        list(
            InputPipeline(reader, loaded, TRAINING, "--training-data", 16).batches(
                pb.Range(source="shard", start=1400, end=1600)
            )
        )


def test_examples_of_a_tfrecord_are_parsed_by_feed(pipeline, tmp_path):
    path = str(tmp_path / "examples.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(20):
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=[number]))
            features = tf.train.Features(feature={"x": feature})
            writer.write(tf.train.Example(features=features).SerializeToString())
    text = MODULE.replace(
        "    def parse(record):\n",
        "    def parse(row):\n"
        '        kinds = {"x": tf.io.FixedLenFeature([], tf.float32)}\n'
        '        record = tf.io.parse_single_example(row["record"], kinds)\n',
    )
    batch = next(pipeline(path, PREDICTION, text).batches(records(path, 5, 8)))
    np.testing.assert_array_equal(batch.features[:, 0], [5, 6, 7])


def feed_batch(body):
    """MODULE with feed_batch in place of feed; `body` gives the features."""
    return (
        MODULE.partition("def feed(")[0]
        + f"""
def feed_batch(columns, mode, metadata):
    features = {body}
    return features if mode == "prediction" else (features, columns["y"])
"""
    )


COLUMN = 'tf.cast(columns["x"], tf.float32)[:, None]'


def test_feed_batch_gets_minibatches_across_the_readers_chunks(pipeline, parquet, monkeypatch):
    monkeypatch.setattr("shoal.data.readers.row_groups.CHUNK_ROWS", 5)
    lists = [[i] * (i % 3) for i in range(40)]
    path = parquet(name="lists.parquet", x=np.arange(40), y=lists)
    made = pipeline(path, text=feed_batch(COLUMN))
    batches = list(made.batches(records(path, 3, 23)))
    assert made.aligned
    assert [batch.records_done for batch in batches] == [8, 16, 20]
    features = np.concatenate([batch.features.numpy()[:, 0] for batch in batches])
    np.testing.assert_array_equal(features, np.arange(3, 23))
    assert [row for batch in batches for row in batch.labels.to_list()] == lists[3:23]


def test_feed_batch_gives_what_feed_gives(pipeline, numbers):
    one = next(pipeline(numbers, PREDICTION).batches(records(numbers, 2, 9)))
    other = next(pipeline(numbers, PREDICTION, feed_batch(COLUMN)).batches(records(numbers, 2, 9)))
    np.testing.assert_array_equal(one.features, other.features)
    assert other.labels is None


def test_feed_batch_gives_in_training_what_it_gives_a_dataset(pipeline, parquet):
    body = """{
        "stacked": [columns["x"], columns["x"] + 1],
        "pair": (columns["z"], None),
        "ragged": columns["lists"],
        "text": tf.strings.length(columns["text"]),
    }"""
    columns = {
        "x": np.arange(20),
        "y": np.arange(20, dtype=np.float32),
        "z": np.arange(20) / 2,
        "lists": [[i] * (i % 3) for i in range(20)],
        "text": ["a" * i for i in range(20)],
    }
    path = parquet(name="many.parquet", **columns)
    ours, theirs = (pipeline(path, mode, feed_batch(body)) for mode in (TRAINING, EVALUATION))
    assert ours.features_spec == theirs.features_spec
    wanted = list(theirs.batches(records(path, 2, 13)))
    for _ in range(2):  # again from the start
        given = list(ours.batches(records(path, 2, 13)))
        for one, other in zip(given, wanted, strict=True):
            pair = (one.features, one.labels), (other.features, other.labels)
            tf.nest.assert_same_structure(*pair, expand_composites=True)
            for a, b in zip(
                *(tf.nest.flatten(x, expand_composites=True) for x in pair), strict=True
            ):
                np.testing.assert_array_equal(a, b)


def test_an_error_in_feed_batch_names_the_record(pipeline, numbers):
    checked = 'tf.debugging.check_numerics(1 / tf.cast(columns["x"] - 43, tf.float32), "bad")'
    batches = pipeline(numbers, text=feed_batch(checked)).batches(records(numbers, 24, 80))
    assert next(batches).size == 8
    assert next(batches).size == 8
    with pytest.raises(UserCodeError, match=r"feed_batch\(\) of model.py on .*, record 43 raised"):
        next(batches)


def test_a_feed_batch_that_drops_records_is_told(pipeline, numbers):
    batches = pipeline(numbers, text=feed_batch(COLUMN + "[1:]")).batches(records(numbers, 8, 20))
    with pytest.raises(UserError, match=r"gave 7 elements for the 8 records from 8 on"):
        list(batches)


ODD = {
    "missing": pa.array([1, None] * 50),
    "price": pa.array([decimal.Decimal("1.50")] * 100),
    "note": pa.array([{"a": 1}] * 100),
    "all missing": pa.nulls(100),
    "tags": pa.array([[1], None] * 50),
}
"""Columns that cannot be tensors."""

BATCHED = """
    def feed_batch(columns, mode, metadata):
        features = tf.cast(columns["x"], tf.float32)[:, None]
        return features, tf.cast(columns["y"], tf.float32)[:, None]
    """


@pytest.mark.parametrize("name", ["feed", "feed_batch"])
def test_the_time_of_a_feed_is_told_by_the_functions_name(module, numbers, name):
    text = MODULE[: MODULE.index("def feed")] + textwrap.dedent(BATCHED)
    progress = Progress()
    reader = open_reader(numbers, "--training-data")
    made = InputPipeline(
        *(reader, module(text if name == "feed_batch" else MODULE), TRAINING),
        *("--training-data", 8),
        progress=progress,
    )
    next(made.batches(records(numbers, 0, 8)))
    assert list(progress.done().stage_seconds) == ["read", name]


@pytest.mark.parametrize("batched", [False, True], ids=["feed", "feed_batch"])
def test_what_is_in_columns_that_nobody_reads_does_not_matter(pipeline, parquet, batched):
    path = parquet(x=np.arange(100), y=2 * np.arange(100), **ODD)
    text = MODULE[: MODULE.index("def feed")] + textwrap.dedent(BATCHED) if batched else MODULE
    batches = list(pipeline(path, text=text).batches(records(path, 30, 50)))
    features = np.concatenate([batch.features.numpy()[:, 0] for batch in batches])
    np.testing.assert_array_equal(features, np.arange(30, 50))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", r"data.parquet: column 'missing': .*missing values, the first in row 2;"),
        ("note", r"data.parquet: column 'note': the type struct<a: int64> has no counterpart"),
    ],
)
def test_what_is_wrong_with_a_column_that_is_read_is_told(pipeline, parquet, name, message):
    path = parquet(x=np.arange(100), y=2 * np.arange(100), **ODD)
    text = MODULE.replace('record["y"]', f'record["{name}"]')
    with pytest.raises(UserError, match=message):
        list(pipeline(path, text=text).batches(records(path, 0, 16)))


def test_a_column_that_is_handed_on_is_read(pipeline, parquet):
    path = parquet(x=np.arange(100), y=np.arange(100), missing=ODD["missing"])
    text = feed_with(
        'return dataset.map(lambda row: ({"a": row["x"], "b": row["missing"]}, row["y"]))'
    )
    with pytest.raises(UserError, match="column 'missing'"):
        list(pipeline(path, text=text).batches(records(path, 0, 16)))


def test_a_csv_value_that_fits_no_number_matters_only_where_it_is_read(pipeline, tmp_path):
    """In a column whose type was guessed from the records before it."""
    path = tmp_path / "late.csv"
    rows = [f"{i},{2 * i},{i}" for i in range(200_000)]
    rows[-1] = "199999,399998,oops"
    path.write_text("\n".join(["x,y,z", *rows]) + "\n")
    made = pipeline(str(path), size=4096)
    last = list(made.batches(records(str(path), 199_990, 200_000)))
    assert last[-1].features.numpy()[-1, 0] == 199_999
    text = MODULE.replace('record["y"]', 'record["z"]')
    with pytest.raises(UserError, match=r"row 200000: .*oops"):
        list(pipeline(str(path), text=text).batches(records(str(path), 199_990, 200_000)))


def test_odd_columns_of_a_reader_of_the_users(module):
    class Reader:
        def sources(self):
            return [("memory", 4)]

        def read(self, source, start, end):
            yield {
                "x": np.arange(4)[start:end],
                "y": np.arange(4)[start:end],
                "n": [None, 1, 2, {}][start:end],
            }

    text = MODULE + "\ndef custom_data_reader(path):\n    pass\n"
    reader = open_custom_reader(lambda path: Reader(), "memory", "--training-data")
    made = InputPipeline(reader, module(text), TRAINING, "--training-data", 8)
    (batch,) = made.batches(records("memory", 0, 4))
    np.testing.assert_array_equal(batch.features.numpy()[:, 0], np.arange(4))


NESTED = """
import tensorflow as tf

def feed(dataset, mode, metadata):
    def prepare(record):
        return {"sums": tf.reduce_sum(tf.reduce_sum(record["sessions"], axis=1))}, record["y"]
    return dataset.map(prepare)

custom_model = loss = optimizer = lambda *_: None
"""


def test_lists_of_lists_are_ragged_twice(pipeline, parquet):
    sessions = [[[1, 2], [3]], [], [[], [4]]] * 4
    path = parquet(sessions=sessions, y=list(range(12)))
    batches = list(pipeline(path, text=NESTED).batches(records(path, 1, 12)))
    sums = [value for batch in batches for value in batch.features["sums"].numpy().tolist()]
    assert sums == [sum(map(sum, each)) for each in sessions[1:]]


def test_a_column_of_files_and_of_folders_is_told_where_feed_uses_it(pipeline, parquet):
    path = parquet(name="x=1/data.parquet", x=[1.0], y=[2.0])
    with pytest.raises(UserError, match="column 'x' is in the files and also in the"):
        pipeline(path)
    pipeline(path, text=MODULE.replace('record["x"]', 'record["y"]'))
