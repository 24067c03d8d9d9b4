"""MovieLens on a real cluster, through all that a cluster does to a job.

One job, as starting TensorFlow in three pods is most of the time: trained by `shoal train
--image`, with real preemption, a killed master and a deleted worker.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.errors import UserError
from shoal.jobs import handle_of, master_of
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.conftest import ROOT, SECONDS, kubectl
from tests.kubernetes.image import IMAGE

NAME = "deepfm"


def until(what, condition):
    """Wait for a condition, which is named where it never comes."""
    give_up = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < give_up, what
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def priorities():
    path = str(ROOT / "deploy" / "base" / "priorities.yaml")
    kubectl("apply", "-f", path)
    yield
    kubectl("delete", "-f", path)


class Watched:
    """What a test sees of the job."""

    def __init__(self, namespace):
        self.handle = handle_of(NAME, namespace)

    def status(self):
        """The master's answer; None while it gives none."""
        with contextlib.suppress(UserError), master_of(self.handle) as master:
            return master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
        return None

    def done(self):
        status = self.status()
        return status.records_done if status else -1

    def training_with(self, workers):
        status = self.status()
        return status and status.records_done > 0 and status.workers_alive == workers

    def pods(self, phase):
        return sum(pod.status.phase == phase for pod in self.handle.pods("worker"))


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


def master_process(namespace):
    """The process id of the job's master on this machine, which is the node."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                ours = f"POD_NAMESPACE={namespace}\0".encode() in (folder / "environ").read_bytes()
                if ours and b"shoal.master.in_cluster" in (folder / "cmdline").read_bytes():
                    return folder.name
    return None


def test_a_job_through_preemption_and_kills(shoal, movielens, namespace, priorities):
    for name in ("train.parquet", "validation.parquet"):
        shutil.copy(movielens / name, shoal.path)
    shutil.copytree(Path(__file__).parent / "zoo", shoal.path / "zoo")
    hold = shoal.path / "hold"
    hold.touch()
    flags = shoal.flags(
        NAME,
        model_zoo="/work/zoo",
        model_def="held.custom_model",
        training_data="/work/train.parquet",
        validation_data="/work/validation.parquet",
        output="/work/model",
        job_dir="/work/job",
        num_ps="2",
        num_workers="3",
        num_epochs="2",
        num_minibatches_per_task="2",
        master_priority="high",
        ps_priority="high",
        worker_priority="low",
        worker_resource_request="cpu=0.45,memory=300Mi",
        relaunch_limit="0",
    )
    with (shoal.path / "output").open("w") as output:
        train = subprocess.Popen(
            [sys.executable, "-m", "shoal", "train", *flags],
            cwd=shoal.path,
            stdout=output,
            stderr=output,
        )
    job = Watched(namespace)
    said = (shoal.path / "output").read_text
    try:
        until("three workers train", lambda: train.poll() is not None or job.training_with(3))
        assert train.poll() is None, said()

        # 1. A Deployment of higher priority takes the room of two workers; one goes on.
        rival(namespace, 2)
        until("two workers wait for room", lambda: job.pods("Pending") == 2)
        before = job.done()
        until("one worker goes on", lambda: job.done() > before)

        # 2. The master is killed with SIGKILL, and goes on.
        kubectl_pid = master_process(namespace)
        subprocess.run(["kill", "-9", kubectl_pid], check=True)
        until("another master", lambda: master_process(namespace) not in (None, kubectl_pid))
        until("it goes on", lambda: job.done() > before)

        # 3. The Deployment gives the room back; the workers return by themselves.
        rival(namespace, 0)
        until("three workers train again", lambda: job.training_with(3))

        # 4. A worker's pod is deleted by force; the wish becomes two workers.
        pod = f"{NAME}-worker-0"
        kubectl("delete", "pod", pod, "--force", "--grace-period=0", namespace=namespace)
        scaled = shoal("scale", NAME, "--num-workers", "2", "--namespace", namespace)
        assert scaled.returncode == 0, scaled.stderr
        until("two workers train", lambda: job.training_with(2))
        hold.unlink()
        assert train.wait(SECONDS) == 0, said()
    finally:
        train.kill()
        train.wait()

    result = json.loads((shoal.path / "shoal-jobs" / NAME / "result.json").read_text())
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
    kinds = "all,configmaps"
    assert kubectl("get", kinds, "-l", f"shoal/job={NAME}", "-o", "name", namespace=namespace) == ""
