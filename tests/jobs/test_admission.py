"""Admission in whole jobs: which ids the export has, with servers killed and a job resumed."""

import pytest

from shoal.checkpoints.saved import open_saved
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited

pytestmark = pytest.mark.job


def test_killed_servers_and_a_resumed_job_admit_each_id_by_the_same_push(numbered, tmp_path):
    """480 ids, each in a push of each of three epochs: the last two are in its row."""
    fields = {
        "training_data": numbered[0],
        "output": tmp_path / "out",
        "servers": "2",
        "epochs": 3,
        "num_minibatches_per_task": 4,
        "table": "counts.admit_after=2",
        "durability": "log",
        "checkpoint_steps": 20,
    }
    gates = {"GATES": "step-30 step-70 step-100"}
    with RunningJob("train", tmp_path, "admitted", environment=gates, **SERIAL | fields) as job:
        job.at_gate("step-30")
        job.kill("ps", 0)
        job.open("step-30")
        job.at_gate("step-70")
        job.kill("ps", 1)
        job.open("step-70")
        job.at_gate("step-100")
        job.kill("ps", 0)
        job.kill("ps", 1)
        job.open("step-100")
        ended = job.ended().succeeded()
    assert ended.result["servers"]["deaths"] == 4
    assert ended.result["servers"]["lost_pushes"] == 0
    total, counts = applied(tmp_path / "out")
    assert total == [1440, 1440]
    assert counts == dict.fromkeys(range(480), 2)
    audited(job.folder)


def test_an_id_that_is_seen_too_seldom_is_in_no_export(clicks, tmp_path):
    """Users are all different, items come often."""
    fields = {
        "model_def": "small.custom_model",
        "training_data": clicks,
        "validation_data": clicks,
        "output": str(tmp_path / "out"),
        "batch_size": 20,
        "table": ["users.admit_after=2", "items.admit_after=2"],
    }
    with RunningJob("train", tmp_path, "seldom", **fields) as job:
        job.ended().succeeded()
    rows = {each["name"]: each["rows"] for each in open_saved(fields["output"]).manifest["tables"]}
    assert rows == {"users": 0, "items": 40}
