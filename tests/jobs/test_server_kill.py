"""Parameter servers really killed: what comes back, what is lost, and that it is counted."""

import signal

import pytest

from shoal.checkpoints.folders import Checkpoint, newest_good, numbers
from shoal.checkpoints.storage import LocalStorage
from shoal.proto import faults
from tests.jobs.running import RunningJob, audited, until
from tests.jobs.test_exactly_once import COUNTING, applied

pytestmark = pytest.mark.job


@pytest.fixture
def counting(numbered, tmp_path):
    """Start a job of zoo/counting.py: 480 records in 48 pushes to each of two servers."""

    def start(name, environment, **fields):
        return RunningJob(
            "train",
            tmp_path,
            name,
            environment=environment,
            training_data=numbered[0],
            output=tmp_path / "out",
            num_ps=2,
            num_minibatches_per_task=4,
            **COUNTING,
            **fields,
        )

    return start


def test_a_server_restores_the_newest_good_checkpoint_and_the_loss_is_counted(counting, tmp_path):
    with counting("restored", {"GATES": "step-10 step-20"}, checkpoint_steps=3) as job:
        root = LocalStorage(job.folder.path / "checkpoints")

        def saved(version):
            found, _ = newest_good(root)
            return found if found is not None and found.version >= version else None

        job.at_gate("step-10")
        until("a checkpoint of all 9 pushes", lambda: saved(9))
        job.open("step-10")
        job.at_gate("step-20")
        damaged = until("a later checkpoint", lambda: saved(18))
        until("no other under way", lambda: numbers(root)[-1] == damaged.number)
        before = Checkpoint(root, numbers(root)[-2])
        file = tmp_path / damaged.folder.location / damaged.shares[1]["files"][0]["name"]
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        job.kill("ps", 1)
        job.open("step-20")
        ended = job.ended().succeeded()
    lost = 19 - before.shares[1]["version"]
    assert lost >= 1
    assert ended.result["servers"] == {"starts": 3, "deaths": 1, "lost_pushes": lost}
    assert ended.ledger["trained_once"] == 480
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480 - 10 * lost]
    assert 480 - 10 * lost <= sum(counts.values()) < 480
    report = audited(job.folder)
    assert report["updates"]["lost"] == lost
    (death,) = report["deaths"]
    assert (death["who"], death["recovered"] is not None) == ("ps-1", True)
    text = "\n".join(ended.result["messages"])
    assert "ps-1 died (signal 9, SIGKILL)" in text
    assert f"{file}: damaged" in text
    assert f"it has restored checkpoint {before.number}" in text
    (line,) = (line for line in ended.out.splitlines() if "updates lost" in line)
    assert f"{lost} pushes" in line


def test_without_a_checkpoint_the_rows_start_anew_and_that_is_said(counting, tmp_path):
    with counting("anew", {"GATES": "step-10"}, checkpoint_seconds=0) as job:
        job.at_gate("step-10")
        job.kill("ps", 0)
        job.open("step-10")
        ended = job.ended().succeeded()
    assert ended.result["servers"] == {"starts": 3, "deaths": 1, "lost_pushes": 9}
    assert any("INITIAL VALUES" in message for message in ended.result["messages"])
    # The dense values are the worker's last ones.
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert 480 - 90 <= sum(counts.values()) < 480


def test_servers_and_master_die_while_a_checkpoint_is_taken(counting, tmp_path):
    kills = tmp_path / "kills"
    kills.mkdir()
    points = ["share-begun", "share-half-written", "share-written", "checkpoint-written"]
    with counting(
        "between",
        {"GATES": "step-10 step-20 step-30 step-40", faults.VARIABLE: str(kills)},
        checkpoint_steps=2,
        relaunch_limit=8,
    ) as job:
        root = LocalStorage(job.folder.path / "checkpoints")
        job.at_gate("step-10")
        until("a checkpoint", lambda: newest_good(root)[0])
        for point in points:
            (kills / point).touch()
        job.open("step-10")
        for gate in (20, 30, 40):
            job.at_gate(f"step-{gate}")
            left = len(list(kills.iterdir()))
            until("a death", lambda left=left: len(list(kills.iterdir())) < left or not left)
            job.open(f"step-{gate}")
        ended = job.ended().succeeded()
    assert list(kills.iterdir()) == []
    assert newest_good(root)[0].ledger["records"]["trained_once"] == 480
    servers = ended.result["servers"]
    assert servers["deaths"] == 3
    total, _ = applied(tmp_path / "out")
    assert ended.ledger["trained_once"] == 480
    assert sum(total) == 2 * 480 - 10 * servers["lost_pushes"]


def test_a_server_that_is_told_to_end_loses_nothing(counting, tmp_path):
    with counting("told", {"GATES": "step-10 step-20"}, relaunch_limit=1) as job:
        job.at_gate("step-10")
        job.kill("ps", 1, signal.SIGTERM)
        job.wait_status(
            "the end of ps-1", lambda status: any("ps-1 died" in m for m in status.messages)
        )
        job.open("step-10", "step-20")
        ended = job.ended().succeeded()
    assert ended.result["servers"] == {"starts": 3, "deaths": 1, "lost_pushes": 0}
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}
    assert audited(job.folder)["updates"]["lost"] == 0
    text = "\n".join(ended.result["messages"])
    assert "ps-1 is told to end; first a checkpoint is taken" in text
    assert "ps-1 died (exit code 0)" in text
    assert "ps-1 is back: it has restored checkpoint 1" in text
