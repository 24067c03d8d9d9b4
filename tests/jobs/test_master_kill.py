"""The master is killed: the next one goes on, and nobody else notices."""

import os
from pathlib import Path

import pytest

from shoal.master.job.events import JobBegun, MasterRestarted, ServerRegistered
from shoal.master.journal.reading import read
from shoal.proto import faults
from tests.jobs.results import PIPELINED, SERIAL, applied
from tests.jobs.running import RunningJob, audited, until

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("own")]


@pytest.fixture
def points(tmp_path):
    """Have a process die at a named point, once: points("before-journal") -> when it did."""
    folder = tmp_path / "kill-at"
    folder.mkdir()

    def arm(name):
        (folder / name).touch()
        return lambda: not (folder / name).exists()

    arm.environment = {faults.VARIABLE: str(folder)}
    return arm


def restarted(job, count):
    """Wait until the journal has so many new starts of the master."""

    def look():
        return job.events().count(MasterRestarted()) >= count

    until(f"start {count} of the master again", look)


def test_kills_of_the_master_cost_nothing(numbered, tmp_path, points):
    """In the start of a process, between two tasks, around the journal, in evaluation."""
    training, validation = numbered
    gates = "record-100 record-205 evaluate-1085"
    points("after-start")
    with RunningJob(
        "train",
        tmp_path,
        "masters",
        environment={"GATES": gates, **points.environment},
        training_data=training,
        validation_data=validation,
        output=tmp_path / "out",
        num_minibatches_per_task=4,
        workers="2",
        servers="2",
        relaunch_limit=9,
        **PIPELINED,
    ) as job:
        pids = {job.at_gate("record-100"), job.at_gate("record-205")}
        job.kill("master")  # both tasks are under way, and stay leased
        job.wait_status("the next master", lambda status: status.workers_alive == 2)
        assert job.call_status().ledger.total == 480
        restarted(job, 2)  # that is in the journal before the next death

        died = points("before-journal")
        job.open("record-100")
        until("the death before the journal", died)
        restarted(job, 3)
        died = points("after-journal")
        job.open("record-205")
        until("the death after the journal", died)

        pids.add(job.at_gate("evaluate-1085"))
        restarted(job, 4)
        job.kill("master")
        job.open("evaluate-1085")
        ended = job.ended().succeeded()
        assert len(pids) == 2, "a worker was replaced"
    assert ended.ledger["trained_once"] == 480
    assert ended.result["workers"] == {"starts": 2, "deaths": 0}
    assert sum("master was started again" in text for text in ended.result["messages"]) == 5
    report = audited(job.folder)
    assert report["records"] == {
        "total": 480,
        "once": 480,
        "more": 0,
        "never": 0,
        "failed": 0,
        "lost": 0,
    }
    assert [death["who"] for death in report["deaths"]] == ["master"] * 5
    total, counts = applied(tmp_path / "out")
    assert total == [480] * 2
    assert set(counts.values()) == {1}
    assert ended.result["metrics"]["seen"] == 160
    assert ended.result["metrics"]["ids"] == sum(range(1000, 1160))


def test_worker_and_master_die_together(numbered, tmp_path):
    """What became of the worker's task is known from the servers, not from the dead."""
    with RunningJob(
        "train",
        tmp_path,
        "together",
        environment={"GATES": "record-205"},
        training_data=numbered[0],
        output=tmp_path / "out",
        num_minibatches_per_task=4,
        servers="2",
        **SERIAL,
    ) as job:
        worker = job.at_gate("record-205")
        master = job.pid("master")
        os.kill(worker, 19)
        os.kill(master, 9)
        os.kill(worker, 9)
        job.open("record-205")
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 2, "deaths": 1}
    assert ended.ledger["trained_once"] == 480
    assert applied(tmp_path / "out")[0] == [480] * 2


def test_the_master_dies_when_a_server_has_registered_and_was_not_answered(
    numbered, tmp_path, points
):
    """The server registers with the next master again, if need be while a worker trains."""
    folder = Path(points.environment[faults.VARIABLE])
    held = faults.hold(folder, "before-restore-plan", "ps-0")
    with RunningJob(
        "train",
        tmp_path,
        "unanswered",
        environment=points.environment,
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="1",
        workers="1",
        durability="checkpoint",
        on_loss="accept",
        **PIPELINED,
    ) as job:
        # It is started when the first event is written; the next one is its registration.
        until("the server", lambda: job.pid("ps", 0))
        died = points("after-journal")
        held.unlink()
        until("the death after the journal", died)
        ended = job.ended().succeeded()
    events = list(read(job.folder.journal)[1])
    kinds = [type(entry.event) for entry in events]
    assert kinds[:2] == [JobBegun, ServerRegistered]
    assert {ServerRegistered, MasterRestarted} <= {*kinds[2:]}
    assert ended.ledger["trained_once"] == 480
    assert ended.result["servers"]["lost_records"] == 0
    total, counts = applied(tmp_path / "out")
    assert total == [480] * 2
    assert set(counts.values()) == {1}
