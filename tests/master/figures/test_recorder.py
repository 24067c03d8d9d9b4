"""The recorder writes while a job runs, and the job does not depend on it."""

import csv
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq
import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.master.figures.mlflow_run import MlflowRun
from shoal.master.figures.recorder import Recorder, pause
from shoal.master.figures.tensorboard import _Uploads
from shoal.master.job.job import Job
from shoal.master.shared_job import SharedJob
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master import fake_mlflow
from tests.master.strategies import config, finish_next, register, w

PATIENCE = 60.0

DATA = DataDescribed(training=(Source("t", 10),), validation=(Source("v", 10),))


def until(look):
    give_up = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < give_up
        time.sleep(0.005)
    return found


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path)


def rows(folder):
    if not folder.metrics.is_file():
        return []
    with folder.metrics.open(newline="") as file:
        return list(csv.DictReader(file))


def shared(**changes):
    made = config(validation_data="v", **changes)
    return SharedJob(Job(made), clock=iter_clock()), made


def iter_clock():
    began = time.monotonic() - 1.0  # a job's time is never 0 when it begins
    return lambda: time.monotonic() - began


def begin(job, now, described=DATA):
    register(job, described)
    job.record.started = now


def test_rows_come_as_time_passes_and_evaluations_at_once(folder):
    job, made = shared(metrics_seconds=3600.0)
    with Recorder(job, folder, made):
        job.apply(begin)
        until(lambda: len(rows(folder)) == 1)  # the first; the next is due in an hour

        def evaluate(job, _):
            finish_next(job, w(0), Done(), version=2)
            finish_next(job, w(0), StatesComputed(pb.MetricStates()))
            finish_next(job, w(0), MetricsComputed({"auc": 0.75}))

        job.apply(evaluate)
        until(lambda: len(rows(folder)) == 2)
    begun, evaluated, end = rows(folder)
    assert begun["val_auc"] == end["val_auc"] == ""
    assert (evaluated["val_auc"], evaluated["state"]) == ("0.75", "succeeded")
    assert end["state"] == "succeeded"
    assert pq.read_table(folder.metrics_parquet).num_rows == 3


def test_rows_come_more_often_in_the_first_minute():
    assert [pause(10.0, since) for since in (0.0, 59.0, 60.0)] == [1.0, 1.0, 10.0]
    assert [pause(seconds, 0.0) for seconds in (0.2, 3600.0)] == [0.2, 360.0]


def test_a_disk_that_takes_no_row_is_one_warning_and_the_next_rows_are_written(folder):
    job, made = shared(metrics_seconds=0.01)
    folder.metrics.mkdir()  # no file can be there
    job.apply(begin)

    def messages():
        return job.look(lambda job, _: [each for each in job.record.messages if "warning" in each])

    with Recorder(job, folder, made):
        until(messages)
        folder.metrics.rmdir()
        until(lambda: rows(folder))
    (message,) = messages()
    assert "warning: the job's metrics cannot be written: " in message
    assert rows(folder)[-1]["state"] == "training"


def test_event_files_that_cannot_be_written_hold_up_no_row_and_get_all_rows_later(folder):
    events = folder.path / "events"
    events.write_text("no folder\n")
    job, made = shared(metrics_seconds=0.01, tensorboard_dir=str(events))
    looks, look = [], job.look
    job.look = lambda question: looks.append(question) or look(question)
    with Recorder(job, folder, made):
        job.apply(begin)
        until(lambda: rows(folder))

        def evaluate(job, _):
            finish_next(job, w(0), Done(), version=2)
            finish_next(job, w(0), StatesComputed(pb.MetricStates()))
            finish_next(job, w(0), MetricsComputed({"auc": 0.75}))

        job.apply(evaluate)

        def evaluated():
            return [i for i, row in enumerate(rows(folder)) if row.get("val_auc")]

        (place,) = until(evaluated)
        before = len(looks)
        until(lambda: len(looks) > before + 10)
        events.unlink()
    assert evaluated() == [place]
    assert len(rows(folder)) == place + 2, "a job that has ended has one more row"
    assert pq.read_table(folder.metrics_parquet).num_rows == len(rows(folder))
    (file,) = (events / made.job_name).iterdir()
    assert b"evaluation/auc" in file.read_bytes()


def test_without_seconds_nothing_is_written(folder):
    job, made = shared(metrics_seconds=0.0)
    job.apply(begin)
    with Recorder(job, folder, made):
        pass
    assert list(folder.path.iterdir()) == []


def test_a_last_upload_that_hangs_is_waited_for_apart_and_for_a_limited_time(
    folder, monkeypatch, caplog
):
    going_on = threading.Event()
    monkeypatch.setattr(_Uploads, "report", lambda self, ended: going_on.wait())
    monkeypatch.setattr(_Uploads, "END_SECONDS", 0.1)
    job, made = shared(metrics_seconds=0.01, tensorboard_dir="memory://hangs")
    recorder = Recorder(job, folder, made)
    with recorder:
        job.apply(begin)
        until(lambda: rows(folder))
    assert folder.metrics_parquet.is_file()
    assert not caplog.records  # nothing was waited for yet
    recorder.wait_for_uploads()
    assert "the last upload to memory://hangs/test does not end" in caplog.text
    going_on.set()
    recorder._events.uploads._thread.join()


def test_mlflow_that_hangs_is_waited_for_apart_and_for_a_limited_time(folder, monkeypatch, caplog):
    going_on, asked = threading.Event(), threading.Event()

    class Hanging(fake_mlflow.Client):
        def create_run(self, *arguments, **more):
            asked.set()
            going_on.wait()
            return super().create_run(*arguments, **more)

    for name, module in fake_mlflow.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["mlflow"], "MlflowClient", Hanging)
    monkeypatch.setattr(MlflowRun, "END_SECONDS", 0.1)
    job, made = shared(metrics_seconds=0.01)
    described = replace(DATA, rules=pb.TrainingRules(mlflow=pb.MlflowRun(tracking_uri="hangs")))
    recorder = Recorder(job, folder, made)
    with recorder:
        job.apply(partial(begin, described=described))
        assert asked.wait(PATIENCE)
    assert folder.metrics_parquet.is_file()
    assert not caplog.records  # nothing was waited for yet
    recorder.wait_for_uploads()
    assert "MLflow does not answer: the run lacks the last figures" in caplog.text
    going_on.set()
    recorder._run._thread.join()
    (run,) = fake_mlflow.Client("hangs").runs.values()
    assert run.data.metrics


def test_nothing_is_waited_for_without_event_files(folder):
    job, made = shared(metrics_seconds=0.0)
    recorder = Recorder(job, folder, made)
    with recorder:
        pass
    recorder.wait_for_uploads()
