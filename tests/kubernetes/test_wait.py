"""A job on the cluster that a Python program starts and steers while it goes on."""

import json
import shutil

import pytest

import shoal as api
from shoal.client.ask.cluster_jobs import cluster_job
from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.image import IMAGE, PACKAGES_MOUNT, packages
from tests.kubernetes.jobs import ZOO, Watched, left_of, until

NAME = "beside"


def test_a_program_sees_scales_and_stops_its_job(shoal, movielens, namespace, monkeypatch):
    monkeypatch.chdir(shoal.path)
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    shutil.copytree(ZOO, shoal.path / "zoo")
    (shoal.path / "hold").touch()
    mounts = {shoal.path: "/work", packages(): f"{PACKAGES_MOUNT},readOnly"}
    job = api.train(
        image=IMAGE,
        namespace=namespace,
        job_name=NAME,
        master_resources="cpu=0.01,memory=50Mi",
        ps_resources="cpu=0.01,memory=50Mi",
        worker_resources="cpu=0.02,memory=200Mi",
        volume=";".join(f"hostPath={path},mount={mount}" for path, mount in mounts.items()),
        model_zoo="/work/zoo",
        model_def="held.custom_model",
        training_data="/work/train.parquet",
        num_minibatches_per_task=1,
        workers="1",
        metrics_seconds=0.5,
        wait=False,
    )
    watched = Watched(NAME, namespace)
    until("a worker trains", lambda: watched.training_with(1))
    # Here, as they come: the program has them, and the file that `shoal compare` reads.
    csv = job.job_dir / "metrics.csv"
    until("metrics", csv.is_file)
    until("those of training", lambda: (job.metrics["records"] > 0).any())

    shutil.copytree(job.job_dir, shoal.path / "other")

    def compared():
        done = shoal("compare", NAME, str(shoal.path / "other"), "--json")
        assert done.returncode == 0, done.stderr
        return [(each["place"], each["state"]) for each in json.loads(done.stdout)["jobs"]]

    assert compared() == [("on Kubernetes", "running")] * 2
    job.scale(workers=2)
    until("the second worker", lambda: "workers 2/2" in job.status())
    until("its row", lambda: (job.metrics["workers"] == 2).any())
    assert until("its log", lambda: job.logs("worker", 1))
    # The rows move while the workers stand still; the second server's pod goes again.
    job.scale(servers=2)
    until("a move", lambda: any("slots have moved" in each for each in job.messages))
    assert until("its log", lambda: job.logs("ps", 1))
    job.scale(servers=1)
    until("the way back", lambda: sum("slots have moved" in each for each in job.messages) == 2)
    job.stop()
    with pytest.raises(api.JobFailedError) as caught:
        job.result()
    assert caught.value.result.state == "stopped"
    assert job.metrics.iloc[-1]["state"] == "stopped"
    assert "serving on" in job.logs()
    assert left_of(NAME, namespace) == ""
    assert compared() == [("on Kubernetes", "stopped"), ("on Kubernetes", "deleted")]
    with pytest.raises(api.UserError, match=f"job {NAME}"):
        cluster_job(NAME, namespace).handle.job()
