"""metrics.csv of whole jobs: what the master has recorded is what the result says in the end."""

import pyarrow.parquet as pq
import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobResult
from tests.jobs.results import SERIAL
from tests.jobs.running import RunningJob, resume, until

pytestmark = pytest.mark.job


def check(folder):
    """The rows of a job that has ended, checked against its result and its Parquet file."""
    result = JobResult.read(folder.result)
    frame = result.metrics_over_time
    assert frame["seconds"].is_monotonic_increasing
    assert frame["time"].is_monotonic_increasing
    last = frame.iloc[-1]
    assert last["state"] == result.state == "succeeded"
    assert last["records"] == result.ledger["trained_once"] + result.ledger["repeated"]
    assert last["server_deaths"] == result.servers["deaths"]
    evaluated = frame.dropna(subset="evaluated_version")
    found = [
        (row["evaluated_version"], {n: row[f"val_{n}"] for n in each["metrics"]})
        for (_, row), each in zip(evaluated.iterrows(), result.evaluations, strict=True)
    ]
    assert found == [(each["version"], each["metrics"]) for each in result.evaluations]
    table = pq.read_table(folder.metrics_parquet)
    assert table.column_names == list(frame.columns)
    assert table["version"].to_pylist() == frame["version"].tolist()
    return frame


def test_the_metrics_of_a_killed_and_resumed_job_are_one_table(numbered, tmp_path):
    training, validation = numbered
    with RunningJob(
        "train",
        tmp_path,
        "measured",
        environment={"GATES": "step-20"},
        training_data=training,
        validation_data=validation,
        servers="2",
        num_minibatches_per_task=4,
        epochs=2,
        metrics_seconds=0.1,
        **SERIAL,
    ) as job:
        job.at_gate("step-20")
        until("a row of training", lambda: ",training," in job.folder.metrics.read_text())
        # To those who cannot read the folder, the master tells it.
        told = job.ask_master(methods.GET_JOB_METRICS, pb.JobMetricsRequest()).csv
        assert ",training," in told
        assert job.folder.metrics.read_text().startswith(told)
        job.kill("master")
        before = job.folder.metrics.read_text()
        until("a row of the next master", lambda: len(job.folder.metrics.read_text()) > len(before))
        job.kill_whole()
        killed = job.folder.metrics.read_text()
        done = resume(job.folder)
        assert done.returncode == 0, done.stdout + done.stderr
    text = job.folder.metrics.read_text()
    whole = killed[: killed.rindex("\n") + 1].splitlines()[1:]
    assert [line.rstrip(",") for line in text.splitlines()[1 : len(whole) + 1]] == [
        line.rstrip(",") for line in whole
    ]
    frame = check(job.folder)
    assert frame["rows"].max() == 480
    assert frame["table_bytes"].max() > 0
    assert frame["workers"].max() == 1
    assert frame["servers"].max() == 2
