"""A worker killed in the middle of a real training."""

import random

import pytest

from tests.jobs.running import RunningJob, run

pytestmark = pytest.mark.job

EPOCHS = 3
"""Training takes long enough for a busy machine to look at it, kill, and be seen."""


def fields(movielens):
    return {
        "model_zoo": movielens.parents[1] / "model_zoo" / "movielens",
        "model_def": "deepfm.custom_model",
        "training_data": movielens / "train.parquet",
        "validation_data": movielens / "validation.parquet",
        "workers": "2",
        "servers": "2",
        "epochs": EPOCHS,
    }


@pytest.fixture(scope="module")
def undisturbed(movielens, tmp_path_factory):
    return run("train", tmp_path_factory.mktemp("calm"), "calm", **fields(movielens)).succeeded()


@pytest.mark.usefixtures("own")
def test_a_killed_worker_costs_nothing_but_time(undisturbed, movielens, tmp_path):
    chance = random.Random(1)
    total = undisturbed.ledger["total"]
    moment, victim = chance.randrange(1, total * 3 // 4), chance.randrange(2)
    with RunningJob("train", tmp_path, "killed", **fields(movielens)) as job:
        job.wait_status(f"{moment} records", lambda status: status.ledger.trained_once >= moment)
        job.kill("worker", victim)
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 3, "deaths": 1}
    assert any(f"worker-{victim} died (signal 9" in text for text in ended.result["messages"])
    assert ended.ledger["total"] == total == EPOCHS * 80367
    assert ended.ledger["failed"] == 0
    # At most the few pushes that were under way.
    assert ended.ledger["repeated"] <= 3 * 256
    assert ended.result["metrics"]["auc"] == pytest.approx(
        undisturbed.result["metrics"]["auc"], abs=0.005
    )
