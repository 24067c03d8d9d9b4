"""Parameter servers really killed: what comes back, what is lost, and that it is counted."""

import os
import re
import shutil
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest

from shoal.checkpoints.newest import newest_good
from shoal.files.storage import LocalStorage
from shoal.native import ids
from shoal.proto import faults
from shoal.proto.values.routing import Routing
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited, until

pytestmark = pytest.mark.job


@pytest.fixture
def counting(numbered, tmp_path):
    """Start a job of zoo/counting.py: 480 records in 48 pushes to each of two servers."""

    def start(name, environment, **fields):
        values = {
            "training_data": numbered[0],
            "output": tmp_path / "out",
            "servers": "2",
            "num_minibatches_per_task": 4,
            "durability": "checkpoint",
        }
        values |= SERIAL | fields
        return RunningJob("train", tmp_path, name, environment=environment, **values)

    return start


def test_a_server_restores_the_newest_good_checkpoint_and_the_loss_is_counted(counting, tmp_path):
    gates = {"GATES": "step-10 step-20 step-21"}
    with counting("restored", gates, checkpoint_steps=9, on_loss="accept") as job:
        job.at_gate("step-10")
        before = job.wait_taken(1)
        job.open("step-10")
        job.at_gate("step-20")
        damaged = job.wait_taken(2)
        file = tmp_path / damaged.folder.location / damaged.shards[1]["files"][0]["name"]
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        job.kill("ps", 1)
        job.open("step-20")
        # Again, before another checkpoint is due: the one restored is restored once more.
        job.at_gate("step-21")
        job.kill("ps", 1)
        job.open("step-21")
        ended = job.ended().degraded()
    lost = 20 - before.shards[1]["version"]
    assert lost >= 2
    deaths = {"starts": 4, "deaths": 2, "lost_pushes": lost, "lost_records": 10 * lost}
    assert ended.result["servers"] == deaths
    assert ended.ledger["trained_once"] == 480
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480 - 10 * lost]
    assert 480 - 10 * lost <= sum(counts.values()) < 480
    report = audited(job.folder, clean=False)
    assert report["updates"]["lost"] == lost
    ranges = [each for each in report["ranges"] if each["kind"] == "lost"]
    assert sum(each["end"] - each["start"] for each in ranges) == 10 * lost
    assert {each["server"] for each in ranges} == {1}
    assert len(report["problems"]) == len(ranges)
    for death in report["deaths"]:
        assert (death["who"], death["recovered"] is not None) == ("ps-1", True)
    text = "\n".join(ended.result["messages"])
    assert "ps-1 died (signal 9, SIGKILL)" in text
    assert f"{file}: damaged" in text
    assert f"it has restored checkpoint {before.number}" in text
    (line,) = (line for line in ended.out.splitlines() if "updates lost" in line)
    assert f"{lost} pushes; of {10 * lost} records they STAY LOST" in line


def test_a_hung_server_is_replaced_and_without_a_checkpoint_its_rows_start_anew(counting, tmp_path):
    with counting(
        "anew",
        {"GATES": "step-10"},
        checkpoint_seconds=0,
        timeout_seconds=4,
        on_loss="accept",
    ) as job:
        job.at_gate("step-10")
        # It does not die of itself: it hangs, until the master kills it.
        job.kill("ps", 0, signal.SIGSTOP)
        job.open("step-10")
        ended = job.ended().degraded()
    deaths = {"starts": 3, "deaths": 1, "lost_pushes": 9, "lost_records": 90}
    assert ended.result["servers"] == deaths
    text = "\n".join(ended.result["messages"])
    assert "ps-0 has not answered for 8 s, and is killed" in text
    assert "INITIAL VALUES" in text
    # What is called lost is lost, in the dense values as in the rows.
    total, counts = applied(tmp_path / "out")
    assert total == [480 - 90, 480]
    assert 480 - 90 <= sum(counts.values()) < 480
    ranges = audited(job.folder, clean=False)["ranges"]
    assert {(each["kind"], each["server"]) for each in ranges} == {("lost", 0)}
    assert sum(each["end"] - each["start"] for each in ranges) == 90


def told_of(report, total, counts, servers):
    """Compare what an audit says of repeated records with what the servers have."""
    routing = Routing.even(servers)
    owners = routing.owners[ids.slot_of(np.arange(480))]
    expected = dict.fromkeys(range(480), 1)
    on_server = [480] * servers
    for each in report["ranges"]:
        assert each["kind"] == "repeated"
        of = range(servers) if each["server"] is None else [each["server"]]
        records = np.arange(each["start"], each["end"])
        for server in of:
            on_server[server] += len(records)
            for record in records[owners[records] == server]:
                expected[int(record)] += 1
    assert counts == expected
    assert total == [on_server[0], on_server[-1]]


@pytest.mark.parametrize("servers", [1, 2])
def test_without_any_checkpoint_what_a_server_had_is_trained_again(counting, tmp_path, servers):
    with counting("k1", {"GATES": "step-20"}, servers=str(servers), checkpoint_seconds=0) as job:
        job.at_gate("step-20")
        job.kill("ps", 0)
        job.open("step-20")
        ended = job.ended().succeeded()
    deaths = {"starts": servers + 1, "deaths": 1, "lost_pushes": 19, "lost_records": 0}
    assert ended.result["servers"] == deaths
    report = audited(job.folder)
    assert (report["records"]["lost"], report["records"]["never"]) == (190, 0)
    total, counts = applied(tmp_path / "out")
    told_of(report, total, counts, servers)
    assert ended.ledger["repeated"] == (0 if servers == 1 else 190)


def test_what_ended_workers_pushed_is_not_forgotten(counting, tmp_path):
    """The worker dies before the server, so it never tells what it had been told."""
    gates = {"GATES": "step-20 step-21"}
    with counting("x1", gates, servers="1", workers="1", checkpoint_seconds=0) as job:
        os.kill(job.at_gate("step-20"), signal.SIGKILL)
        job.open("step-20")
        job.at_gate("step-21")  # of the worker's successor
        job.kill("ps", 0)
        job.open("step-21")
        ended = job.ended().succeeded()
    assert ended.result["servers"]["lost_pushes"] == 39
    report = audited(job.folder)
    assert report["updates"]["lost"] == 39
    assert report["ranges"] == []
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}


def test_a_loss_after_training_is_trained_again_before_the_export(counting, numbered, tmp_path):
    with counting(
        "late",
        {"GATES": "evaluate-1085"},
        servers="1",
        checkpoint_seconds=0,
        validation_data=numbered[1],
    ) as job:
        job.at_gate("evaluate-1085")
        job.kill("ps", 0)
        job.open("evaluate-1085")
        ended = job.ended().succeeded()
    assert ended.result["servers"]["lost_pushes"] == 48
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}
    assert audited(job.folder)["records"]["lost"] == 480


def test_a_server_killed_while_an_export_reads_it_costs_no_worker(counting, tmp_path):
    kills = tmp_path / "kills"
    kills.mkdir()
    (kills / "table-half-read@ps-1").touch()
    with counting("read", {faults.VARIABLE: str(kills)}, relaunch_limit=1) as job:
        ended = job.ended().succeeded()
    assert list(kills.iterdir()) == []
    assert ended.result["servers"]["deaths"] == 1
    assert ended.result["workers"]["deaths"] == 0
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}


@pytest.mark.parametrize(
    ("point", "fields"),
    [
        pytest.param("shard-begun", {"durability": "log"}, id="log"),
        pytest.param("shard-half-written", {"durability": "log"}, id="log, half written"),
        pytest.param("shard-half-written", {}, id="retrain"),
        pytest.param("shard-written", {"on_loss": "accept"}, id="accept"),
    ],
)
def test_a_server_killed_in_the_last_checkpoint_costs_nothing_or_is_no_success(
    counting, tmp_path, point, fields
):
    """K1: as by the kernel for want of memory, when all is trained and no checkpoint exists."""
    kills = tmp_path / "kills"
    kills.mkdir()
    (kills / f"{point}@ps-1").touch()
    with counting("last", {faults.VARIABLE: str(kills)}, **fields) as job:
        ended = job.ended()
    assert list(kills.iterdir()) == []
    text = "\n".join(ended.result["messages"])
    assert "ps-1 died (signal 9, SIGKILL)" in text
    assert ended.result["servers"]["deaths"] >= 1
    total, counts = applied(tmp_path / "out")
    if fields.get("on_loss") == "accept":
        assert ended.degraded().result["servers"]["lost_pushes"] == 48
        assert total == [480, 0]
        report = audited(job.folder, clean=False)
        assert {(each["kind"], each["server"]) for each in report["ranges"]} == {("lost", 1)}
        assert sum(each["end"] - each["start"] for each in report["ranges"]) == 480
    else:
        ended.succeeded()
        report = audited(job.folder)
        lost = 0 if fields else 480
        assert (report["records"]["lost"], ended.ledger["repeated"]) == (lost, lost)
        told_of(report, total, counts, 2)
        assert ended.result["checkpoints"]["kept"]


def test_on_loss_fail_names_the_server_and_the_way_on(counting, tmp_path):
    gates = {"GATES": "step-10 step-15"}
    with counting("fails", gates, checkpoint_steps=9, on_loss="fail") as job:
        job.at_gate("step-10")
        job.wait_taken()
        job.open("step-10")
        job.at_gate("step-15")  # the next checkpoint is due at step 18
        shutil.rmtree(job.folder.path / "checkpoints")
        job.kill("ps", 1)
        job.open("step-15")
        ended = job.ended()
    assert (ended.code, ended.result["state"]) == (1, "failed")
    # How many the master knows of by then depends on the last heartbeats.
    told = re.search(r"server ps-1 was started again without at least (\d+) updates", ended.err)
    assert told
    assert 1 <= int(told[1]) <= 15
    assert f"shoal train --resume {job.folder.path}" in ended.err


def test_servers_and_master_die_while_a_checkpoint_is_taken(counting, tmp_path):
    kills = tmp_path / "kills"
    kills.mkdir()
    points = ["shard-begun", "shard-half-written", "shard-written", "checkpoint-written"]
    with counting(
        "between",
        {"GATES": "step-10 step-20 step-30 step-40", faults.VARIABLE: str(kills)},
        checkpoint_steps=2,
        relaunch_limit=8,
        on_loss="accept",
    ) as job:
        job.at_gate("step-10")
        job.wait_taken()
        for point in points:
            (kills / point).touch()
        left = len(points)
        job.open("step-10")
        for gate in (20, 30, 40):
            job.at_gate(f"step-{gate}")
            # Since the gate before, as no checkpoint may be due while the worker stands here.
            until("a death", lambda left=left: len(list(kills.iterdir())) < left or not left)
            left = len(list(kills.iterdir()))
            job.open(f"step-{gate}")
        ended = job.ended()
    assert list(kills.iterdir()) == []
    root = LocalStorage(job.folder.path / "checkpoints")
    assert (ended.result["state"] == "degraded") == bool(ended.result["servers"]["lost_pushes"])
    assert newest_good(root)[0].ledger["records"]["trained_once"] == 480
    servers = ended.result["servers"]
    assert servers["deaths"] == 3
    total, _ = applied(tmp_path / "out")
    assert ended.ledger["trained_once"] == 480
    assert sum(total) == 2 * 480 - 10 * servers["lost_pushes"]


def test_a_server_that_is_told_to_end_loses_nothing(counting, tmp_path):
    """The first one, whose dense slices no other can have: it takes a checkpoint."""
    with counting("told", {"GATES": "step-10 step-20"}, relaunch_limit=1) as job:
        job.at_gate("step-10")
        job.kill("ps", 0, signal.SIGTERM)
        job.wait_status(
            "the end of ps-0", lambda status: any("ps-0 died" in m for m in status.messages)
        )
        job.open("step-10", "step-20")
        ended = job.ended().succeeded()
    deaths = {"starts": 3, "deaths": 1, "lost_pushes": 0, "lost_records": 0}
    assert ended.result["servers"] == deaths
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}
    assert audited(job.folder)["updates"]["lost"] == 0
    text = "\n".join(ended.result["messages"])
    assert "ps-0 is told to end; first a checkpoint is taken" in text
    assert "ps-0 died (exit code 0)" in text
    assert "ps-0 is back: it has restored checkpoint 1" in text


def test_servers_that_die_while_a_saved_model_is_used_have_it_again(
    numbered, cursed, session_folder, tmp_path
):
    """One dies while the tables are filled, one in the evaluation, one in the prediction."""
    kills = tmp_path / "kills"
    kills.mkdir()
    saved = session_folder / "cursed-out"
    common = {"model_def": "counting.custom_model", "batch_size": 10, "restore_from": saved}
    common |= {"servers": "2", "num_minibatches_per_task": 4}
    (kills / "rows-assigned").touch()
    with RunningJob(
        "evaluate",
        tmp_path,
        "evaluated",
        environment={"GATES": "evaluate-205", faults.VARIABLE: str(kills)},
        validation_data=numbered[0],
        **common,
    ) as job:
        job.at_gate("evaluate-205")
        assert list(kills.iterdir()) == []
        job.kill("ps", 1)
        job.open("evaluate-205")
        ended = job.ended().succeeded()
    # Each trained row is the number of its updates, and `total` that of all of them.
    total, bad = sum(applied(saved)[0]), (37, 38, 305)
    metrics = ended.result["metrics"]
    assert (metrics["seen"], metrics["ids"]) == (480, sum(range(480)))
    assert metrics["loss"] == pytest.approx(-(10 * total + 2 * (480 - len(bad)) / 48), rel=1e-6)
    assert ended.result["servers"]["deaths"] == 2
    text = "\n".join(ended.result["messages"])
    assert "its rows are those of --restore-from" in text
    assert "warning" not in text

    with RunningJob(
        "predict",
        tmp_path,
        "predicted",
        environment={"GATES": "predict-205"},
        prediction_data=numbered[0],
        output=tmp_path / "out",
        in_order=True,
        **common,
    ) as job:
        job.at_gate("predict-205")
        for server in (0, 1):
            job.kill("ps", server)
        job.open("predict-205")
        assert job.ended().succeeded().result["servers"]["deaths"] == 2
    values = pq.read_table(tmp_path / "out" / "predictions.parquet").column("prediction")
    assert values.to_pylist() == [total + (0 if i in bad else 2) for i in range(480)]
