"""--evaluation-workers in a whole job: training goes on while an evaluation stands still."""

import pytest

from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, until

pytestmark = pytest.mark.job


def test_training_goes_on_while_a_worker_of_its_own_evaluates(numbered, tmp_path):
    training, validation = numbered
    with RunningJob(
        "train",
        tmp_path,
        "apart",
        environment={"GATES": "evaluate-1085"},
        training_data=training,
        validation_data=validation,
        output=tmp_path / "out",
        workers="2",
        evaluation_workers=1,
        evaluation_steps=5,
        **SERIAL,
    ) as job:
        pid = job.at_gate("evaluate-1085")
        until("all pushes", lambda: job.server_status(0).pushes == 48)
        job.open("evaluate-1085")
        ended = job.ended().succeeded()
    assert pid
    assert ended.result["metrics"]["seen"] == 160
    evaluations = ended.result["evaluations"]
    assert len(evaluations) >= 2
    assert 5 <= evaluations[0]["version"] < 48
    assert applied(tmp_path / "out")[1] == dict.fromkeys(range(480), 1)
