"""Batches of NumPy's arrays: their content, their place in the range, and errors."""

import logging
import threading
from collections import namedtuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.base.nested import leaves, mapped
from shoal.config.groups.event_time import EventTime
from shoal.data.custom import open_custom_reader
from shoal.data.opening import open_reader
from shoal.errors import UserCodeError, UserError
from shoal.preprocessing import Hashing
from shoal.proto import shoal_pb2 as pb
from shoal.worker.attribution import attributed
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.input.modes import EVALUATION, PREDICTION, TRAINING
from shoal.worker.input.shuffling import Shuffled
from shoal.worker.input.spec import ArraySpec
from shoal.worker.reports.progress import Progress
from tests.worker.conftest import MODULE as OF_TENSORFLOW
from tests.worker.engines.host.conftest import PAIR, records, text_of

INT64, FLOAT64, OBJECT = map(np.dtype, ("int64", "float64", "object"))


def xs(batches):
    return [int(x) for batch in batches for x in batch.features["x"]]


@pytest.mark.parametrize("mode", [TRAINING, EVALUATION])
def test_batches_hold_the_range_in_order(pipeline, numbers, mode):
    batches = list(pipeline(numbers, mode=mode).batches(records(numbers, 30, 50)))
    assert [batch.size for batch in batches] == [8, 8, 4]
    assert [batch.first for batch in batches] == [0, 8, 16]
    assert [batch.records_done for batch in batches] == [8, 16, 20]
    assert batches[1].records == records(numbers, 38, 46)
    assert xs(batches) == list(range(30, 50))
    labels = np.concatenate([batch.labels for batch in batches])
    np.testing.assert_array_equal(labels, 2 * np.arange(30, 50))


def test_prediction_has_no_labels_and_a_pair_is_features(pipeline, numbers):
    made = pipeline(numbers, 'return columns["x"], 2.0 * columns["x"]', PREDICTION)
    (batch,) = made.batches(records(numbers, 4, 8))
    assert batch.labels is None
    np.testing.assert_array_equal(batch.features[1], [8, 10, 12, 14])
    assert made.features_spec == (ArraySpec((None,), INT64), ArraySpec((None,), FLOAT64))
    assert (made.labels_spec, made.weights_spec) == (None, None)


def test_a_third_element_is_the_weights(pipeline, numbers):
    made = pipeline(numbers, 'return columns["x"], columns["y"], columns["y"] / 2')
    (batch,) = made.batches(records(numbers, 4, 8))
    np.testing.assert_array_equal(batch.weights, [4, 5, 6, 7])
    assert made.weights_spec == ArraySpec((None,), FLOAT64)


def test_columns_are_arrays_texts_bytes_and_lists_list_columns(pipeline, parquet):
    path = parquet(
        text=["a", "ü", ""], tags=[[3, 4], [], [5]], pair=np.arange(6).reshape(3, 2).tolist()
    )
    body = """
    assert type(columns["text"]) is np.ndarray
    tags = columns["tags"]
    return {
        "text": columns["text"],
        "length": np.array([len(name) for name in columns["text"]]),
        "tags": tags.padded(2, -1),
        "bag": (tags.values, tags.offsets),
    }
    """
    made = pipeline(path, body, PREDICTION)
    (batch,) = made.batches(records(path, 0, 3))
    assert batch.features["text"].tolist() == [b"a", "ü".encode(), b""]
    assert batch.features["length"].tolist() == [1, 2, 0]
    assert batch.features["tags"].tolist() == [[3, 4], [-1, -1], [5, -1]]
    assert [each.tolist() for each in batch.features["bag"]] == [[3, 4, 5], [0, 2, 2]]
    assert made.features_spec == {
        "text": ArraySpec((None,), OBJECT),
        "length": ArraySpec((None,), INT64),
        "tags": ArraySpec((None, 2), INT64),
        "bag": (ArraySpec((None,), INT64), ArraySpec((None,), INT64)),
    }


def test_the_engine_makes_its_arrays_of_each_array(pipeline, numbers):
    seen = []

    def arrays(nested):
        seen.extend(leaves(nested))
        return mapped(lambda array: array if array is None else "of the engine", nested)

    body = 'return {"x": [columns["x"], columns["x"][::-1]]}, columns["y"][:, None].T[0], None'
    made = pipeline(numbers, body, arrays=arrays)
    assert not seen
    (batch,) = made.batches(records(numbers, 0, 4))
    assert batch.features == {"x": ["of the engine"] * 2}
    assert (batch.labels, batch.weights) == ("of the engine", None)
    assert made.weights_spec is None
    assert seen.pop() is None
    assert [each.tolist() for each in seen] == [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 4, 6]]
    assert all(each.flags.c_contiguous and each.flags.writeable for each in seen)


Named = namedtuple("Named", "x")


def test_what_else_is_an_array_is_taken_as_one(pipeline, numbers):
    torch = pytest.importorskip("torch")
    pandas = pytest.importorskip("pandas")
    body = """
    import pandas, torch
    from tests.worker.engines.host.test_pipeline import Named
    x = columns["x"]
    return Named({
        "list": [float(each) for each in x],
        "tensor": torch.from_numpy(x),
        "frame": pandas.DataFrame({"a": x, "b": 2 * x}),
        "text": x.astype(str),
        "swapped": x.astype(">i8"),
        "read_only": np.broadcast_to(7, x.shape),
    })
    """
    del torch, pandas
    made = pipeline(numbers, body, PREDICTION)
    (batch,) = made.batches(records(numbers, 4, 6))
    assert isinstance(batch.features, Named)
    features = batch.features.x
    assert features["list"].tolist() == [4.0, 5.0]
    assert features["tensor"].tolist() == [4, 5]
    assert features["frame"].tolist() == [[4, 8], [5, 10]]
    assert features["text"].tolist() == [b"4", b"5"]
    assert features["swapped"].tolist() == [4, 5]
    assert features["read_only"].tolist() == [7, 7]
    assert all(each.dtype.isnative and each.flags.writeable for each in features.values())
    assert made.features_spec.x["frame"] == ArraySpec((None, 2), INT64)


def test_what_the_function_writes_to_is_its_own(pipeline, numbers):
    body = """
    x = columns["x"]
    x -= 40
    if (x == 7).any():
        raise ValueError("seven")
    return {"x": x}, columns.pop("y")
    """
    made = pipeline(numbers, body)
    assert xs(made.batches(records(numbers, 0, 16))) == list(range(-40, -24))
    with pytest.raises(UserCodeError, match=r", record 47 raised ValueError: seven"):
        list(made.batches(records(numbers, 0, 100)))


def test_a_reader_of_the_users_may_go_on_writing_to_its_arrays(module):
    class Reader:
        def sources(self):
            return [("memory", 32)]

        def read(self, source, start, end):
            own = np.empty(8, np.int64)
            for first in range(start, end, 8):
                own[:] = np.arange(first, first + 8)
                yield {"x": own, "y": own}

    text = text_of(PAIR) + "\ndef custom_data_reader(path):\n    pass\n"
    reader = open_custom_reader(lambda path: Reader(), "memory", "--training-data")
    made = HostPipeline(reader, module(text), TRAINING, "--training-data", 8)
    assert xs(list(made.batches(records("memory", 0, 32)))) == list(range(32))


def test_a_reader_whose_records_lack_a_column_is_told(module):
    class Reader:
        def sources(self):
            return [("memory", 100)]

        def read(self, source, start, end):
            x = np.arange(start, end)
            yield {"x": x, "y": x} | ({"z": x} if start < 50 else {})

    text = text_of('return {"x": columns["x"] + columns["z"]}, columns["y"]')
    text += "\ndef custom_data_reader(path):\n    pass\n"
    reader = open_custom_reader(lambda path: Reader(), "memory", "--training-data")
    made = HostPipeline(reader, module(text), TRAINING, "--training-data", 8)
    assert len(list(made.batches(records("memory", 0, 40)))) == 5
    with pytest.raises(UserError, match="memory: the reader gives no column 'z' with some records"):
        list(made.batches(records("memory", 60, 90)))


def test_columns_of_two_types_do_not_matter_where_they_are_not_taken(pipeline, tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z\n" + "".join(f"{i},{i},1\n" for i in range(50)))
    (tmp_path / "b.csv").write_text("x,y,z\n" + "".join(f"{i},{i},a\n" for i in range(50)))
    body = """
    x = columns["x"]
    return {"x": x, "padded": np.zeros((len(x), x.max() + 1))}, columns["y"]
    """
    made = pipeline(str(tmp_path / "*.csv"), body)
    # It was called with real records: of one without a value, the sizes would be alike.
    assert made.features_spec["padded"].shape == (None, None)
    assert xs(made.batches(records(str(tmp_path / "b.csv"), 40, 50))) == list(range(40, 50))
    with pytest.raises(UserError, match="the files differ in column 'z'"):
        pipeline(str(tmp_path / "*.csv"), "return {'x': columns['z']}, columns['y']")
    with pytest.raises(UserError, match=r"no column 'Z' \(did you mean z\?\)"):
        pipeline(str(tmp_path / "*.csv"), "return {'x': columns['Z']}, columns['y']")
    late = "x = columns['x']; return {'x': columns['z'] if x[0] == 48 else x}, columns['y']"
    made = pipeline(str(tmp_path / "*.csv"), late)
    with pytest.raises(UserError, match="the files differ in column 'z'"):
        list(made.batches(records(str(tmp_path / "a.csv"), 40, 50)))


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


def test_the_function_may_write_to_the_same_array_again(pipeline, numbers):
    body = """
    own = np.__dict__.setdefault("_own_of_the_test", np.empty(100, np.int64))
    own = own[: len(columns["x"])]
    own[:] = columns["x"]
    return {"x": own}, columns["y"]
    """
    made = pipeline(numbers, body)
    assert xs(list(made.batches(records(numbers, 0, 100)))) == list(range(100))


@pytest.mark.parametrize("at", [0, 1500])
def test_an_exception_in_the_users_reader_is_the_users(module, at):
    loaded = module(text_of(PAIR))
    object.__setattr__(loaded, "custom_data_reader", BrokenReader)
    reader = open_custom_reader(lambda _: BrokenReader(at), "", "--training-data")
    with pytest.raises(UserCodeError, match=r"custom_data_reader\(\) .* KeyError.*broken"):
        list(
            HostPipeline(reader, loaded, TRAINING, "--training-data", 16).batches(
                records("shard", 1400, 1600)
            )
        )


def test_data_that_cannot_be_read_is_the_readers_error(pipeline, numbers):
    with pytest.raises(UserError, match="it holds 100") as raised:
        list(pipeline(numbers).batches(records(numbers, 80, 120)))
    assert attributed(raised.value) == records(numbers, 80, 120)


# ---------------------------------------------------------------- which record is at fault


RAISES = """
if (columns["x"] == 43).any():
    raise ValueError("forty-three")
return {"x": columns["x"]}, columns["y"]
"""


@pytest.mark.parametrize("mode", [TRAINING, EVALUATION])
def test_an_exception_names_the_record_and_is_held_against_it(pipeline, numbers, mode):
    made = pipeline(numbers, RAISES, mode)
    seen = []
    with pytest.raises(
        UserCodeError, match=r"feed_batch\(\) of model.py on .*, record 43 raised ValueError"
    ) as raised:
        seen.extend(made.batches(records(numbers, 30, 60)))
    assert attributed(raised.value) == records(numbers, 43, 44)
    if mode == TRAINING:
        assert xs(made.batches(records(numbers, 30, 43))) == list(range(30, 43))


def test_what_the_engine_refuses_names_its_record(pipeline, numbers):
    def arrays(nested):
        for each in leaves(nested):
            if each is not None and (each == 43).any():
                raise UserError("no such value")
        return nested

    with pytest.raises(UserError, match="no such value") as raised:
        list(pipeline(numbers, arrays=arrays).batches(records(numbers, 30, 60)))
    assert attributed(raised.value) == records(numbers, 43, 44)


def test_in_another_order_it_is_held_against_the_position(pipeline, numbers):
    shuffled = Shuffled(3, 0, numbers, (0, 30, 60, 90, 100))
    position = next(each for each in range(100) if shuffled.record(each) == 43)
    with pytest.raises(UserCodeError, match="record 43 raised") as raised:
        list(pipeline(numbers, RAISES).batches(records(numbers, 0, 100), shuffled))
    assert attributed(raised.value) == records(numbers, position, position + 1)


def test_records_that_raise_only_together_are_held_together(pipeline, numbers):
    body = """
    if len(columns["x"]) > 1 and columns["x"][0] >= 64:
        raise SystemExit("together")
    return {"x": columns["x"]}, columns["y"]
    """
    with pytest.raises(UserCodeError, match=r"records 68 to 75, raised SystemExit") as raised:
        list(pipeline(numbers, body).batches(records(numbers, 60, 90)))
    assert attributed(raised.value) == records(numbers, 68, 76)


def test_a_value_of_another_type_names_its_record(pipeline, numbers):
    body = """
    x = [None if each == 77 else int(each) for each in columns["x"]]
    return {"x": np.array(x)}, columns["y"]
    """
    with pytest.raises(UserError, match=r"objects \(NoneType\) as feature 'x'") as raised:
        list(pipeline(numbers, body).batches(records(numbers, 70, 90)))
    assert attributed(raised.value) == records(numbers, 77, 78)


@pytest.mark.parametrize("bad", [[0], [0, 1, 2], range(64), range(1, 64)])
def test_first_records_that_raise_are_no_reason_not_to_begin(pipeline, numbers, bad):
    body = f"""
    if np.isin(columns["x"], {list(bad)!r}).any() and len(columns["s"][0]):
        raise ValueError("bad")
    return {{"x": columns["x"]}}, columns["y"]
    """
    table = pq.read_table(numbers)
    pq.write_table(table.append_column("s", [["text"] * 100]), numbers)
    made = pipeline(numbers, body)
    assert made.features_spec == {"x": ArraySpec((None,), INT64)}
    assert xs(made.batches(records(numbers, 64, 100))) == list(range(64, 100))
    with pytest.raises(UserCodeError, match=f"record {bad[0]} raised"):
        list(made.batches(records(numbers, bad[0], 64)))


def test_what_raises_for_every_record_is_no_records_fault(pipeline, numbers):
    with pytest.raises(UserCodeError, match=r"feed_batch\(\) of model.py raised ZeroDi") as raised:
        pipeline(numbers, "return 1 // 0")
    assert attributed(raised.value) is None


def test_a_function_that_takes_no_single_record_is_told_at_once(pipeline, numbers):
    with pytest.raises(UserCodeError, match=r"for a single record, raised IndexError"):
        pipeline(numbers, 'columns["x"][1]; return columns["x"], columns["y"]')
    with pytest.raises(UserError, match="a single value as the features"):
        pipeline(numbers, 'return columns["x"].squeeze()[()], columns["y"]')


# ---------------------------------------------------------------- columns


def test_columns_that_are_not_taken_are_not_read(pipeline, parquet):
    odd = [None, *range(1, 100)]
    path = parquet(x=np.arange(100), y=np.arange(100), odd=odd, note=[{"a": 1}] * 100)
    body = """
    for name in columns:
        assert name in columns
    assert len(columns) == 4
    return {"x": columns["x"]}, columns["y"]
    """
    made = pipeline(path, body)
    assert xs(made.batches(records(path, 0, 20))) == list(range(20))
    assert made._records.used == {"x", "y"}
    assert made._records.reader.schema().names == ["x", "y"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('return columns["odd"], columns["y"]', r"'odd': .*missing values, the first in row 1"),
        ('return columns["note"], columns["y"]', r"'note': the type struct<a: int64> has no"),
        ("return {**columns}, columns['y']", "'odd': .*missing values"),
        ("return dict(columns.items()), columns['y']", "'odd': .*missing values"),
        ("return columns.copy(), columns['y']", "'odd': .*missing values"),
    ],
)
def test_what_is_wrong_with_a_column_that_is_taken_is_told(pipeline, parquet, body, message):
    path = parquet(
        x=np.arange(100),
        y=np.arange(100),
        odd=pa.array([None] * 100, pa.int64()),
        note=[{"a": 1}] * 100,
    )
    with pytest.raises(UserError, match=message):
        list(pipeline(path, body).batches(records(path, 0, 16)))


@pytest.mark.parametrize("windows", [None, (0, 40, 80, 100)])
def test_a_column_that_is_taken_only_later_is_read_from_there_on(
    pipeline, parquet, caplog, windows
):
    path = parquet(
        x=np.arange(100), y=np.arange(100), late=np.arange(100) + 1000, at=np.arange(100)
    )
    body = """
    x = columns["x"]
    if (x == 73).any():
        try:
            x = columns["late"]
        except Exception:
            x = np.zeros_like(x)
    return {"x": x}, columns["y"]
    """
    made = pipeline(path, body, event_time=EventTime.parse("at:s"))
    shuffled = windows and Shuffled(3, 0, path, windows)
    with caplog.at_level(logging.INFO):
        batches = list(made.batches(records(path, 10, 90), shuffled))
    assert made._records.used == {"x", "y", "late", "at"}
    assert sum("takes late from record" in each.message for each in caplog.records) == 1
    expected = [
        position if shuffled is None else shuffled.record(position) for position in range(10, 90)
    ]
    labels = [int(each) for batch in batches for each in batch.labels]
    assert labels == expected
    assert [batch.records_done for batch in batches] == list(range(8, 81, 8))
    for batch in batches:
        late = 1000 if 73 in batch.labels else 0
        np.testing.assert_array_equal(batch.features["x"], batch.labels + late)
        assert batch.event_time == sorted(batch.labels)[3] * 1_000_000


def test_a_column_that_is_missing_is_named(pipeline, numbers):
    message = (
        r"^feed_batch\(\) of model.py: --training-data: there is no column 'X' \(did you mean x\?\)"
    )
    with pytest.raises(UserError, match=message):
        pipeline(numbers, 'return columns["X"], columns["y"]')


def test_a_key_that_is_no_column_is_the_users_exception(pipeline, numbers):
    with pytest.raises(UserCodeError, match="KeyError: 'X'"):
        pipeline(numbers, 'return {}["X"], columns["y"]')


def test_columns_without_a_value_are_known(pipeline, parquet):
    path = parquet(x=[1.0, float("nan")], y=[float("nan")] * 2, z=[float("nan")] * 2)
    made = pipeline(path)
    assert made.missing(path, 0) == ["y"]
    assert made.missing(path, 1) == ["x", "y"]


# ---------------------------------------------------------------- the user's mistakes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return columns['x']", r"must give \(features, labels\) or .* 'training', not ndarray"),
        ("return [columns['x'], columns['y']]", r"must give \(features, labels\) .*, not list"),
        ("pass", r"must give \(features, labels\) .*, not NoneType"),
        ("return None, columns['y']", "gives None as the features, where it must give an array"),
        ("return {}, columns['y']", "gives no features at all"),
        ("return {'a': 3}, columns['y']", "gives a single value as feature 'a'"),
        ("return {'a': {'b': 'c'}}, columns['y']", "gives a single value as feature 'a/b'"),
        ("return columns['x'], 1.0", "gives a single value as the labels"),
        ("return {'a': object()}, columns['y']", "gives an object as feature 'a', where"),
        (
            "return {'a': columns['tags']}, columns['y']",
            r"gives a column of lists as feature 'a': make one array of it, as column.padded\(n\)",
        ),
        (
            "return {'a': columns['x'][:3]}, columns['y']",
            "gives 3 elements as feature 'a' for the 32 records from 0 on of .*one per record; a "
            "record of weight 0 counts for nothing$",
        ),
        (
            "return {'a': list(np.ones((len(columns['x']), 3)))}, columns['y']",
            r"gives 3 elements as feature 'a/0' .*np.stack\(\) makes one of them",
        ),
        ("return columns['x'], columns['y'][:3]", "gave 3 labels for 32 records of"),
        ("return columns['x'], {'a': columns['y'][:3]}", "gave 3 labels for 32 records of"),
        ("return columns['x'], columns['y'], columns['y'][:3]", "gave 3 weights for 32 records"),
        ("return columns['x'], columns['y'], columns['s']", "weights of the type text: they must"),
        ("return columns['x'], columns['y'], columns['x'] > 3", "weights of the type bool"),
        (
            "return np.array([{}] * len(columns['x'])), columns['y']",
            r"gives objects \(dict\) as the features: an array holds numbers of one type or texts",
        ),
        (
            "a = columns['s']; a[0] = 3; return a, columns['y']",
            r"gives objects \(bytes, int\) as the features",
        ),
        (
            "return columns['x'].astype('M8[s]'), columns['y']",
            r"gives the type datetime64\[s\] as the features: make numbers",
        ),
        ("return columns['x'] * 1j, columns['y']", "gives the type complex128 as the features"),
        (
            "return np.ma.masked_equal(columns['x'], 3), columns['y']",
            "gives a masked array as the features: fill it",
        ),
        (
            "return [[1, 2], [3]] * (len(columns['x']) // 2), columns['y']",
            "gives a list as the features, which is no array: .*inhomogeneous",
        ),
        (
            "return {'a' if len(columns['x']) > 1 else 'b': columns['x']}, columns['y']",
            r"gives other features in one minibatch than in another \(a and b\)",
        ),
        (
            "return columns['x'].astype(float if columns['x'][-1] else int), columns['s'] if "
            "len(columns['x']) > 1 else columns['y']",
            "gives the type int64 as the labels, and text in another minibatch",
        ),
        ("return columns['x'], None", "gives None as the labels, where it must give an array"),
        (
            "y = columns['y']; return columns['x'], y, y if len(y) > 1 else None",
            "gives the weights in one minibatch, and None in another",
        ),
    ],
)
def test_a_mistake_is_told(pipeline, parquet, body, message):
    path = parquet(
        x=np.arange(100),
        y=2 * np.arange(100),
        s=["a"] * 100,
        tags=[[1] * (i % 3) for i in range(100)],
    )
    with pytest.raises(UserError, match=message) as raised:
        pipeline(path, body)
    assert str(raised.value).startswith("feed_batch() of model.py ")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x[:, None]", r"shape \(1, 1\) as feature 'a', and one of \('records',\) in another"),
        ("x / 2", "the type float64 as feature 'a', and int64 in another minibatch: convert it"),
        ("x.astype(str)", "the type text as feature 'a', and int64 in another minibatch"),
        ("x.astype(np.uint64)", "the type uint64 as feature 'a'"),
        ("[x, x]", "other features in one minibatch than in another"),
        ("{'b': x}", "other features in one minibatch than in another"),
    ],
)
def test_a_later_minibatch_of_another_spec_is_told_at_its_record(pipeline, numbers, value, message):
    body = f"""
    x = columns["x"]
    return {{"a": {value} if (x == 71).any() else x}}, columns["y"]
    """
    made = pipeline(numbers, body)
    with pytest.raises(UserError, match=message) as raised:
        list(made.batches(records(numbers, 0, 100)))
    assert attributed(raised.value) == records(numbers, 71, 72)


def test_a_type_that_loses_nothing_is_converted(pipeline, numbers):
    body = """
    x = columns["x"]
    return {"x": x.astype(np.int32) if (x > 70).any() else x}, columns["y"]
    """
    made = pipeline(numbers, body)
    batches = list(made.batches(records(numbers, 0, 100)))
    assert {batch.features["x"].dtype for batch in batches} == {INT64}
    assert xs(batches) == list(range(100))


def test_sizes_that_vary_are_open_and_others_held(pipeline, parquet):
    path = parquet(x=np.arange(100), y=np.arange(100), tags=[[1] * (i % 5 + 1) for i in range(100)])
    body = """
    tags = columns["tags"]
    return {"longest": tags.padded(tags.row_lengths.max()), "two": tags.padded(2)}, columns["y"]
    """
    made = pipeline(path, body)
    assert made.features_spec["longest"] == ArraySpec((None, None), INT64)
    assert made.features_spec["two"] == ArraySpec((None, 2), INT64)
    shapes = [b.features["longest"].shape for b in made.batches(records(path, 0, 11))]
    assert shapes == [(8, 5), (3, 5)]


def test_the_values_of_lists_go_with_their_offsets_alone(pipeline, parquet):
    path = parquet(x=np.arange(100), y=np.arange(100), tags=[[1] * (i % 3) for i in range(100)])
    body = """
    tags = columns["tags"]
    return {"x": columns["x"], "bag": (tags.values, tags.row_lengths)}, columns["y"]
    """
    message = "gives 2 elements as feature 'bag/0' for the 1 records from 2 on"
    with pytest.raises(UserError, match=message) as raised:
        list(pipeline(path, body).batches(records(path, 0, 8)))
    assert attributed(raised.value) == records(path, 2, 3)


def test_feed_is_refused(module, numbers):
    reader = open_reader(numbers, "--training-data")
    message = r"feed\(\) of model.py takes a tf.data.Dataset.*write feed_batch\(columns, mode, meta"
    with pytest.raises(UserError, match=message):
        HostPipeline(reader, module(OF_TENSORFLOW), TRAINING, "--training-data", 8)


# ---------------------------------------------------------------- time


def test_a_batch_has_the_lower_median_of_its_records(pipeline, parquet):
    start = 1_700_000_000
    times = [start + each for each in (5, 1, 9, 3, 20, 22, 21)]
    path = parquet(x=np.arange(7), y=np.arange(7), at=times)
    made = pipeline(path, size=4, event_time=EventTime.parse("at:s"))
    found = [batch.event_time for batch in made.batches(records(path, 0, 7))]
    assert found == [(start + 3) * 1_000_000, (start + 21) * 1_000_000]
    assert made._records.used is None or "at" in made._records.used


def test_the_stages_of_training_are_told(pipeline, numbers):
    progress = Progress()
    next(pipeline(numbers, progress=progress).batches(records(numbers, 0, 8)))
    assert list(progress.done().stage_seconds) == ["read", "feed_batch"]
    progress = Progress()
    made = pipeline(numbers, mode=EVALUATION, progress=progress)
    assert len(list(made.batches(records(numbers, 0, 8)))) == 1
    assert not progress.done().stage_seconds


def test_the_watch_knows_what_the_thread_is_at(pipeline, numbers):
    progress = Progress()
    told = []
    made = pipeline(
        numbers, progress=progress, arrays=lambda array: told.append(progress.watch.oldest()[1])
    )
    list(made.batches(records(numbers, 40, 50)))
    assert str(told[0]) == (
        f"feed_batch() of model.py, for a minibatch of records 40 to 47 of {numbers}"
    )
    assert not told[0].storage


def test_what_is_read_ahead_ends_with_who_takes_it(pipeline, numbers):
    before = threading.active_count()
    batches = pipeline(numbers, mode=EVALUATION).batches(records(numbers, 0, 100))
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


def test_ranges_may_be_read_one_after_another(pipeline, numbers):
    made = pipeline(numbers)
    assert xs(made.batches(records(numbers, 90, 100))) == list(range(90, 100))
    assert xs(made.batches(pb.Range(source=numbers, start=0, end=3))) == [0, 1, 2]


def test_layers_of_preprocessing_give_arrays_for_the_columns(pipeline, parquet):
    path = parquet(user=["a", "b", "a"], tags=["x|y", "", "y"])
    body = """
    from shoal.preprocessing import Hashing, ToRagged
    from shoal.retrieval import corpus_share
    found = Hashing(10)(columns["user"]), corpus_share([5, 6], len(columns["user"]))
    assert all(type(each) is np.ndarray for each in found)
    tags = Hashing(10)(ToRagged("|")(columns["tags"]))
    return {"user": found[0], "corpus": found[1], "tags": 1 + tags.padded(2, -1)}
    """
    made = pipeline(path, body, PREDICTION)
    (batch,) = made.batches(records(path, 0, 3))
    hashes = {text: int(Hashing(10)(np.array([text], object))[0]) for text in "abxy"}
    assert batch.features["user"].tolist() == [hashes["a"], hashes["b"], hashes["a"]]
    assert batch.features["tags"].tolist() == [
        [1 + hashes["x"], 1 + hashes["y"]],
        [0, 0],
        [1 + hashes["y"], 0],
    ]
