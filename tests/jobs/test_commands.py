"""A job of this machine, driven from another terminal: status, jobs, logs, scale, stop."""

import json
import re
import subprocess
import sys

import pytest

from tests.jobs.running import RunningJob, until

pytestmark = pytest.mark.job


@pytest.fixture
def shoal(tmp_path):
    """Run a command beside the job, and return what it printed."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KUBECONFIG": "/dev/null"}

    def run(*line, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "shoal", *line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        # Without the lines of tables.
        return " ".join(re.sub("[\u2500-\u257f]", " ", done.stdout + done.stderr).split())

    return run


def test_a_running_job_is_shown_scaled_and_stopped(shoal, numbered, tmp_path):
    (tmp_path / "shoal-jobs").mkdir()
    job = RunningJob(
        "train",
        tmp_path / "shoal-jobs",
        "driven",
        environment={"GATES": "step-3"},
        model_def="counting.custom_model",
        training_data=numbered[0],
        batch_size=10,
        epochs=1000,  # far more than there is time for
    )
    with job:
        job.at_gate("step-3")
        shown = shoal("status", "driven")
        assert "driven training" in shown
        assert f"{job.pid('worker')} shoal-jobs/driven/logs/worker-0." in shown
        assert f"master {job.pid('master')}" in shown
        assert "driven running 1 1" in shoal("jobs")
        (line,) = json.loads(shoal("jobs", "--json"))
        assert (line["name"], line["state"], line["workers"]) == ("driven", "running", 1)
        now = json.loads(shoal("status", "driven", "--json"))
        assert (now["state"], [each["name"] for each in now["workers"]]) == (
            "training",
            ["worker-0"],
        )
        logged = shoal("logs", "driven", "worker", "0")
        assert logged
        # It may have logged more meanwhile.
        assert shoal("logs", str(job.folder.path), "worker").startswith(logged)
        told = shoal("logs", "driven", "worker", "7", code=2)
        assert "job driven has no process worker-7; there are: master, ps-0, worker-0" in told
        assert "now wants 2 workers" in shoal("scale", "driven", "--workers", "2")
        job.wait_status("a second worker", lambda status: status.workers_alive == 2)
        assert until("its log", lambda: shoal("logs", "driven", "master"))
        assert "end it with shoal stop driven; then remove" in shoal("delete", "driven", code=2)
        assert "job driven is stopping" in shoal("stop", "driven")
        job.open("step-3")
        ended = job.ended()
    assert ended.result["state"] == "stopped"
    assert "driven stopped" in shoal("jobs")
    now = json.loads(shoal("status", "driven", "--json"))
    assert (now["state"], now["ended"], now["ledger"]["total"] > 0) == ("stopped", True, True)
    assert "state stopped" in shoal("status", "driven")
    for command in (["stop", "driven"], ["scale", "driven", "--workers", "1"]):
        assert "job driven does not run: it has ended: stopped" in shoal(*command, code=2)


def test_a_job_that_was_killed_says_how_to_go_on(shoal, numbered, tmp_path):
    (tmp_path / "shoal-jobs").mkdir()
    with RunningJob(
        "train",
        tmp_path / "shoal-jobs",
        "killed",
        environment={"GATES": "step-3"},
        model_def="counting.custom_model",
        training_data=numbered[0],
        batch_size=10,
    ) as job:
        job.at_gate("step-3")
        job.process.kill()
        job.process.wait()
        job.kill("master")
        assert "killed killed" in shoal("jobs")
        told = shoal("status", "killed", code=2)
        assert "it was killed; to go on with it: shoal train --resume shoal-jobs/killed" in told


def test_neither_a_job_nor_a_cluster(shoal):
    told = shoal("status", "nothing", code=2)
    assert "there is no job nothing on this machine, in ./shoal-jobs" in told
    assert "no Kubernetes cluster is set up" in told
    assert "there are no jobs in ./shoal-jobs; and no Kubernetes" in shoal("jobs", code=2)
