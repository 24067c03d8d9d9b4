"""Workers of a whole job keep --staleness-bound, and do not wait for the dead."""

import os
import signal

import pytest

from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, run, until

pytestmark = pytest.mark.job

WAITING = "wait for workers"


def test_a_worker_waits_for_one_that_stands_still_until_that_is_killed(numbered, tmp_path):
    """480 records are 48 steps: far more than the one that waits may take alone."""
    training, _ = numbered
    with RunningJob(
        "train",
        tmp_path,
        "bounded",
        environment={"GATES": "record-100"},
        training_data=training,
        output=tmp_path / "out",
        num_minibatches_per_task=4,
        workers="2",
        staleness_bound=1,
        **SERIAL,
    ) as job:
        pid = job.at_gate("record-100")

        def waited(seconds):
            return job.wait_status(
                f"{seconds} s of waiting",
                lambda status: status.stage_seconds.get(WAITING, 0.0) > seconds,
            ).stage_seconds[WAITING]

        def stands_still():
            pushes = job.server_status(0).pushes
            waited(waited(0.0) + 1.0)
            return job.server_status(0).pushes == pushes

        # It may have waited before, and may take a step more. Unbound it would never wait.
        until("the other one to stand still", stands_still)
        os.kill(pid, signal.SIGKILL)
        job.open("record-100")
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 3, "deaths": 1}
    assert ended.ledger["trained_once"] == 480
    assert applied(tmp_path / "out")[0] == [480, 480]


def test_movielens_trains_as_well_as_one_worker_alone(movielens, tmp_path):
    """One seed and one epoch; the AUC of several is benchmarks/learning's to compare."""

    def auc(name, **fields):
        job = run(
            "train",
            tmp_path,
            name,
            model_zoo=movielens_zoo(),
            model_def="deepfm.custom_model",
            training_data=movielens / "train.parquet",
            validation_data=movielens / "validation.parquet",
            batch_size=256,
            **fields,
        )
        return job.succeeded().result["metrics"]["auc"]

    serial = auc("serial")
    assert serial > 0.7
    assert abs(auc("bounded", workers="2", staleness_bound=2) - serial) < 0.005


def movielens_zoo():
    from shoal.model_zoo.movielens import deepfm

    return os.path.dirname(deepfm.__file__)
