"""Show on a real cluster what elastic scheduling does for the jobs on it.

    python deploy/demo/run.py OUTPUT PART --namespace NS --workers 3 --cpu 0.4 -- FLAGS

FLAGS are those of `shoal train` for a job of a minute or two, without its name, its
workers and what they ask for; among them --image. PART is

preemption: with a job running, a Deployment of higher priority takes the room of two
    workers and gives it back. OUTPUT/preemption.csv and .png: the cpu that each asks for,
    over time. Ends with an error if a record is lost or failed.
gang: two jobs that together ask for more than there is, once elastic and once as a gang
    (the second begins when all its workers are there). OUTPUT/gang.json: seconds until both
    have ended, and from the second's submission to its first step.

Needs the priority classes of deploy/base and, for the plot, matplotlib.
"""

from __future__ import annotations

import contextlib
import csv
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from kubernetes import client
from kubernetes.utils.quantity import parse_quantity

from shoal.client.ask.cluster_jobs import cluster_job
from shoal.cluster.api import connect_from_outside
from shoal.cluster.manifests import JOB_LABEL, Manifest
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb

PATIENCE_SECONDS = 600.0
SAMPLE_SECONDS = 0.5
SHOWN_SECONDS = 15.0
"""How long each state is kept for the plot."""

RIVAL = "rival"
COLUMNS = ("seconds", "job_cpu", "rival_cpu", "cluster_cpu", "utilisation", "workers_running")


def until(what: str, condition: Callable[[], Any]) -> None:
    """Wait until a condition holds. Raises SystemExit naming the one that never does."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            sys.exit(f"waited in vain for: {what}")
        time.sleep(SAMPLE_SECONDS)
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


class DemoJob:
    """One job of the demonstration."""

    def __init__(self, name: str, namespace: str, workers: int, cpu: float) -> None:
        self.name, self.namespace, self.workers, self.cpu = name, namespace, workers, cpu
        self.job = cluster_job(name, namespace)

    def submit(self, flags: tuple[str, ...], *, least: int = 1) -> None:
        """Create the job; its workers may use what they ask for, and no more."""
        ours = {
            "job-name": self.name,
            "namespace": self.namespace,
            "workers": self.workers,
            "min-workers": least,
            "worker-resources": f"cpu={self.cpu}:{self.cpu},memory=500Mi",
            "priority": "master=high,ps=high,worker=low",
        }
        words = [word for key, value in ours.items() for word in (f"--{key}", str(value))]
        command = [sys.executable, "-m", "shoal", "train", *flags, *words, "--detach"]
        subprocess.run(command, check=True)

    def status(self) -> pb.JobStatus:
        """The master's answer; an empty one while it gives none."""
        with contextlib.suppress(UserError):
            return self.job.status()
        return pb.JobStatus()

    def trains_with(self, workers: int) -> bool:
        """True if training has begun and so many workers take part."""
        status = self.status()
        return status.records_done > 0 and status.workers_alive == workers

    def ended(self) -> bool:
        """True if the job has a result."""
        with contextlib.suppress(UserError):
            return self.job.result() is not None
        return False

    def audit(self) -> dict[str, int]:
        """The ledger of a job that has succeeded. Raises SystemExit if it is not clean."""
        result = self.job.result()
        if result is None or result.state != "succeeded":
            sys.exit(f"job {self.name} did not succeed: {result}")
        ledger = result.ledger
        if ledger["trained_once"] + ledger["repeated"] != ledger["total"]:
            sys.exit(f"records are missing: {ledger}")
        print(f"{self.name}: {ledger}, {result.metrics}")
        return ledger

    def delete(self) -> None:
        """Remove the job, if it is there."""
        with contextlib.suppress(UserError):
            self.job.delete()


class Sampler:
    """Writes down, over time, what each party asks for and has room for."""

    def __init__(self, namespace: str, job: str) -> None:
        api, _ = connect_from_outside()
        self._core = client.CoreV1Api(api)
        self._namespace, self._job = namespace, job
        self._ended = threading.Event()
        self.rows: list[tuple[float, ...]] = []

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample while the body runs."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._ended.wait(SAMPLE_SECONDS):
            self.rows.append((time.monotonic() - begin, *self._sample()))

    def _sample(self) -> tuple[float, ...]:
        nodes = self._core.list_node().items
        cluster = sum(float(parse_quantity(node.status.allocatable["cpu"])) for node in nodes)
        cpu = {"job": 0.0, RIVAL: 0.0}
        workers = 0
        for pod in self._core.list_namespaced_pod(self._namespace).items:
            labels = pod.metadata.labels or {}
            party = "job" if labels.get(JOB_LABEL) == self._job else labels.get("app", "")
            if party not in cpu or not pod.spec.node_name:
                continue
            if pod.status.phase not in ("Pending", "Running"):
                continue
            workers += labels.get("shoal.dev/role") == "worker" and pod.status.phase == "Running"
            for container in pod.spec.containers:
                wish = (container.resources.requests or {}).get("cpu", "0")
                cpu[party] += float(parse_quantity(wish))
        used = cpu["job"] + cpu[RIVAL]
        return cpu["job"], cpu[RIVAL], cluster, used / cluster, workers


def rival(namespace: str, image: str, cpu: float) -> Manifest:
    """A Deployment, of no pods yet, each of which takes the room of a worker and a half."""
    container = {
        "name": RIVAL,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "36000"],
        "resources": {"requests": {"cpu": f"{1.5 * cpu:g}"}},
    }
    spec = {
        "priorityClassName": "shoal-high",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    template = {"metadata": {"labels": {"app": RIVAL}}, "spec": spec}
    selector = {"matchLabels": {"app": RIVAL}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": RIVAL, "namespace": namespace},
        "spec": {"replicas": 0, "selector": selector, "template": template},
    }


def plot(rows: list[tuple[float, ...]], path: Path) -> None:
    """Draw what preemption.csv says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seconds, job, other, cluster, utilisation, _ = zip(*rows, strict=True)
    figure, (above, below) = pyplot.subplots(
        2, sharex=True, figsize=(9, 6), height_ratios=(2, 1), layout="constrained"
    )
    above.stackplot(seconds, job, other, labels=("the job", "the Deployment"), step="post")
    above.plot(seconds, cluster, "k--", label="the cluster has")
    above.set_ylabel("cpu asked for by pods with a place")
    above.set_ylim(0, 1.2 * cluster[0])  # room for the legend
    above.legend(loc="upper left", ncols=3)
    below.step(seconds, [100 * share for share in utilisation], where="post")
    below.set_ylabel("utilisation, %")
    below.set_ylim(0, 105)
    below.set_xlabel("seconds")
    figure.savefig(path, dpi=120)


def preemption(output: Path, job: DemoJob, image: str, flags: tuple[str, ...]) -> None:
    """Take the room of two workers and give it back."""
    api, _ = connect_from_outside()
    apps, sampler = client.AppsV1Api(api), Sampler(job.namespace, job.name)
    apps.create_namespaced_deployment(job.namespace, rival(job.namespace, image, job.cpu))
    left = job.workers - 2
    try:
        with sampler.sampling():
            job.submit(flags)
            until(f"{job.workers} workers train", lambda: job.trains_with(job.workers))
            time.sleep(SHOWN_SECONDS)
            apps.patch_namespaced_deployment(RIVAL, job.namespace, {"spec": {"replicas": 2}})
            until(f"{left} worker goes on", lambda: job.trains_with(left))
            time.sleep(SHOWN_SECONDS)
            apps.patch_namespaced_deployment(RIVAL, job.namespace, {"spec": {"replicas": 0}})
            until("the workers are back", lambda: job.trains_with(job.workers))
            until("the job has ended", job.ended)
        job.audit()
    finally:
        apps.delete_namespaced_deployment(RIVAL, job.namespace)
        job.delete()
    with (output / "preemption.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([round(value, 3) for value in row] for row in sampler.rows)
    plot(sampler.rows, output / "preemption.png")


def two_jobs(jobs: tuple[DemoJob, DemoJob], flags: tuple[str, ...], least: int) -> dict[str, float]:
    """Seconds until two jobs have ended, and until the second's first step.

    both_seconds: from the second's submission, when the first trains with all its workers;
    total_seconds: from the first's, so with the start of its pods, which is the same anyway.
    """
    first, second = jobs
    try:
        begin = time.monotonic()
        first.submit(flags, least=least)
        until(f"{first.name} trains", lambda: first.trains_with(first.workers))
        submitted = time.monotonic()
        second.submit(flags, least=least)
        until(f"{second.name} trains", lambda: second.status().records_done > 0)
        step = time.monotonic() - submitted
        until("both have ended", lambda: first.ended() and second.ended())
        total, both = time.monotonic() - begin, time.monotonic() - submitted
        for job in jobs:
            job.audit()
        return {
            "total_seconds": round(total, 1),
            "both_seconds": round(both, 1),
            "second_first_step_seconds": round(step, 1),
        }
    finally:
        for job in jobs:
            job.delete()


def gang(output: Path, jobs: tuple[DemoJob, DemoJob], flags: tuple[str, ...]) -> None:
    """The same two jobs, elastic and as a gang."""
    found: dict[str, Any] = {
        "elastic": two_jobs(jobs, flags, 1),
        "gang": two_jobs(jobs, flags, jobs[0].workers),
    }
    found["elastic_by_gang"] = {
        key: round(found["elastic"][key] / found["gang"][key], 3) for key in found["gang"]
    }
    (output / "gang.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("output", type=click.Path(path_type=Path))
@click.argument("part", type=click.Choice(("preemption", "gang")))
@click.option("--namespace", default="shoal", show_default=True)
@click.option("--workers", default=3, show_default=True, type=click.IntRange(3))
@click.option("--cpu", default=0.4, show_default=True, help="Of each worker.")
@click.argument("flags", nargs=-1, required=True)
def main(
    output: Path, part: str, namespace: str, workers: int, cpu: float, flags: tuple[str, ...]
) -> None:
    """Run one part; see the top of this file."""
    if "--image" not in flags:
        raise click.UsageError("--image must be among the flags of shoal train")
    output.mkdir(parents=True, exist_ok=True)
    jobs = (
        DemoJob("demo-first", namespace, workers, cpu),
        DemoJob("demo-second", namespace, workers, cpu),
    )
    if part == "preemption":
        preemption(output, jobs[0], flags[flags.index("--image") + 1], flags)
    else:
        gang(output, jobs, flags)


if __name__ == "__main__":
    main()
