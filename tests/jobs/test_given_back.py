"""Workers that nothing is left for end before the job does; one that is needed comes again."""

import os
import signal

import pytest

from shoal.proto import faults
from tests.jobs.running import RunningJob, audited, until

pytestmark = pytest.mark.job


def test_a_worker_without_work_is_given_back_and_one_that_dies_at_the_last_task_comes_again(
    tmp_path, numbered
):
    """1. a worker stands at the last task of the evaluation; 2. the other one has ended, which is
    told; 3. the first is killed there; 4. its successor does the rest."""
    training, validation = numbered
    points = tmp_path / "faults"
    points.mkdir()
    held = faults.hold(points, "metrics-computed")
    with RunningJob(
        "train",
        tmp_path,
        "last",
        environment={faults.VARIABLE: str(points)},
        model_def="counting.custom_model",
        training_data=training,
        validation_data=validation,
        output=tmp_path / "out",
        batch_size=48,
        workers="2",
    ) as job:
        status = job.wait_status(
            "word of it", lambda status: any("given back" in text for text in status.messages)
        )
        assert (status.state, status.workers_wanted) == ("evaluating", 1)
        (told,) = (text for text in status.messages if "given back" in text)
        gone = int(told.partition("worker-")[2][0])
        until("the end of its process", lambda: job.pid("worker", gone) is None)
        at_work = job.pid("worker", 1 - gone)
        assert at_work is not None
        os.kill(at_work, signal.SIGKILL)
        job.wait_status("its death", lambda status: any("died" in m for m in status.messages))
        held.unlink()
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 3, "deaths": 1}
    assert (tmp_path / "out" / "manifest.json").is_file()
    (death,) = audited(job.folder)["deaths"]
    assert death["who"] == f"worker-{1 - gone}"
