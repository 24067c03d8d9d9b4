"""MovieLens on a real cluster, through all that a cluster does to a job.

One job, as starting TensorFlow in three pods is most of the time: trained by `shoal train
--image`, with real preemption, a killed master and a deleted worker.
"""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.conftest import ROOT, SECONDS, kubectl
from tests.kubernetes.image import IMAGE
from tests.kubernetes.jobs import (
    Watched,
    following,
    held_job,
    kill,
    left_of,
    process_of,
    result_in,
    until,
)
from tests.kubernetes.proxy import Proxy

NAME = "deepfm"


@pytest.fixture(scope="module")
def priorities():
    path = str(ROOT / "deploy" / "base" / "priorities.yaml")
    kubectl("apply", "-f", path)
    yield
    kubectl("delete", "-f", path)


@pytest.fixture
def proxy():
    with Proxy() as made:
        yield made


def rival(namespace, replicas):
    """A Deployment of higher priority, each of whose pods takes a worker's place."""
    container = {
        "name": "rival",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": "600m"}},
    }
    spec = {
        "priorityClassName": "shoal-high",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    labels = {"app": "rival"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "rival"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
    kubectl("apply", "-f", "-", namespace=namespace, text=json.dumps(deployment))


def test_a_job_through_preemption_and_kills(shoal, movielens, namespace, priorities, proxy):
    for name in ("train.parquet", "validation.parquet"):
        shutil.copy(movielens / name, shoal.path)
    flags, hold = held_job(
        shoal,
        NAME,
        validation_data="/work/validation.parquet",
        workers="3",
        epochs="2",
        priority="master=high,ps=high,worker=low",
        worker_resources="cpu=0.45,memory=300Mi",
        relaunch_limit="0",
    )
    template = shoal.path / "template.yaml"
    template.write_text(proxy.pod_template())
    flags += ["--pod-template", str(template)]
    client = shoal.path / "client.json"
    client.write_text(proxy.kubeconfig())
    shoal.kubeconfig = str(client)
    job = Watched(NAME, namespace)
    with following(shoal, *flags) as (train, said):
        until("three workers train", lambda: train.poll() is not None or job.training_with(3))
        assert train.poll() is None, said()

        # 1. A Deployment of higher priority takes the room of two workers; one goes on.
        rival(namespace, 2)
        until("two workers wait for room", lambda: job.pods("Pending") == 2)
        before = job.done()
        until("one worker goes on", lambda: job.done() > before)

        # 2. The master is killed with SIGKILL, and goes on.
        kill("shoal.master.in_cluster", namespace)
        until("another master", lambda: process_of("shoal.master.in_cluster", namespace))
        until("it goes on", lambda: job.done() > before)

        # 3. The Deployment gives the room back; the workers return by themselves.
        rival(namespace, 0)
        until("three workers train again", lambda: job.training_with(3))

        # 4. The API server is away for the master and for us, while a worker's pod is deleted
        #    by force: the others go on, and when it is back the worker is replaced.
        before = job.times("worker-0 was started again")
        proxy.cut()
        pod = f"{NAME}-worker-0"
        kubectl("delete", "pod", pod, "--force", "--grace-period=0", namespace=namespace)
        # First of all: a master that cannot renew its Lease ends, and another one goes on later.
        job.goes_on()
        until("the client says so", lambda: "API server does not answer" in said())
        proxy.mend()
        until("the worker is back", lambda: job.said("worker-0 was started again", before + 1))

        # 5. The wish becomes two workers.
        scaled = shoal("scale", NAME, "--workers", "2", "--namespace", namespace)
        assert scaled.returncode == 0, scaled.stderr
        until("two workers train", lambda: job.training_with(2))
        hold.unlink()
        assert train.wait(SECONDS) == 0, said()

    result = result_in(shoal, NAME)
    audit = shoal("audit", f"shoal-jobs/{NAME}")
    assert (audit.returncode, "everything is accounted for" in audit.stdout) == (0, True)
    ledger = result["ledger"]
    assert ledger["total"] == 2 * 80_367
    assert ledger["trained_once"] + ledger["repeated"] == ledger["total"], ledger
    assert ledger["failed"] == 0
    assert result["workers"]["deaths"] >= 3
    # Locally three epochs give 0.790, two of them 0.785.
    assert result["metrics"]["auc"] > 0.77
    assert (shoal.path / "model" / "model.keras").exists()
    tables = list((shoal.path / "model" / "tables").glob("*.parquet"))
    assert sum(pq.read_metadata(table).num_rows for table in tables) > 1000
    # The display was fed through the API server, and nothing of the job is left.
    assert "training: tasks" in said()
    logs = shoal.path / "shoal-jobs" / NAME / "logs"
    assert {path.name for path in logs.iterdir()} >= {"master.log", "ps-1.log", "worker-0.log"}
    assert left_of(NAME, namespace) == ""
