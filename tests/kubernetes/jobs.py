"""What tests see of a job on the cluster, and do to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from shoal.client.ask.cluster_jobs import cluster_job
from shoal.errors import UserError
from tests.kubernetes.conftest import SECONDS, kubectl

ZOO = Path(__file__).parent / "zoo"
KINDS = "all,configmaps,poddisruptionbudgets"


def until(what, condition):
    """Wait for a condition, which is named where it never comes."""
    give_up = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < give_up, what
        time.sleep(0.2)
    return found


def left_of(name, namespace):
    """The objects of a job that the cluster has."""
    return kubectl("get", KINDS, "-l", f"shoal.dev/job={name}", "-o", "name", namespace=namespace)


def process_of(module, namespace, index=None):
    """The process id, on this machine, which is the node, of a job's process; None if none.

    module: such as shoal.ps. The namespace tells jobs apart.
    """
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if module not in words:
                continue
            if index is not None and words[words.index("--index") + 1] != str(index):
                continue
            environment = (folder / "environ").read_bytes().decode(errors="replace")
            addresses = [word for word in words if f".{namespace}.svc:" in word]
            # The master has it in its environment, the others the master's address.
            if f"POD_NAMESPACE={namespace}\0" in environment or addresses:
                return int(folder.name)
    return None


def kill(module, namespace, index=None):
    """Kill a process with SIGKILL, from inside of its pod as it were; returns when it is gone."""
    process = until(f"a {module}", lambda: process_of(module, namespace, index))
    os.kill(process, signal.SIGKILL)
    until(f"the end of {module}", lambda: process_of(module, namespace, index) != process)


class Watched:
    """What a test sees of one job."""

    def __init__(self, name, namespace):
        self.name, self.namespace = name, namespace
        self.job = cluster_job(name, namespace)
        self.handle = self.job.handle

    def status(self):
        """The master's answer; None while it gives none."""
        with contextlib.suppress(UserError):
            return self.job.status()
        return None

    def done(self):
        status = self.status()
        return status.records_done if status else -1

    def servers(self):
        status = self.status()
        return status.servers_alive if status else 0

    def training_with(self, workers):
        status = self.status()
        return status and status.records_done > 0 and status.workers_alive == workers

    def said(self, text, times=1):
        """Whether the master has told this, so often."""
        return self.times(text) >= times

    def times(self, text):
        """How often the master has told this, once it answers."""
        status = until("the master's answer", self.status)
        return sum(text in message for message in status.messages)

    def goes_on(self):
        """Wait until more is trained."""
        before = until("an answer", lambda: self.done() >= 0 and (self.done(),))[0]
        until("more records", lambda: self.done() > before)

    def pods(self, phase):
        return sum(pod.status.phase == phase for pod in self.handle.pods("worker"))

    def lease_holder(self):
        """Who holds the job's Lease: a pod's name and uid. Empty: nobody."""
        path = "jsonpath={.spec.holderIdentity}"
        return kubectl("get", "lease", self.name, "-o", path, namespace=self.namespace).strip()

    def uid(self, pod):
        path = "jsonpath={.metadata.uid}"
        found = kubectl("get", "pod", pod, "-o", path, namespace=self.namespace, check=False)
        return found.stdout.strip()


@contextlib.contextmanager
def following(shoal, *flags):
    """`shoal train` beside the test; yields (the process, a function that gives its output)."""
    path = shoal.path / "output"
    with path.open("w") as output:
        train = subprocess.Popen(
            [sys.executable, "-m", "shoal", "train", *flags],
            cwd=shoal.path,
            stdout=output,
            stderr=output,
            env=os.environ | ({"KUBECONFIG": shoal.kubeconfig} if shoal.kubeconfig else {}),
        )
    try:
        yield train, path.read_text
    finally:
        train.kill()
        train.wait()


def held_job(shoal, name, **flags):
    """A job on train.parquet, on a volume; returns its flags, and the file that holds it.

    As long as that is there, each minibatch takes seconds (zoo/held.py), and training minutes.
    """
    shutil.copytree(ZOO, shoal.path / "zoo")
    hold = shoal.path / "hold"
    hold.touch()
    made = shoal.flags(
        name,
        model_zoo="/work/zoo",
        model_def="held.custom_model",
        training_data="/work/train.parquet",
        output="/work/model",
        job_dir="/work/job",
        servers="2",
        num_minibatches_per_task="1",
        **flags,
    )
    return made, hold


def result_in(shoal, name):
    """The result that a followed job has left here."""
    return json.loads((shoal.path / "shoal-jobs" / name / "result.json").read_text())
