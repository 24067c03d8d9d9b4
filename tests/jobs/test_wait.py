"""A job that a Python program starts and steers while it goes on."""

import io
import threading

import pytest

import shoal
from shoal.client.show.display import LineDisplay
from tests.jobs.running import ZOO, until

pytestmark = pytest.mark.job


def test_a_program_scales_and_stops_its_job(tmp_path, numbered, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_TEST_GATE", str(tmp_path))
    job = shoal.train(
        model_zoo=ZOO,
        model_def="counting.custom_model",
        training_data=numbered[0],
        validation_data=numbered[1],
        evaluation_steps=5,
        batch_size=10,
        metrics_seconds=0.2,
        epochs=1000,  # far more than there is time for
        wait=False,
    )
    until("an evaluation", lambda: job.history["version"])
    assert job.history["records"][0] == 160
    job.scale(workers=2)
    until("the second worker", lambda: "workers 2/2" in job.status())
    until("its row", lambda: (job.metrics["workers"] == 2).any())
    assert until("its log", lambda: job.logs("worker", 1))
    shown = io.StringIO()

    def watch():
        with pytest.raises(shoal.JobFailedError):
            job.watch(LineDisplay(shown))

    watching = threading.Thread(target=watch)
    watching.start()
    until("a line of the display", lambda: "evaluation at version" in shown.getvalue())
    job.stop()
    watching.join()
    with pytest.raises(shoal.JobFailedError) as caught:
        job.result()
    assert caught.value.result.state == "stopped"
    assert job.status().startswith("failed: ")
