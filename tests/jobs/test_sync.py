"""--sync in a whole job: every server applies the same gradients, each once, whoever dies."""

import os
import signal
from collections import Counter

import pytest

from shoal.proto import faults
from tests.jobs.results import COUNTING, applied
from tests.jobs.running import RunningJob, audited, resume, until

pytestmark = pytest.mark.job

WAITING = "wait for update"


def two_workers(numbered, folder, **flags):
    """A job of which one worker stops at record 100, until the gate is opened."""
    training, _ = numbered
    return RunningJob(
        "train",
        folder,
        "sync",
        environment={"GATES": "record-100"},
        training_data=training,
        output=folder / "out",
        num_minibatches_per_task=4,
        workers="2",
        servers="2",
        sync=True,
        **COUNTING,
        **flags,
    )


def test_a_worker_killed_between_servers_leaves_them_alike(numbered, tmp_path):
    """480 records are 48 gradients of -1 a record, averaged by two: each row moves by 0.5."""
    with two_workers(numbered, tmp_path) as job:
        pid = job.at_gate("record-100")
        # The other one gives its gradient and then waits: no update is made without us.
        until("a gradient held", lambda: job.server_status(1).pending == 1)
        version = job.server_status(0).version
        since = job.wait_status("waiting", lambda s: WAITING in s.stage_seconds)
        job.wait_status(
            "more waiting",
            lambda s: s.stage_seconds[WAITING] > since.stage_seconds[WAITING] + 0.3,
        )
        assert job.server_status(0).version == version
        # One server gets the gradient and the other one does not.
        job.kill("ps", 1, signal.SIGSTOP)
        job.open("record-100")
        until("the gradient on ps-0", lambda: job.server_status(0).pending == 2)
        os.kill(pid, signal.SIGKILL)
        job.kill("ps", 1, signal.SIGCONT)
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 3, "deaths": 1}
    assert ended.ledger["trained_once"] == 480
    counts = ended.result["sync"]
    assert (counts["updates"], counts["short"], counts["gradients"]) == (24, 0, 48)
    assert ended.result["versions"] == {"ps-0": 24, "ps-1": 24}
    total, rows = applied(tmp_path / "out")
    assert total == [240, 240]
    assert Counter(rows.values()) == {0.5: 480}


def test_a_late_gradient_is_dropped_and_its_records_are_trained_again(numbered, tmp_path):
    """With one gradient to an update, the second worker is a backup: nobody waits for it."""
    with two_workers(numbered, tmp_path, grads_to_wait=1) as job:
        job.at_gate("record-100")
        # All but what is left of its task.
        job.wait_status("the others' records", lambda s: s.ledger.trained_once >= 440)
        job.open("record-100")
        ended = job.ended().succeeded()
    assert ended.ledger["trained_once"] == 480
    counts = ended.result["sync"]
    assert counts["dropped"] >= 1
    assert (counts["updates"], counts["gradients"]) == (48, 48)
    total, rows = applied(tmp_path / "out")
    assert total == [480, 480]
    assert Counter(rows.values()) == {1: 480}


POINTS = {8: "push-logged", 16: "update-logged", 24: "update-applied", 32: "shard-begun"}
"""By step of the worker. tests/ps/update_log/test_log_of_updates.py has all points."""


@pytest.mark.parametrize("place", ["file", "peer"])
def test_servers_killed_at_points_of_an_update_lose_nothing(numbered, tmp_path, place):
    """Each record's gradient is in one update: 48 gradients of -1 a record, averaged by two."""
    kills = tmp_path / "kills"
    kills.mkdir()
    gates = {f"step-{step}": point for step, point in POINTS.items()}
    with RunningJob(
        "train",
        tmp_path,
        "killed",
        environment={"GATES": " ".join(gates), faults.VARIABLE: str(kills)},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="2",
        num_minibatches_per_task=4,
        sync=True,
        grads_to_wait=2,
        durability=place,
        checkpoint_steps=5,
        relaunch_limit=20,
        **COUNTING,
    ) as job:
        for gate, point in gates.items():
            job.at_gate(gate)
            until(
                "protection",
                lambda: not any(job.server_status(i).unprotected for i in (0, 1)),
            )
            faults.arm(kills, point)
            job.open(gate)
        ended = job.ended().succeeded()
    assert list(kills.iterdir()) == []
    total, rows = applied(tmp_path / "out")
    assert total == [240, 240]
    assert Counter(rows.values()) == {0.5: 480}
    assert ended.ledger["trained_once"] == 480
    counts = ended.result["sync"]
    assert (counts["updates"], counts["short"], counts["gradients"]) == (24, 0, 48)
    assert ended.result["versions"] == {"ps-0": 24, "ps-1": 24}
    assert ended.result["servers"]["deaths"] == len(POINTS)
    assert audited(job.folder)["updates"]["lost"] == 0


def test_a_gradient_of_a_dead_worker_survives_the_server_that_holds_it(numbered, tmp_path):
    """It is admitted when every server holds it: neither death takes it out of its update."""
    with two_workers(numbered, tmp_path) as job:
        pid = job.at_gate("record-100")
        until("a gradient held", lambda: job.server_status(1).pending == 1)
        # The one that gave it, while the other one stands at the gate.
        (giver,) = {job.pid("worker", 0), job.pid("worker", 1)} - {pid}
        os.kill(giver, signal.SIGKILL)
        job.wait_status("its end", lambda s: any("was started again" in m for m in s.messages))
        job.kill("ps", 1)
        job.wait_status("the server", lambda s: any("ps-1 is back" in m for m in s.messages))
        assert job.server_status(1).pending == 1
        job.open("record-100")
        ended = job.ended().succeeded()
    assert ended.result["workers"]["deaths"] == ended.result["servers"]["deaths"] == 1
    assert ended.ledger["trained_once"] == 480
    total, rows = applied(tmp_path / "out")
    assert total == [240, 240]
    assert Counter(rows.values()) == {0.5: 480}


def test_without_a_log_a_server_s_death_ends_the_job_and_resume_goes_on(numbered, tmp_path):
    """Each record's gradient is in one update of the model, whatever was held or dropped."""
    with RunningJob(
        "train",
        tmp_path,
        "resumed",
        environment={"GATES": "step-20"},
        training_data=numbered[0],
        output=tmp_path / "out",
        num_minibatches_per_task=4,
        servers="2",
        sync=True,
        grads_to_wait=2,
        checkpoint_steps=4,
        durability="checkpoint",
        **COUNTING,
    ) as job:
        job.at_gate("step-20")
        job.wait_taken()
        # 9 updates are made of 18 gradients, and one is held.
        job.kill("ps", 1)
        failed = job.ended()
        again = resume(job.folder, workers="3", servers="1")
        assert again.returncode == 0, again.stdout + again.stderr
        report = audited(job.folder)
    assert failed.code == 1
    assert f"Go on with: shoal train --resume {job.folder.path}" in failed.err
    assert report["records"]["once"] == report["records"]["total"] == 480
    # What came after the checkpoint, the gradient that was held too.
    assert 10 <= report["records"]["lost"] <= 190
    total, rows = applied(tmp_path / "out")
    assert total == [240, 240]
    assert Counter(rows.values()) == {0.5: 480}
