"""Event files have what TensorBoard shows, by TensorFlow's own reader."""

import queue
import time

import fsspec
import numpy as np
import pytest
import tensorflow as tf
from fsspec.implementations.local import LocalFileSystem

from shoal.master.figures.tensorboard import EventFiles, _Uploads
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.proto.values.distribution import Distribution
from shoal.proto.values.norms import Norms

SAMPLE = {"version": 3, "loss": 0.5, "learning_rate": None, "workers": 2, "state": "training"}


def staleness(*values):
    found = Distribution()
    for value in values:
        found.add(value)
    return found


def events(path):
    return list(tf.compat.v1.train.summary_iterator(str(path)))


def values(path):
    """(tag, step, value) of all scalars in a file."""
    return [
        (value.tag, event.step, value.simple_value)
        for event in events(path)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


def histograms(path):
    return [v.histo for event in events(path) for v in event.summary.value if v.HasField("histo")]


def only(folder):
    (path,) = folder.iterdir()
    return path


def test_figures_are_scalars_at_their_version(tmp_path):
    files = EventFiles(str(tmp_path / "logs"), "job", {}, tmp_path / "work", print)
    files.add(7.0, SAMPLE, staleness())
    path = only(tmp_path / "logs" / "job")
    # While the job runs too.
    assert values(path) == [("training/loss", 3, 0.5), ("job/workers", 3, 2.0)]
    files.add(8.0, SAMPLE | {"version": 9}, staleness(), EvaluationResult(5, 0, {"a b": 0.25}, 9))
    files.close()
    assert ("training/loss", 9, 0.5) in values(path)
    assert ("evaluation/a b", 5, 0.25) in values(path)
    assert [event.wall_time for event in events(path)][1:3] == [7.0, 7.0]


def test_the_histogram_is_of_the_pushes_since_the_one_before(tmp_path):
    files = EventFiles(str(tmp_path), "job", {}, tmp_path / "work", print)
    files.add(7.0, SAMPLE, staleness(0, 0, 1, 3))
    files.add(8.0, SAMPLE, staleness(0, 0, 1, 3))
    files.add(9.0, SAMPLE, staleness(0, 0, 1, 3, 2, 6))
    files.add(9.0, SAMPLE, staleness(1))  # a server was started again
    files.close()
    first, second, third = histograms(only(tmp_path / "job"))
    assert (list(first.bucket), list(first.bucket_limit)) == ([2, 1, 1], [0, 1, 3])
    assert (first.num, first.sum, first.max) == (4, 4, 3)
    assert (list(second.bucket), list(second.bucket_limit)) == ([1, 1], [3, 7])
    assert (second.min, second.num, second.sum) == (1, 2, 8)
    assert (list(third.bucket), third.num, third.sum) == ([1], 1, 1)


def norms(*values):
    found = Norms()
    found.add(np.array(values, np.float32)[:, np.newaxis])
    return found.to_message()


def test_norms_of_rows_are_a_histogram_by_table_of_what_was_looked_at_since(tmp_path):
    files = EventFiles(str(tmp_path), "job", {}, tmp_path / "work", print)
    first = {(0, "users"): norms(1.1, 1.2), (1, "users"): norms(1.5), (1, "items"): norms(0.0)}
    files.add(7.0, SAMPLE, staleness(), None, first)
    files.add(8.0, SAMPLE, staleness(), None, first)
    # The second server was started again, and has not told anything yet.
    files.add(9.0, SAMPLE, staleness(), None, {(0, "users"): norms(1.1, 1.2, 300.0)})
    files.add(9.5, SAMPLE, staleness(), None, {(1, "users"): norms(2e4)})
    files.close()
    found = [
        (event.wall_time, value.tag, value.histo)
        for event in events(only(tmp_path / "job"))
        for value in event.summary.value
        if value.HasField("histo")
    ]
    assert [(when, tag) for when, tag, _ in found] == [
        (7.0, "tables/row_norm/users"),
        (7.0, "tables/row_norm/items"),
        (9.0, "tables/row_norm/users"),
        (9.5, "tables/row_norm/users"),
    ]
    users, items, more, anew = (histogram for _, _, histogram in found)
    assert (list(users.bucket), users.num) == ([2, 1], 3)
    assert list(users.bucket_limit) == pytest.approx([10**0.1, 10**0.2])
    assert (users.min, users.max) == (1.0, users.bucket_limit[1])
    assert users.sum == pytest.approx(3.8)
    assert users.sum_squares == pytest.approx(1.1**2 + 1.2**2 + 1.5**2, rel=0.25)
    assert (list(items.bucket), items.min, items.sum) == ([1], 0, 0)
    assert (list(more.bucket), more.sum) == ([1], pytest.approx(300))
    assert more.min < 300 < more.max
    assert (list(anew.bucket), anew.min, anew.sum) == ([1], 1e4, pytest.approx(2e4))


def test_flags_are_hyperparameters_and_metrics_are_to_be_compared(tmp_path):
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    flags = {"workers": "2", "sync": True, "model_def": "a.b", "checkpoint_seconds": 0.5}
    files = EventFiles(str(tmp_path), "job", flags, tmp_path / "work", print)
    files.add(8.0, SAMPLE, staleness(), EvaluationResult(5, 0, {"auc": 0.25}, 9))
    files.add(9.0, SAMPLE, staleness(), EvaluationResult(6, 0, {"auc": 0.5}, 9))
    files.close()
    found = {}
    for event in events(only(tmp_path / "job")):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                found.setdefault(value.tag, []).append(content)
    (start,) = found["_hparams_/session_start_info"]
    given = start.session_start_info.hparams
    assert given["workers"].string_value == "2"
    assert given["sync"].bool_value is True
    assert given["model_def"].string_value == "a.b"
    (experiment,) = found["_hparams_/experiment"]
    tags = [metric.name.tag for metric in experiment.experiment.metric_infos]
    assert tags == ["training/loss", "training/samples_per_second", "evaluation/auc"]


def test_a_file_goes_to_a_url_while_the_job_runs_and_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(_Uploads, "SECONDS", 0.01)
    memory = fsspec.filesystem("memory")
    files = EventFiles("memory://curves", "job", {}, tmp_path / "work", print)
    files.add(7.0, SAMPLE, staleness())
    (local,) = (tmp_path / "work").iterdir()
    there = f"/curves/job/{local.name}"
    size = local.stat().st_size
    give_up = time.monotonic() + 60
    while not (memory.exists(there) and memory.size(there) == size):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    files.add(8.0, SAMPLE, staleness())
    files.close()
    files.uploads.wait()
    assert memory.cat(there) == local.read_bytes()
    assert local.stat().st_size > size


def test_a_place_that_cannot_be_written_is_an_error_of_the_system(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        EventFiles(str(tmp_path / "file"), "job", {}, tmp_path / "work", print)


def test_an_upload_that_fails_is_told_once_for_each_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(_Uploads, "SECONDS", 0.01)
    (tmp_path / "file").touch()
    told, tried, make = queue.Queue(), queue.Queue(), LocalFileSystem.makedirs
    monkeypatch.setattr(LocalFileSystem, "makedirs", lambda *a, **k: tried.put(1) or make(*a, **k))
    files = EventFiles(f"file://{tmp_path}/file", "job", {}, tmp_path / "work", told.put)
    for _ in range(3):
        tried.get(timeout=60)
    files.close()
    files.uploads.wait()
    assert told.get().startswith(f"uploading the event file to file://{tmp_path}/file/job failed: ")
    assert told.empty()
