"""Servers that come and leave while a job trains."""

import random
import sys
from collections import Counter

import numpy as np
import pytest

from shoal.client.ask import asking
from shoal.client.ask.local_jobs import LocalJob
from shoal.errors import UserError
from shoal.master.job.events import MoveEnded
from shoal.native.ids import slot_of
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import Routing
from tests.jobs.results import SERIAL, applied, model
from tests.jobs.running import RunningJob, audited, completed, resume, until

pytestmark = pytest.mark.job

LOGGED = SERIAL | {"durability": "log", "checkpoint_steps": 1000, "num_minibatches_per_task": 4}


def moves(job):
    """How many times rows have moved."""
    return sum(isinstance(each, MoveEnded) for each in job.events())


def scaled(job, servers):
    """Have so many servers, and wait for the move."""
    before = moves(job)
    asking.scale(LocalJob(job.folder), None, servers)
    until(f"a move to {servers} servers", lambda: moves(job) > before)


def test_each_record_counts_once_on_servers_that_come_leave_and_die(numbered, tmp_path):
    """Also where the last servers die that rows came to, and the job is resumed after all."""
    gates = [f"step-{step}" for step in (8, 16, 24, 32)]
    with RunningJob(
        "train",
        tmp_path,
        "scaled",
        environment={"GATES": " ".join(gates)},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="1",
        **LOGGED,
    ) as job:
        job.at_gate(gates[0])
        scaled(job, 3)
        assert len(job.call_status().servers) == 3
        assert job.server_status(2).tables[0].rows > 0
        job.open(gates[0])
        job.at_gate(gates[1])
        job.kill("ps", 2)
        scaled(job, 2)
        until("the end of ps-2", lambda: job.pid("ps", 2) is None)
        job.open(gates[1])
        job.at_gate(gates[2])
        job.kill("ps", 1)
        job.kill("master")
        job.open(gates[2])
        job.at_gate(gates[3])
        scaled(job, 3)
        job.open(gates[3])
        ended = job.ended().succeeded()
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert counts == dict.fromkeys(range(480), 1)
    assert ended.result["servers"]["lost_pushes"] == 0
    assert audited(job.folder)["updates"]["lost"] == 0


POINTS = {
    "ps": ["rows-sent", "rows-taken", "pushes-frozen", "before-rows-removed"],
    "master": ["move-begun", "before-move-committed", "move-committed"],
}


@pytest.mark.parametrize(("place", "role"), [("file", "master"), ("file", "ps"), ("peer", "ps")])
def test_kills_at_every_point_of_a_move(numbered, tmp_path, place, role):
    kills = tmp_path / "kills"
    kills.mkdir()
    # Logs at servers end with the decision, after which the last of these comes.
    points = POINTS[role][: 3 if place == "peer" else None]
    gates = [f"step-{5 * number}" for number in range(1, len(points) + 1)]
    with RunningJob(
        "train",
        tmp_path,
        "killed",
        environment={"GATES": " ".join(gates), faults.VARIABLE: str(kills)},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="3",
        relaunch_limit=100,
        **LOGGED | {"durability": place},
    ) as job:
        # Logs at servers need two.
        counts = [2, 4] if place == "peer" else [1, 4]
        for at, (gate, point) in enumerate(zip(gates, points, strict=True)):
            job.at_gate(gate)
            (kills / point).touch()
            servers = counts[at % 2]
            scaled(job, servers)
            until(f"the death at {point}", lambda point=point: not (kills / point).exists())
            job.open(gate)
        job.ended().succeeded()
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert counts == dict.fromkeys(range(480), 1)
    assert audited(job.folder)["updates"]["lost"] == 0


@pytest.mark.parametrize("on_loss", ["retrain", "accept"])
def test_what_a_death_between_a_move_and_its_checkpoint_costs_is_told_row_by_row(
    numbered, tmp_path, on_loss
):
    """With logs at servers, which end with a move: as with --durability=checkpoint."""
    kills = tmp_path / "kills"
    kills.mkdir()
    with RunningJob(
        "train",
        tmp_path,
        on_loss,
        environment={"GATES": "step-4 step-10", faults.VARIABLE: str(kills)},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="2",
        on_loss=on_loss,
        **LOGGED | {"durability": "peer"},
    ) as job:
        job.at_gate("step-4")
        scaled(job, 3)
        job.wait_taken()
        job.open("step-4")
        job.at_gate("step-10")
        armed = faults.arm(kills, "before-rows-removed", "ps-1")
        scaled(job, 4)
        assert not armed.exists()
        job.wait_taken(2)  # so ps-1 is back
        table = job.ask_master(methods.GET_ROUTING, pb.GetRoutingRequest()).routing
        job.kill("ps", 2)  # from then on nothing is lost
        job.open("step-10")
        ended = job.ended()
    (ended.succeeded if on_loss == "retrain" else ended.degraded)()
    report = audited(job.folder, clean=on_loss == "retrain")
    ids = np.arange(480)
    owners = Routing.from_message(table).owners[slot_of(ids)]
    expected = np.ones(480, int)
    for each in report["ranges"]:
        of_server = (ids >= each["start"]) & (ids < each["end"]) & (owners == each["server"])
        expected[of_server] += 1 if each["kind"] == "repeated" else -1
    _, counts = applied(tmp_path / "out")
    assert [counts.get(i, 0) for i in range(480)] == expected.tolist()
    again = {each["server"] for each in report["ranges"]}
    assert again == ({0, 2, 3} if on_loss == "retrain" else {1})
    assert ended.ledger["repeated"] == (60 if on_loss == "retrain" else 0)
    records = sum(each["end"] - each["start"] for each in report["ranges"])
    assert records == 60 * len(again)
    assert ended.result["servers"]["lost_pushes"] > 0


def test_rows_and_all_else_are_those_of_a_job_whose_servers_stay(
    trained, session_folder, clicks, tmp_path
):
    """Adam, batch normalization, dropout: bit for bit, whatever has moved."""
    with RunningJob(
        "train",
        tmp_path,
        "again",
        model_def="small_at_gates.custom_model",
        training_data=clicks,
        validation_data=clicks,
        output=tmp_path / "out",
        batch_size=25,
        servers="2",
        seed=7,
        pipeline_depth=0,
        durability="log",
        checkpoint_steps=1000,
        environment={"GATES": "step-4 step-9 step-15"},
    ) as job:
        for gate, servers in (("step-4", 4), ("step-9", 1), ("step-15", 3)):
            job.at_gate(gate)
            scaled(job, servers)
            job.open(gate)
        ended = job.ended().succeeded()
    assert model(tmp_path / "out") == model(session_folder / "trained-out")
    assert ended.result["metrics"] == trained.result["metrics"]


def test_a_job_that_is_resumed_has_what_moved(numbered, tmp_path):
    with RunningJob(
        "train",
        tmp_path,
        "resumed",
        environment={"GATES": "step-20"},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="1",
        **LOGGED,
    ) as job:
        job.at_gate("step-20")
        scaled(job, 3)
        job.wait_taken()
        job.kill_whole()
    resume(job.folder).check_returncode()
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert counts == dict.fromkeys(range(480), 1)


def test_slots_move_by_what_workers_pull_of_them(tmp_path):
    """Equal numbers of rows on two servers, and nine of ten pulls go to the first one."""
    numbers = np.arange(4000)
    first = Routing.even(2).owners[slot_of(numbers)] == 0
    ids = [*np.repeat(numbers[first][:240], 9), *numbers[~first][:240]]
    data = tmp_path / "skewed.csv"
    data.write_text("id\n" + "".join(f"{i}\n" for i in random.Random(1).sample(ids, len(ids))))
    with RunningJob(
        "train",
        tmp_path,
        "skewed",
        environment={"GATES": "step-400"},
        training_data=data,
        output=tmp_path / "out",
        servers="2",
        epochs=20,
        **(LOGGED | {"batch_size": 100}),
    ) as job:
        job.at_gate("step-400")
        command = [sys.executable, "-m", "shoal", "rebalance", str(job.folder.path)]
        done = completed(command)
        assert done.returncode == 0, done.stderr
        until("the move", lambda: moves(job) == 1)
        now = job.ask_master(methods.GET_ROUTING, pb.GetRoutingRequest())
        job.open("step-400")
        job.ended().succeeded()
    owners = Routing.from_message(now.routing).owners
    of_first = owners[slot_of(np.array(ids))] == 0
    assert 0.3 < of_first.mean() < 0.75  # it had 0.9; rows weigh as much as pulls
    _, counts = applied(tmp_path / "out")
    assert counts == {key: 20 * times for key, times in Counter(map(int, ids)).items()}


def test_what_cannot_be_is_refused_with_the_way_on(numbered, tmp_path):
    with RunningJob(
        "train",
        tmp_path,
        "refused",
        environment={"GATES": "step-3"},
        training_data=numbered[0],
        servers="2",
        durability="peer",
        checkpoint_steps=1000,
        **SERIAL,
    ) as job:
        job.at_gate("step-3")
        with pytest.raises(UserError, match="--servers: the servers of this job keep each other's"):
            asking.scale(LocalJob(job.folder), None, 1)
        command = [sys.executable, "-m", "shoal", "scale", str(job.folder.path)]
        said = completed(command)
        assert said.returncode == 2
        assert "give --workers, --servers or both" in said.stderr
        command = [sys.executable, "-m", "shoal", "rebalance", str(job.folder.path)]
        said = completed(command)
        assert "already do equal shares" in said.stdout
        job.open("step-3")
        job.ended().succeeded()
