"""Parameter servers really killed with --durability=log: no acknowledged update is lost."""

import json
import os
import re
import sys

import pytest

from shoal.proto import faults
from tests.jobs.results import SERIAL, applied, model
from tests.jobs.running import RunningJob, audited, completed, until

pytestmark = pytest.mark.job

POINTS = ["push-received", "push-logged", "push-applied"]


@pytest.mark.parametrize(("servers", "place"), [(1, "log"), (2, "peer")])
def test_kills_at_every_point_of_a_push_and_while_a_log_is_done_again(
    numbered, tmp_path, servers, place
):
    kills = tmp_path / "kills"
    kills.mkdir()
    gates = [f"step-{step}" for step in (5, 12, 19, 26, 33, 40)]
    with RunningJob(
        "train",
        tmp_path,
        "logged",
        environment={"GATES": " ".join(gates), faults.VARIABLE: str(kills)},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers=str(servers),
        num_minibatches_per_task=4,
        durability=place,
        checkpoint_steps=15,
        relaunch_limit=20,
        **SERIAL,
    ) as job:
        for gate, point in zip(gates, [*POINTS, "log-replaying", "log-replaying", ""], strict=True):
            job.at_gate(gate)
            until(
                "protection",
                lambda: all(not job.server_status(i).unprotected for i in range(servers)),
            )
            if point:
                (kills / point).touch()
                if point == "log-replaying":
                    (kills / "push-logged").touch()
            job.open(gate)
        ended = job.ended().succeeded()
    assert list(kills.iterdir()) == []
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}
    assert len(counts) == 480
    assert ended.result["servers"]["lost_pushes"] == 0
    report = audited(job.folder)
    assert report["updates"]["lost"] == 0


def test_a_log_in_files_outlives_all_servers_at_once(numbered, tmp_path):
    with RunningJob(
        "train",
        tmp_path,
        "filed",
        environment={"GATES": "step-7 step-21"},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="2",
        num_minibatches_per_task=4,
        durability="file",
        checkpoint_steps=15,
        relaunch_limit=20,
        **SERIAL,
    ) as job:
        for gate in ("step-7", "step-21"):
            job.at_gate(gate)
            job.kill("ps", 0)
            job.kill("ps", 1)
            job.open(gate)
        ended = job.ended().succeeded()
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}
    assert len(counts) == 480
    assert ended.result["servers"] == {
        "starts": 6,
        "deaths": 4,
        "lost_pushes": 0,
        "lost_records": 0,
    }
    assert ended.result["log"]["unprotected"]["times"] == 0
    assert audited(job.folder)["updates"]["lost"] == 0


def test_damage_in_the_middle_of_a_log_is_told_by_file_place_and_cost(numbered, tmp_path):
    """In the messages of the job and in its audit, whatever becomes of the updates."""
    with RunningJob(
        "train",
        tmp_path,
        "damaged",
        environment={"GATES": "step-12"},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="1",
        num_minibatches_per_task=4,
        durability="log",
        checkpoint_steps=1000,
        relaunch_limit=20,
        **SERIAL,
    ) as job:
        job.at_gate("step-12")
        (segment,) = job.folder.update_log.iterdir()
        with segment.open("r+b") as file:
            file.seek(segment.stat().st_size // 2)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        job.kill("ps", 0)
        job.open("step-12")
        ended = job.ended()
    place = rf"its log is damaged: {re.escape(str(segment))} at byte \d+; \d+ updates from there on"
    (told,) = (each for each in ended.result["messages"] if "is back" in each)
    assert re.search(place, told)
    command = [sys.executable, "-m", "shoal", "audit", str(job.folder.path), "--json"]
    audit = completed(command)
    assert any(re.search(place, each) for each in json.loads(audit.stdout)["unprotected"])
    assert json.loads(audit.stdout)["updates"]["lost"] > 0


def test_rows_and_all_else_are_those_of_an_undisturbed_job(
    trained, session_folder, clicks, tmp_path
):
    """Adam, a schedule, batch normalization, dropout: bit for bit, as if no server had died."""
    kills = tmp_path / "kills"
    kills.mkdir()
    gates = ["step-3", "step-9", "step-15"]
    with RunningJob(
        "train",
        tmp_path,
        "again",
        environment={"GATES": " ".join(gates), faults.VARIABLE: str(kills)},
        model_def="small_at_gates.custom_model",
        training_data=clicks,
        validation_data=clicks,
        output=tmp_path / "out",
        batch_size=25,
        servers="2",
        seed=7,
        pipeline_depth=0,
        durability="log",
    ) as job:
        for gate, point in zip(gates, POINTS, strict=True):
            job.at_gate(gate)
            (kills / point).touch()
            job.open(gate)
            until("a killed server", lambda: not list(kills.iterdir()))
        ended = job.ended().succeeded()
    assert ended.result["servers"] == {
        "starts": 2 + len(POINTS),
        "deaths": len(POINTS),
        "lost_pushes": 0,
        "lost_records": 0,
    }
    assert ended.result["log"]["replayed_pushes"] >= 1
    assert model(tmp_path / "out") == model(session_folder / "trained-out")
    assert ended.result["metrics"] == trained.result["metrics"]
