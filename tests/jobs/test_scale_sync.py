"""Servers that come and leave while a job trains with --sync."""

from collections import Counter

import pytest

from shoal.proto import faults
from tests.jobs.results import COUNTING, applied, model
from tests.jobs.running import RunningJob, audited
from tests.jobs.test_scale_servers import scaled

pytestmark = pytest.mark.job

EPOCHS = 8


@pytest.mark.parametrize(("place", "numbers"), [("file", (1, 3, 2, 3)), ("peer", (2, 4, 2, 3))])
def test_each_gradient_is_in_one_update_on_servers_that_come_leave_and_die(
    numbered, tmp_path, place, numbers
):
    kills = tmp_path / "kills"
    kills.mkdir()
    points = ["rows-taken", "pushes-frozen", "before-move-committed", "before-rows-removed"]
    with RunningJob(
        "train",
        tmp_path,
        "synchronous",
        environment={"GATES": "step-4", "APART": "0.2", faults.VARIABLE: str(kills)},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="3",
        epochs=EPOCHS,
        num_minibatches_per_task=20,
        sync=True,
        grads_to_wait=2,
        durability=place,
        checkpoint_steps=1000,
        relaunch_limit=100,
        **COUNTING,
    ) as job:
        job.at_gate("step-4")
        job.open("step-4")
        for servers, point in zip(numbers, points, strict=True):
            faults.arm(kills, point)
            scaled(job, servers)
        job.open("hurry")
        ended = job.ended().succeeded()
    assert list(kills.iterdir()) == []
    total, rows = applied(tmp_path / "out")
    assert total == [240 * EPOCHS, 240 * EPOCHS]
    assert Counter(rows.values()) == {0.5 * EPOCHS: 480}
    counts = ended.result["sync"]
    assert (counts["updates"], counts["short"]) == (24 * EPOCHS, 0)
    assert audited(job.folder)["updates"]["lost"] == 0


def test_the_model_is_that_of_a_job_whose_servers_stay_bit_for_bit(clicks, tmp_path):
    def run(name, numbers):
        with RunningJob(
            "train",
            tmp_path,
            name,
            environment={"APART": "0.2"},
            model_def="small_at_gates.custom_model",
            training_data=clicks,
            output=tmp_path / f"{name}-out",
            batch_size=25,
            epochs=EPOCHS,
            servers="2",
            seed=7,
            sync=True,
            durability="log",
            checkpoint_steps=1000,
        ) as job:
            job.wait_status("training", lambda status: status.records_done > 0)
            for servers in numbers:
                scaled(job, servers)
            job.open("hurry")
            job.ended().succeeded()
        return model(tmp_path / f"{name}-out")

    assert run("moved", (4, 1, 3)) == run("stays", ())
