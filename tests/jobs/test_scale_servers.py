"""Servers that come and leave while a job trains."""

import pytest

from shoal.client import local_master
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited, until

pytestmark = pytest.mark.job


def moved(job, count):
    """Wait until the job has completed so many moves, by its journal."""
    until(
        f"{count} moves",
        lambda: sum(event.method == "move_ended" for event in job.events()) >= count,
    )


@pytest.mark.parametrize("durability", ["log", "checkpoint"])
def test_servers_come_and_leave_and_each_push_is_applied_once(numbered, tmp_path, durability):
    with RunningJob(
        "train",
        tmp_path,
        "scaled",
        environment={"GATES": "step-8 step-16 step-24"},
        training_data=numbered[0],
        output=tmp_path / "out",
        num_ps=1,
        num_minibatches_per_task=4,
        durability=durability,
        checkpoint_steps=1000,
        **SERIAL,
    ) as job:
        job.at_gate("step-8")
        local_master.scale(job.folder, None, 3)
        moved(job, 1)
        job.open("step-8")
        job.at_gate("step-16")
        local_master.scale(job.folder, None, 2)
        moved(job, 2)
        until("the end of ps-2", lambda: job.pid("ps", 2) is None)
        job.open("step-16")
        job.at_gate("step-24")
        job.kill("ps", 1)
        job.open("step-24")
        ended = job.ended().succeeded()
    total, counts = applied(tmp_path / "out")
    assert len(counts) == 480
    if durability == "log":
        assert total == [480, 480]
        assert set(counts.values()) == {1}
        assert ended.result["servers"]["lost_pushes"] == 0
        audited(job.folder)
