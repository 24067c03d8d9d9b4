"""Each record's gradient is applied once, and what was applied twice is in the ledger."""

import os
import signal
from collections import Counter

import pytest

from tests.jobs.results import PIPELINED, SERIAL, applied
from tests.jobs.running import RunningJob, audited, until

pytestmark = pytest.mark.job


def test_kills_between_servers_of_all_workers_and_in_evaluation(numbered, tmp_path):
    training, validation = numbered
    gates = "record-100 record-205 record-395 evaluate-1085"
    job = RunningJob(
        "train",
        tmp_path,
        "counted",
        environment={"GATES": gates},
        training_data=training,
        validation_data=validation,
        output=tmp_path / "out",
        num_minibatches_per_task=4,
        workers="2",
        servers="2",
        **SERIAL,
    )
    with job:
        # A push that one server applies, and the other may or may not.
        first = job.at_gate("record-100")
        job.at_gate("record-205", "record-395")  # the other one pushes nothing meanwhile
        before = job.server_status(0).pushes
        job.kill("ps", 1, signal.SIGSTOP)
        job.open("record-100")
        until("the push to ps-0", lambda: job.server_status(0).pushes > before)
        os.kill(first, signal.SIGKILL)
        job.kill("ps", 1, signal.SIGCONT)

        # Both at once, each in the middle of a task.
        both = {job.at_gate("record-205"), job.at_gate("record-395")}
        assert len(both) == 2
        for pid in both:
            os.kill(pid, signal.SIGKILL)
        job.open("record-205", "record-395")

        os.kill(job.at_gate("evaluate-1085"), signal.SIGKILL)
        job.open("evaluate-1085")
        ended = job.ended().succeeded()

    ledger = ended.ledger
    assert ledger["total"] == 480
    report = audited(job.folder)
    assert report["records"]["more"] == ledger["repeated"]
    assert len(report["deaths"]) == 4
    # The last ones need no successor: another worker may end the job before it is there.
    assert report["deaths"][0]["recovered"]
    assert ended.result["workers"] == {"starts": 6, "deaths": 4}
    total, counts = applied(tmp_path / "out")
    assert min(counts.values()) >= 1
    assert set(counts) == set(range(480))
    # A repeated record was applied twice by one of the two servers.
    assert sum(total) == 2 * 480 + ledger["repeated"]
    # One push was held up, and one before it may have been under way still.
    assert ledger["repeated"] in (0, 10, 20)
    assert sum(counts.values()) - 480 <= ledger["repeated"]
    # Evaluated whole, nothing twice, though one task was begun twice.
    assert ended.result["metrics"]["seen"] == 160
    assert ended.result["metrics"]["ids"] == sum(range(1000, 1160))


def test_a_feed_that_shuffles_repeats_whole_tasks(numbered, tmp_path):
    training, _ = numbered
    with RunningJob(
        "train",
        tmp_path,
        "shuffled",
        environment={"GATES": "step-7", "SHUFFLE": "1"},
        training_data=training,
        output=tmp_path / "out",
        num_minibatches_per_task=12,
        **SERIAL,
    ) as job:
        pid = job.at_gate("step-7")
        until("the pushes before it", lambda: job.server_status(0).pushes == 6)
        os.kill(pid, signal.SIGKILL)
        job.open("step-7")
        ended = job.ended().succeeded()
    # Six batches had been applied of the task, which is unknown records of it.
    assert ended.ledger["repeated"] == 120
    assert ended.ledger["trained_once"] == 360
    total, counts = applied(tmp_path / "out")
    assert total == [480 + 60] * 2
    assert Counter(counts.values()) == {1: 420, 2: 60}


def test_a_worker_killed_with_a_task_leased_ahead(numbered, tmp_path):
    """It dies with the last push of a task under way and two batches of the next one pulled."""
    training, _ = numbered
    with RunningJob(
        "train",
        tmp_path,
        "ahead",
        environment={"GATES": "step-4"},
        training_data=training,
        output=tmp_path / "out",
        num_minibatches_per_task=4,
        servers="2",
        **PIPELINED,
    ) as job:
        pid = job.at_gate("step-4")
        # The evaluation has pulled nothing yet: these are six batches, four of the task.
        until("pulls for the next task", lambda: job.server_status(0).pulls == 6)
        job.kill("ps", 1, signal.SIGSTOP)
        job.open("step-4")
        until("the push to ps-0", lambda: job.server_status(0).pushes == 4)
        os.kill(pid, signal.SIGKILL)
        job.kill("ps", 1, signal.SIGCONT)
        ended = job.ended().succeeded()
    ledger = ended.ledger
    assert ledger["trained_once"] + ledger["repeated"] == 480
    # ps-1 may have applied the push before it was told that the worker is dead.
    assert ledger["repeated"] in (0, 10)
    report = audited(job.folder)
    assert report["records"]["more"] == ledger["repeated"]
    total, counts = applied(tmp_path / "out")
    assert sum(total) == 2 * 480 + ledger["repeated"]
    assert set(counts) == set(range(480))
    staleness = ended.result["staleness"]
    # Every push applied anywhere is in the histogram, and no row was older than the depth.
    assert sum(staleness["histogram"]) == sum(ended.result["versions"].values())
    assert 1 <= staleness["maximum"] <= 2


@pytest.mark.parametrize("left", [5, 0])
def test_records_that_feed_leaves_out_are_not_taken_for_lost(numbered, tmp_path, left):
    """All that it leaves is in one task, so one of the workers pushes nothing."""
    job = RunningJob(
        "train",
        tmp_path,
        "filtered",
        environment={"LEAVES": str(left)},
        training_data=numbered[0],
        output=tmp_path / "out",
        num_minibatches_per_task=4,
        workers="2",
        servers="2",
        **SERIAL,
    )
    with job:
        ended = job.ended()
    if not left:
        assert ended.code == 2
        assert "the model's feed left none of the 480 records of --training-data" in ended.err
        return
    assert ended.succeeded().ledger["trained_once"] == 480
    assert applied(tmp_path / "out")[1] == dict.fromkeys(range(left), 1)
    assert audited(job.folder)["records"]["once"] == 480
