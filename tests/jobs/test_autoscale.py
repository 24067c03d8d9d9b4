"""--autoscale in a whole job: a second worker that adds nothing comes, and goes again."""

import pytest

from tests.jobs.running import RunningJob
from tests.jobs.test_metrics_pages import page, targets

pytestmark = pytest.mark.job


def test_a_worker_is_tried_and_one_that_adds_nothing_goes_again(tmp_path, numbered):
    training, _ = numbered
    with RunningJob(
        "train",
        tmp_path,
        "alone",
        environment={"LOCK": str(tmp_path / "lock"), "TOGETHER": "0.1"},
        model_def="throttled.custom_model",
        training_data=training,
        batch_size=10,
        epochs=1000,
        workers="1:2",
        serve_metrics=True,
    ) as job:
        status = job.wait_status(
            "the end of the search",
            lambda status: any("from 2 to 1" in text for text in status.messages),
        )
        job.wait_status("the end of worker-1", lambda status: status.workers_alive == 1)
        found = page(targets(job)["master", 0])
        assert found["shoal_scalings_total", "up"] == found["shoal_scalings_total", "down"] == 1
    (more, fewer) = (text for text in status.messages if "number of workers goes" in text)
    assert "from 1 to 2: no smaller number was measured" in more
    assert "of the mean speed of the 1 before" in fewer


def test_a_worker_that_is_far_slower_than_the_others_is_replaced(tmp_path, numbered):
    training, _ = numbered
    with RunningJob(
        "train",
        tmp_path,
        "slow",
        environment={"SLOW_ONE": str(tmp_path / "slow-one"), "APART": "0.05"},
        model_def="throttled.custom_model",
        training_data=training,
        batch_size=10,
        num_minibatches_per_task=4,
        epochs=1000,
        workers="2:2",
    ) as job:
        status = job.wait_status(
            "a worker in the place of the slow one",
            lambda status: any("was started again" in text for text in status.messages),
        )
        job.wait_status("both workers", lambda status: status.workers_alive == 2)
    (replaced,) = (text for text in status.messages if "is replaced: its step takes" in text)
    assert "for 3 times 20 s" in replaced
    assert not any("died" in text for text in status.messages)
