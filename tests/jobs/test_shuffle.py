"""--shuffle in whole jobs: the order of records, and each of them once."""

import csv
import itertools
import json
import os
import signal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited, resume, run, until

pytestmark = pytest.mark.job

TOLD = """
import keras
import tensorflow as tf


def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (tf.cast(record["id"], tf.float32)[None], record["id"]))


def custom_model():
    return keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="zeros")])


def loss(labels, predictions):
    return tf.cast(labels, tf.float32) + 0.0 * predictions


def optimizer():
    return keras.optimizers.SGD(0.0)
"""
"""Its loss is the mean of the records' ids, so losses.csv has the order of one-record batches."""


def order_of(folder, **fields):
    """The ids in the order in which a job with one worker has trained them."""
    zoo = folder.parent
    (zoo / "told.py").write_text(TOLD)
    run(
        "train",
        folder,
        "job",
        model_zoo=zoo,
        model_def="told.custom_model",
        batch_size=1,
        pipeline_depth=0,
        step_losses=True,
        **fields,
    ).succeeded()
    with (folder / "job" / "losses.csv").open(newline="") as file:
        return [round(float(row["loss"])) for row in csv.DictReader(file)]


def test_the_order_of_records_is_the_one_asked_for(tmp_path):
    data = tmp_path / "data"
    for day in (1, 2, 10):
        folder = data / f"day={day}"
        folder.mkdir(parents=True)
        table = pa.table({"id": [1000 * day + record for record in range(40)]})
        pq.write_table(table, folder / "part.parquet", row_group_size=15)
    by_name = [1000 * day + record for day in (1, 2, 10) for record in range(40)]
    in_time, in_order, shuffled = (tmp_path / name for name in ("time", "order", "shuffled"))
    for folder in (in_time, in_order, shuffled):
        folder.mkdir()
    fields = {"training_data": data, "num_minibatches_per_task": 8}
    assert order_of(in_time, shuffle="time", **fields) == by_name
    assert order_of(in_order, shuffle="none", epochs=2, **fields) == 2 * by_name
    found = order_of(shuffled, shuffle="buffer:20", epochs=2, **fields)
    epochs = [found[:120], found[120:]]
    assert [sorted(epoch) for epoch in epochs] == [by_name, by_name]
    assert epochs[0] != epochs[1]
    # Each row group is a window: it is trained by itself, and its records in another order.
    for epoch in epochs:
        windows = [(each // 1000, each % 1000 // 15) for each in epoch]
        assert len(set(windows)) == 9
        changes = sum(one != other for one, other in itertools.pairwise(windows))
        assert changes == 8
        assert windows != sorted(windows)
        steps = [b - a for a, b in itertools.pairwise(epoch)]
        assert steps.count(1) < 40


def test_a_worker_killed_within_a_window_loses_and_repeats_nothing(numbered, tmp_path):
    training, _ = numbered
    with RunningJob(
        "train",
        tmp_path,
        "killed",
        environment={"GATES": "step-13"},
        training_data=training,
        output=tmp_path / "out",
        num_minibatches_per_task=4,
        shuffle="buffer:100",
        servers="2",
        **SERIAL,
    ) as job:
        pid = job.at_gate("step-13")
        until("the pushes before it", lambda: job.server_status(0).pushes == 12)
        until("the pushes before it", lambda: job.server_status(1).pushes == 12)
        os.kill(pid, signal.SIGKILL)
        job.open("step-13")
        ended = job.ended().succeeded()
    assert ended.ledger["total"] == ended.ledger["trained_once"] == 480
    total, counts = applied(tmp_path / "out")
    assert total == [480.0, 480.0]
    assert counts == dict.fromkeys(range(480), 1)


def test_a_job_killed_whole_goes_on_within_its_windows(numbered, tmp_path):
    with RunningJob(
        "train",
        tmp_path,
        "whole",
        environment={"GATES": "step-63"},
        training_data=numbered[0],
        output=tmp_path / "out",
        epochs=2,
        num_minibatches_per_task=3,
        shuffle="buffer:70",
        durability="file",
        **SERIAL,
    ) as job:
        job.at_gate("step-63")
        job.kill_whole()
        done = resume(job.folder, servers="2", workers="2")
        assert done.returncode == 0, done.stdout + done.stderr
        report = audited(job.folder)
    assert report["records"]["once"] == report["records"]["total"] == 960
    total, counts = applied(tmp_path / "out")
    assert total == [960.0, 960.0]
    assert counts == dict.fromkeys(range(480), 2)


def test_bad_records_in_windows_are_named_and_left_out_of_each_epoch(numbered, tmp_path):
    training, _ = numbered
    with RunningJob(
        "train",
        tmp_path,
        "cursed",
        environment={"CURSED": "feed-37 loss-38 nan-305"},
        training_data=training,
        output=tmp_path / "out",
        batch_size=10,
        num_minibatches_per_task=4,
        epochs=2,
        workers="2",
        max_bad_records=3,
        shuffle="buffer:100",
        model_def="cursed.custom_model",
    ) as job:
        ended = job.ended()
    assert ended.code == 0, ended.out + ended.err
    _, counts = applied(tmp_path / "out")
    assert counts == {i: 2 for i in range(480) if i not in (37, 38, 305)}
    assert (ended.ledger["trained_once"], ended.ledger["failed"]) == (954, 6)
    bad = {each["record"]: each for each in ended.result["bad_records"]}
    assert set(bad) == {37, 38, 305}
    assert bad[37]["place"] == "record 37 (row 38, at byte 104)"
    assert "37 is cursed in feed" in bad[37]["error"]
    assert json.loads(job.folder.result.read_text())["state"] == "succeeded"
