"""The commands for jobs in a cluster, by a user who has the Role shoal-user and no more."""

import json
import shutil

import pytest

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.jobs import ZOO, Watched, left_of, result_in, until
from tests.kubernetes.users import user as user

NAME = "hers"


def test_a_job_is_followed_scaled_stopped_audited_and_resumed(user, movielens, namespace):
    shutil.copy(movielens / "validation.parquet", user.path / "train.parquet")
    shutil.copytree(ZOO, user.path / "zoo")
    hold = user.path / "hold"
    hold.touch()
    flags = user.flags(
        NAME,
        model_zoo="/work/zoo",
        model_def="held.custom_model",
        training_data="/work/train.parquet",
        job_dir="/work/job",
        num_minibatches_per_task="1",
        checkpoint_steps="4",
        workers="1",
    )
    job = Watched(NAME, namespace)

    def run(*words, code=0):
        done = user(*words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def of_job(command, *words, code=0):
        return run(command, NAME, *words, "--namespace", namespace, code=code)

    # Its folder is on a volume, so nothing has to be warned of.
    assert "warning" not in run("train", *flags, "--detach")
    until("a worker trains", lambda: job.training_with(1))
    until(
        "a checkpoint",
        lambda: (user.path / "job/checkpoints/checkpoint-00000001/manifest.json").exists(),
    )

    assert "running" in run("jobs", "--namespace", namespace)
    assert "--all-namespaces: you may not list jobs" in run("jobs", "-A", code=2)
    now = json.loads(of_job("status", "--json"))
    assert (now["namespace"], now["state"]) == (namespace, "training")
    assert {each["pod"] for each in now["pods"]} >= {f"{NAME}-ps-0", f"{NAME}-worker-0"}
    status = of_job("status")
    assert "training" in status
    assert f"{NAME}-ps-0" in status
    assert "serving on" in of_job("logs")
    assert "listening on" in of_job("logs", "ps", "0")
    assert of_job("logs", "worker", "0") != ""
    assert "there are: master" in of_job("logs", "worker", "7", code=2).replace(f"{NAME}-", "")
    assert "job hers now wants 2 workers" in of_job("scale", "--workers", "2")
    until("two workers train", lambda: job.training_with(2))
    assert "everything is accounted for" in of_job("audit")
    assert "is running" in run("train", "--resume", NAME, "--namespace", namespace, code=2)
    assert "there is a job hers" in run("train", *flags, "--detach", code=2)

    of_job("stop")
    until("the result", lambda: job.handle.result() is not None)
    assert "stopped" in run("jobs", "--namespace", namespace)
    assert "stopped" in of_job("status")
    assert "not reached" in of_job("status")
    assert "job hers: stopped" in of_job("audit")
    hold.unlink()
    words = ("--resume", NAME, "--namespace", namespace, "--workers", "1")
    assert "the job was resumed from checkpoint" in run("train", *words)
    folder = f"shoal-jobs/{NAME}"
    ledger = result_in(user, NAME)["ledger"]
    assert ledger["trained_once"] + ledger["repeated"] == ledger["total"] == 19_633
    assert "everything is accounted for" in run("audit", folder)
    assert "has succeeded" in run("train", "--resume", folder, code=2)
    assert left_of(NAME, namespace) == ""

    # A new job must not mix with what is on the volume.
    shutil.rmtree(user.path / folder)
    assert "a job has run before in /work/job" in run("train", *flags, code=2)
    assert left_of(NAME, namespace) == ""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("raising_model", ["ValueError: the seventh hidden layer is missing"]),
        ("aborting_model", ["allows no further start", "Fatal Python error"]),
    ],
)
def test_what_ended_a_worker_reaches_the_user(shoal, movielens, namespace, model, said):
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    shutil.copytree(ZOO, shoal.path / "zoo")
    name = model.replace("_", "-")
    flags = shoal.flags(
        name,
        model_zoo="/work/zoo",
        model_def=f"crashing.{model}",
        training_data="/work/train.parquet",
        workers="1",
        relaunch_limit="1",
    )
    done = shoal("train", *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "warning: the job takes no checkpoints" in done.stdout
    failure = result_in(shoal, name)["failure"]
    text = failure["message"] + (failure["traceback"] or "")
    for part in (*said, "crashing.py", model):
        assert part in text, text
        assert part in done.stderr
    assert left_of(name, namespace) == ""
