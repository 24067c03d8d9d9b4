"""The jobs of a cluster, and the pods of one, as the API server shows them; no master is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from rich.table import Table

from shoal.client.job_lines import JobLine
from shoal.cluster import explain, manifests
from shoal.cluster.api import CALL_SECONDS, UNREACHABLE, connect_from_outside
from shoal.cluster.handle import crash_of
from shoal.cluster.manifests import JOB_LABEL, ROLE_LABEL
from shoal.errors import UserError

RUNNING, CRASH_LOOP = "Running", "CrashLoopBackOff"


def list_jobs(
    namespace: str = "", *, everywhere: bool = False, name: str = ""
) -> tuple[str, list[JobLine]]:
    """A namespace, by default that of the kubectl context, and its jobs, the newest first.

    everywhere: of all namespaces, for which the first value is "". name: only jobs of this name.
    Raises UserError.
    """
    api, default = connect_from_outside()
    namespace = "" if everywhere else namespace or default
    core, batch = client.CoreV1Api(api), client.BatchV1Api(api)
    selector = "app.kubernetes.io/name=shoal" + (f",{JOB_LABEL}={name}" if name else "")
    options: dict[str, Any] = {"label_selector": selector, "_request_timeout": CALL_SECONDS}
    try:
        if everywhere:
            jobs = batch.list_job_for_all_namespaces(**options).items
            pods = core.list_pod_for_all_namespaces(**options).items
            configs = core.list_config_map_for_all_namespaces(**options).items
        else:
            jobs = batch.list_namespaced_job(namespace, **options).items
            pods = core.list_namespaced_pod(namespace, **options).items
            configs = core.list_namespaced_config_map(namespace, **options).items
    except ApiException as error:
        raise explain.refused(error, namespace, "", "list jobs") from error
    except UNREACHABLE as error:
        raise explain.unreachable(error) from error

    def of(found: Any) -> tuple[str, str]:
        return found.metadata.namespace, found.metadata.labels.get(JOB_LABEL, "")

    results = {of(found): _state_in(found.data or {}) for found in configs}
    lines = []
    for job in jobs:
        own = [pod for pod in pods if of(pod) == of(job)]
        state = results.get(of(job)) or state_of(job, own)
        counts = (_running(own, "worker"), _running(own, "ps"))
        created = job.metadata.creation_timestamp
        lines.append(JobLine(of(job)[1], state, *counts, created, of(job)[0]))
    return namespace, sorted(lines, key=lambda line: line.started, reverse=True)


def namespace_of(name: str) -> str:
    """The one namespace that has a job of this name. Raises UserError if it is not one."""
    _, found = list_jobs(everywhere=True, name=name)
    if len(found) == 1:
        return found[0].namespace
    if not found:
        raise UserError(f"there is no job {name} in any namespace")
    there = ", ".join(sorted(line.namespace for line in found))
    raise UserError(f"several namespaces have a job {name}, choose one with --namespace: {there}")


def _state_in(data: dict[str, str]) -> str:
    text = data.get(manifests.RESULT_FILE)
    return str(json.loads(text)["state"]) if text else ""


def state_of(job: client.V1Job, pods: list[client.V1Pod]) -> str:
    """The state of a job without a result, in a word."""
    if any(c.type == "Failed" for c in job.status.conditions or ()):
        return "failed"
    if job.spec.suspend:
        return "suspended"
    if master_crash(pods):
        return "crashing"
    return "running" if _running(pods, "master") else "waiting"


def _running(pods: list[client.V1Pod], role: str) -> int:
    return sum(
        pod.metadata.labels.get(ROLE_LABEL) == role and pod.status.phase == RUNNING for pod in pods
    )


def master_crash(pods: list[client.V1Pod]) -> str:
    """The last crash of the master's container, if Kubernetes delays its restart; else empty."""
    for pod in pods:
        if pod.metadata.labels.get(ROLE_LABEL) != "master":
            continue
        states = [status.state.waiting for status in pod.status.container_statuses or ()]
        loops = any(waiting and waiting.reason == CRASH_LOOP for waiting in states)
        if loops and (crash := crash_of(pod)) is not None:
            return f"{crash[1]} (restart {crash[0]})"
    return ""


@dataclass(frozen=True)
class PodLine:
    """One pod of a job. note: what it waits for, or how it ended."""

    pod: str
    phase: str
    restart: str
    node: str
    note: str

    def to_json(self) -> dict[str, Any]:
        """The line for programs."""
        return asdict(self) | {"restart": int(self.restart or 0)}


def pod_lines(
    pods: list[client.V1Pod], warnings: Callable[[client.V1Pod], list[str]] = lambda _: []
) -> list[PodLine]:
    """Pods and what they wait for, by name. warnings: what the cluster complains of about a pod."""
    lines = []
    for pod in sorted(pods, key=lambda pod: str(pod.metadata.name)):
        labels, state = pod.metadata.labels, pod.status
        notes = [f"{state.reason}: {state.message}"] if state.reason else []
        for condition in state.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                notes.append(condition.message)
        for container in state.container_statuses or ():
            if container.state.waiting is not None:
                notes.append(container.state.waiting.message or container.state.waiting.reason)
                # Of a Secret or volume that is not there, the container does not say a word.
                if container.state.waiting.reason == explain.CREATING:
                    notes += warnings(pod)[-1:]
            ended = container.state.terminated
            if ended is not None and ended.exit_code:
                notes.append(f"{ended.reason}, exit code {ended.exit_code}")
        if (crash := crash_of(pod)) is not None:
            notes.append(f"restart {crash[0]}: {crash[1]}")
        lines.append(
            PodLine(
                pod.metadata.name,
                "Ending" if pod.metadata.deletion_timestamp else state.phase,
                labels.get(manifests.INCARNATION_LABEL, ""),
                pod.spec.node_name or "",
                "; ".join(filter(None, notes)),
            )
        )
    return lines


def pods_table(lines: list[PodLine]) -> Table:
    """The pods as `shoal status` shows them."""
    table = Table()
    for title in ("pod", "phase", "restart", "node", "note"):
        # Names stay whole for grep.
        table.add_column(title, overflow="fold", no_wrap=title in ("pod", "phase", "restart"))
    for line in lines:
        table.add_row(line.pod, line.phase, line.restart, line.node, line.note)
    return table
