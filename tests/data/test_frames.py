"""Data of a Python program as Parquet: every kind gives the same records, and tells its size."""

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from shoal.data.frames import is_path, paired, write_data
from shoal.errors import UserError

RECORDS = {"user": [3, -1, 2**40], "name": ["a", "b", "ü"], "value": [0.5, 1.5, 2.5]}


def dataset(folder):
    pq.write_table(pa.table(RECORDS), folder / "source.parquet")
    return pyarrow.dataset.dataset(folder / "source.parquet")


KINDS = {
    "pandas": lambda folder: pandas.DataFrame(RECORDS, index=[7, 8, 9]),
    "pandas categories": lambda folder: pandas.DataFrame(RECORDS).astype({"name": "category"}),
    "polars": lambda folder: polars.DataFrame(RECORDS),
    "table": lambda folder: pa.table(RECORDS),
    "batch": lambda folder: pa.RecordBatch.from_pydict(RECORDS),
    "stream": lambda folder: pa.table(RECORDS).to_reader(max_chunksize=2),
    "dataset": dataset,
    "dict": lambda folder: RECORDS | {"user": np.array(RECORDS["user"])},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_its_records(tmp_path, kind):
    told = []
    path = tmp_path / "data.parquet"
    write_data("training_data", KINDS[kind](tmp_path), path, told.append)
    assert pq.read_table(path).to_pydict() == RECORDS
    (text,) = told
    assert text.startswith("training_data: ")
    assert ("3 records" in text) == (kind != "stream")
    assert ("bytes in memory" in text) == (kind not in ("stream", "dataset"))


def test_as_many_records_as_are_asked_for(tmp_path):
    path = tmp_path / "data.parquet"
    write_data("training_data", pa.table(RECORDS).to_reader(2), path, pytest.fail, most=3)
    assert pq.read_metadata(path).num_rows == 3
    write_data("training_data", pa.table(RECORDS), path, pytest.fail, most=1)
    assert pq.read_table(path).to_pydict() == {name: each[:1] for name, each in RECORDS.items()}


def test_arrays_of_two_axes_are_lists(tmp_path):
    path = tmp_path / "data.parquet"
    write_data("training_data", {"vector": np.eye(2)}, path, lambda _: None)
    assert pq.read_table(path).to_pydict() == {"vector": [[1.0, 0.0], [0.0, 1.0]]}


def test_bytes_and_texts_keep_their_nuls(tmp_path):
    path = tmp_path / "data.parquet"
    digests = [b"\0a\0b", b"\0a\0c"]
    data = {
        "digest": np.array(digests),
        "pair": np.array([digests]).T,
        "text": np.array(["a\0b"] * 2),
    }
    write_data("training_data", data, path, lambda _: None)
    assert pq.read_table(path).to_pydict() == {
        "digest": digests,
        "pair": [[each] for each in digests],
        "text": ["a\0b"] * 2,
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pandas.Series([1], name="a"), "must be .* a DataFrame .*, not a pandas.Series"),
        (pandas.Index([1]), "must be .* a DataFrame .*, not a pandas.Index"),
        (polars.Series("a", [1]), "must be .* a DataFrame .*, not a polars.Series"),
        (pandas.DataFrame({"a": [2**70]}), "cannot be written as Parquet: .*too large"),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "the name 'a' is there twice"),
        (pandas.DataFrame([[1, 2]], columns=[1, "1"]), "the name '1' is there twice"),
        (pa.table([[1], [2]], names=["a", "a"]), "the name 'a' is there twice"),
        ({"1": [1], 1: [2]}, "the name '1' is there twice"),
        (
            pandas.DataFrame({"a": [1]}, index=pandas.Index([5], name="user")),
            "the index 'user' of the DataFrame is no column",
        ),
    ],
)
def test_what_would_lose_or_change_a_column_is_refused(tmp_path, value, message):
    with pytest.raises(UserError, match=f"^training_data:? .*{message}"):
        write_data("training_data", value, tmp_path / "data.parquet", lambda _: None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "^training_data must be a path, a URL, a DataFrame .*, not a object$"),
        (pa.table({"a": []}), "^training_data: a pyarrow.Table has no records$"),
        (pandas.DataFrame({"a": [1, "x"]}), "^training_data: a pandas.DataFrame cannot be written"),
        ({"a": [1], "b": [1, 2]}, "^training_data: a dict cannot be written"),
    ],
)
def test_what_is_no_data_is_refused(tmp_path, value, message):
    with pytest.raises(UserError, match=message):
        write_data("training_data", value, tmp_path / "data.parquet", lambda _: None)


@pytest.mark.parametrize(
    "y",
    [
        [1, 0, 1],
        np.array([1, 0, 1]),
        pandas.Series([1, 0, 1], index=[5, 6, 7]),
        polars.Series([1, 0, 1]),
        pa.chunked_array([[1, 0], [1]]),
    ],
)
def test_pairs_as_fit_takes_them_are_one_table(y):
    frame = pandas.DataFrame(RECORDS)
    table = paired("training_data", (frame, y, [0.5, 1.0, 2.0]), "clicked", "weight")
    assert table.to_pydict() == RECORDS | {"clicked": [1, 0, 1], "weight": [0.5, 1.0, 2.0]}
    alone = paired("training_data", (np.eye(3), y), "label", "weight")
    assert alone.to_pydict() == {"x": np.eye(3).tolist(), "label": [1, 0, 1]}


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (({"a": [1, 2]}, [1]), "^training_data: x, y cannot be put side by side: .*length"),
        (({"label": [1]}, [1]), "^training_data: x has a column 'label' already: rename it$"),
        (({"a": [1]},), r"^training_data: give \(x, y\) or \(x, y, sample_weight\), not 1 parts$"),
        ((3, [1]), "^training_data: x must be a path, a URL, a DataFrame"),
    ],
)
def test_pairs_that_are_none_are_refused(pair, message):
    with pytest.raises(UserError, match=message):
        paired("training_data", pair, "label", "weight")


def test_paths_are_left_alone(tmp_path):
    assert is_path("s3://bucket/data")
    assert is_path(tmp_path)
    assert not is_path(RECORDS)
