"""Predictions in files: each range's own, whatever the sources are called."""

import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.module import load_module
from shoal.worker.prediction import PredictionWriter


@pytest.fixture
def writer(write_module, tmp_path):
    module = load_module(write_module(), "model.custom_model")
    return PredictionWriter(str(tmp_path / "out"), module, 0)


def predictions(folder):
    table = pq.read_table(folder).sort_by([("source", "ascending"), ("record", "ascending")])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_files_of_one_name_in_two_folders_are_kept_apart(writer, tmp_path):
    for folder in ("/a", "/b"):
        records = pb.Range(source=f"{folder}/part.csv", start=0, end=2)
        writer.write(records, [tf.constant([[0.25], [0.5]])])
    assert predictions(tmp_path / "out") == [
        (f"{folder}/part.csv", record, value)
        for folder in ("/a", "/b")
        for record, value in ((0, 0.25), (1, 0.5))
    ]


def test_a_range_written_twice_is_there_once(writer, tmp_path):
    for value in (0.5, 0.75):
        writer.write(pb.Range(source="s", start=3, end=4), [tf.constant([value])])
    assert predictions(tmp_path / "out") == [("s", 3, 0.75)]


@pytest.mark.parametrize("outputs", [[], [tf.constant([0.5])]], ids=["all", "one"])
def test_a_feed_that_drops_records_is_refused(writer, outputs):
    with pytest.raises(UserError, match=r"feed\(\) of model.py gave . elements for the 2 records"):
        writer.write(pb.Range(source="s", start=3, end=5), outputs)


def test_what_a_killed_worker_left_of_a_range_goes_when_the_range_is_written(writer, tmp_path):
    records = pb.Range(source="odd[1].csv", start=0, end=2)
    writer.write(records, [tf.constant([0.25, 0.5])])
    (whole,) = (tmp_path / "out").glob("*.parquet")
    torn = whole.with_name(f".{whole.name}.worker-7")
    torn.write_bytes(whole.read_bytes()[:10])
    other = whole.with_name(".another.parquet.worker-7")
    other.write_bytes(b"under way")
    writer.write(records, [tf.constant([0.25, 0.5])])
    assert not torn.exists()
    assert other.exists()
    assert predictions(tmp_path / "out") == [("odd[1].csv", 0, 0.25), ("odd[1].csv", 1, 0.5)]
