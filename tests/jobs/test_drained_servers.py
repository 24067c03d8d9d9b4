"""Servers that are told to end while a job trains, and give their rows to the others."""

import signal

import pytest

from shoal.master.job.events import Resumed
from shoal.proto import faults
from tests.jobs.results import SERIAL, applied, model
from tests.jobs.running import RunningJob, audited, resume, until
from tests.jobs.test_scale_servers import moves

pytestmark = pytest.mark.job

FIELDS = SERIAL | {"num_minibatches_per_task": 4, "servers": "3"}
LOG = {"durability": "file"}
NO_LOG = {"durability": "checkpoint"}


def drained(job, server):
    """Tell a server to end, and wait until its rows are elsewhere."""
    before = moves(job)
    job.kill("ps", server, signal.SIGTERM)
    until(f"the rows of ps-{server} are elsewhere", lambda: moves(job) > before)


@pytest.fixture
def points(tmp_path):
    folder = tmp_path / "points"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("durability", [LOG, NO_LOG], ids=["log", "checkpoint"])
def test_a_job_trains_on_without_a_server_that_was_told_to_end(
    numbered, points, tmp_path, durability
):
    """1. ps-1 is told to end, and nothing can be started in its place; 2. training goes on, and a
    checkpoint is taken; 3. ps-2 dies, and restores it; 4. ps-1 comes, and gets its share; 5. it
    dies. Without a log nobody dies: what is lost then is trained twice where it was not."""
    held = points / "no-room@ps-1"
    with RunningJob(
        "train",
        tmp_path,
        "drained",
        environment={"GATES": "step-8 step-24 step-36", faults.VARIABLE: str(points)},
        training_data=numbered[0],
        output=tmp_path / "out",
        checkpoint_steps=12,
        **durability,
        **FIELDS,
    ) as job:
        job.at_gate("step-8")
        held.touch()
        drained(job, 1)
        job.open("step-8")
        job.at_gate("step-24")
        assert len(job.call_status().servers) == 2
        job.wait_taken(2)
        if durability is LOG:
            job.kill("ps", 2)
        job.open("step-24")
        job.at_gate("step-36")
        before = moves(job)
        held.unlink()
        until("the share of ps-1", lambda: moves(job) > before)
        assert job.server_status(1).tables[0].rows > 0
        assert len(job.call_status().servers) == 3
        if durability is LOG:
            job.kill("ps", 1)
        job.open("step-36")
        ended = job.ended().succeeded()
    total, counts = applied(tmp_path / "out")
    assert counts == dict.fromkeys(range(480), 1)
    assert total == [480, 480]
    assert audited(job.folder)["updates"]["lost"] == 0
    assert ended.result["servers"]["lost_pushes"] == 0
    text = "\n".join(ended.result["messages"])
    assert "ps-1 is told to end; first its rows move to the other servers" in text


@pytest.mark.parametrize("durability", [LOG, NO_LOG], ids=["log", "checkpoint"])
def test_a_job_ends_and_is_resumed_without_a_server_that_was_told_to_end(
    numbered, points, tmp_path, durability
):
    """What was trained since the checkpoint is in the logs of the others, if there are any."""
    with RunningJob(
        "train",
        tmp_path,
        "ended",
        environment={"GATES": "step-8 step-30", faults.VARIABLE: str(points)},
        training_data=numbered[0],
        output=tmp_path / "out",
        checkpoint_steps=1000,
        **durability,
        **FIELDS,
    ) as job:
        job.at_gate("step-8")
        (points / "no-room@ps-2").touch()
        drained(job, 2)
        job.wait_taken()
        job.open("step-8")
        job.at_gate("step-30")
        job.kill_whole()
    (points / "no-room@ps-2").unlink()
    resume(job.folder).check_returncode()
    (resumed,) = [event for event in job.events() if isinstance(event, Resumed)]
    there = sum(len(each.span) for each in resumed.in_model)
    assert (there >= 280) == (durability is LOG)
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert counts == dict.fromkeys(range(480), 1)


def run(tmp_path, clicks, name, drains, **mode):
    """Train; end servers meanwhile, and wait until each is back. Returns the exported model."""
    with RunningJob(
        "train",
        tmp_path,
        name,
        environment={"APART": "0.2"},
        model_def="small_at_gates.custom_model",
        training_data=clicks,
        output=tmp_path / f"{name}-out",
        batch_size=25,
        servers="3",
        seed=7,
        checkpoint_steps=1000,
        epochs=10,
        **LOG,
        **mode,
    ) as job:
        job.wait_status("training", lambda status: status.records_done > 0)
        for server in drains:
            before = moves(job)
            drained(job, server)
            until("it is back", lambda job=job, before=before: moves(job) > before + 1)
        job.open("hurry")
        job.ended().succeeded()
    return model(tmp_path / f"{name}-out")


@pytest.mark.parametrize(
    "mode",
    [{"pipeline_depth": 0}, {"sync": True}],
    ids=["async", "sync"],
)
def test_the_model_is_that_of_a_job_whose_servers_stay(clicks, tmp_path, mode):
    """Adam, batch normalization, dropout: bit for bit, while the worker goes on pushing."""
    stays = run(tmp_path, clicks, "stays", (), **mode)
    assert run(tmp_path, clicks, "drained", (1, 2, 1), **mode) == stays
