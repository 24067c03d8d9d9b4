"""Jobs in a cluster that this process does not follow: what `shoal jobs` and its like do.

Asks the API server and the job's master; what is printed is made here, the flags are
cli/jobs.py's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from rich.table import Table
from rich.text import Text

from shoal.base.words import duration
from shoal.client.drawn import block
from shoal.client.explaining import ask_master
from shoal.client.scaling import have, rebalanced
from shoal.client.stacks import stacks_of
from shoal.cluster import explain, manifests
from shoal.cluster.api import CALL_SECONDS as API_SECONDS
from shoal.cluster.api import UNREACHABLE, connect_from_outside
from shoal.cluster.handle import JobHandle, crash_of
from shoal.cluster.manifests import JOB_LABEL, MASTER_RESTARTS, ROLE_LABEL, STATE_LABEL
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import CallError
from shoal.proto.protocol import mismatch
from shoal.proto.rpc import Connection
from shoal.result import JobResult

RUNNING, CRASH_LOOP = "Running", "CrashLoopBackOff"

COMMAND_SECONDS = 30.0
"""For a master to answer a command: nobody watches it twice a second, so it may take its time."""

REACH_SECONDS = 50.0
"""For a command to reach a master: gRPC gives a way through the API server that hangs 20 s to
answer, and the next may be better."""

STATUS_SECONDS = 5.0
"""To reach one for `shoal status`, which says all else without it."""

AUDIT_SECONDS = 600.0
"""For a master to read its whole journal."""


def handle_of(name: str, namespace: str) -> JobHandle:
    """The job `name` in the namespace, or in that of the kubectl context."""
    api, default = connect_from_outside()
    return JobHandle(api, namespace or default, name)


@dataclass(frozen=True)
class JobLine:
    """One job in a list. workers: running pods. started: of its Job."""

    name: str
    state: str
    workers: int
    servers: int
    started: datetime


def list_jobs(namespace: str) -> tuple[str, list[JobLine]]:
    """The namespace and its jobs, the newest first. Raises UserError."""
    api, default = connect_from_outside()
    namespace = namespace or default
    core, batch = client.CoreV1Api(api), client.BatchV1Api(api)
    select: dict[str, Any] = {
        "label_selector": "app.kubernetes.io/name=shoal",
        "_request_timeout": API_SECONDS,
    }
    try:
        jobs = batch.list_namespaced_job(namespace, **select).items
        pods = core.list_namespaced_pod(namespace, **select).items
        configs = core.list_namespaced_config_map(namespace, **select).items
    except ApiException as error:
        raise explain.refused(error, namespace, "", "list jobs") from error
    except UNREACHABLE as error:
        raise explain.unreachable(error) from error
    results = {found.metadata.name: _state_in(found.data or {}) for found in configs}
    lines = []
    for job in jobs:
        name = job.metadata.labels.get(JOB_LABEL, "")
        own = [pod for pod in pods if pod.metadata.labels.get(JOB_LABEL) == name]
        lines.append(
            JobLine(
                name,
                results.get(name) or _state_of(job, own),
                _running(own, "worker"),
                _running(own, "ps"),
                job.metadata.creation_timestamp,
            )
        )
    return namespace, sorted(lines, key=lambda line: line.started, reverse=True)


def jobs_table(namespace: str, lines: list[JobLine]) -> Table:
    """The jobs as `shoal jobs` shows them."""
    table = Table(title=f"jobs in namespace {namespace}")
    for title in ("job", "state", "workers", "servers", "age"):
        table.add_column(title)
    now = datetime.now(UTC)
    for line in lines:
        age = duration((now - line.started).total_seconds())
        table.add_row(line.name, line.state, str(line.workers), str(line.servers), age)
    return table


def _state_in(data: dict[str, str]) -> str:
    text = data.get(manifests.RESULT_FILE)
    return str(json.loads(text)["state"]) if text else ""


def _state_of(job: client.V1Job, pods: list[client.V1Pod]) -> str:
    if any(c.type == "Failed" for c in job.status.conditions or ()):
        return "failed"
    if job.spec.suspend:
        return "suspended"
    if _crash(pods):
        return "crashing"
    return "running" if _running(pods, "master") else "waiting"


def _running(pods: list[client.V1Pod], role: str) -> int:
    return sum(
        pod.metadata.labels.get(ROLE_LABEL) == role and pod.status.phase == RUNNING for pod in pods
    )


def result_of(handle: JobHandle) -> JobResult | None:
    """The result of a job that has ended; None while it has not."""
    if (text := handle.result()) is None:
        return None
    # There if the job was followed from this folder.
    return JobResult.from_json(text, Path("shoal-jobs", handle.name).absolute())


def end_of(handle: JobHandle) -> str:
    """How the job ended, in a word; "" while it has not. Raises UserError."""
    if (result := result_of(handle)) is not None:
        return result.state
    return "its master has ended without a result" if handle.over() else ""


def course_of(handle: JobHandle) -> tuple[str, JobResult | None]:
    """The state of a job in a word or two, as `jobs_table` has it, and its result, if it has one.

    Raises UserError.
    """
    if not handle.exists():
        return "deleted", None
    if (result := result_of(handle)) is not None:
        return result.state, result
    return _state_of(handle.job(), handle.pods()), None


@contextmanager
def master_of(
    handle: JobHandle, deadline: float = COMMAND_SECONDS, patience: float = REACH_SECONDS
) -> Iterator[Connection]:
    """A connection to the job's master. Raises UserError if it does not run.

    deadline, patience: as of JobHandle.master.
    """
    pod = handle.master_pod()
    if pod is None or pod.status.phase != RUNNING:
        handle.job()  # says so if there is no such job
        raise UserError(
            f"job {handle.name} has no running master"
            + (f": its pod is {pod.status.phase}" if pod is not None else "")
            + f"; see shoal status {handle.name}"
        )
    try:
        token, identity = handle.credentials()
        with handle.master(pod.metadata.name, token, identity, deadline, patience) as connection:
            yield connection
    except CallError as error:
        raise UserError(f"the master of job {handle.name} does not answer: {error}") from error


def status(handle: JobHandle) -> Any:
    """What a running job does, and its pods, to be printed. Raises UserError."""
    job, pods = handle.job(), handle.pods()
    table = pods_table(pods, handle.warnings)
    if any(condition.type == "Failed" for condition in job.status.conditions or ()):
        return Text(f"{handle.name}: {_without_result(job)}"), table
    if job.spec.suspend:
        return Text(f"{handle.name}: {explain.suspended(handle.name, handle.namespace)}"), table
    if crash := _crash(pods):
        return Text(f"{handle.name}: its master does not come up: {crash}"), table
    try:
        with master_of(handle, STATUS_SECONDS, STATUS_SECONDS) as master:
            found = master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
    except UserError as error:
        return Text(f"{handle.name}: its master does not answer: {error}"), table
    if why := mismatch("this command", f"the master of job {handle.name}", found.protocol):
        raise UserError(why)
    return block(found), table


def _without_result(job: client.V1Job) -> str:
    """What is to be said of a Job that has failed without a result of its master's."""
    failed = next(c for c in job.status.conditions if c.type == "Failed")
    begun = STATE_LABEL in (job.metadata.labels or {})
    if failed.reason == "DeadlineExceeded" and not begun:
        return (
            "its master had not begun within --start-timeout: no node took its pod, or its image, "
            "a volume or a Secret was not there"
        )
    how = f"its master ended without a result ({failed.reason}: {failed.message})"
    if not begun:
        return (
            f"{how} and had never begun: its service account may lack the Role shoal of deploy/base"
        )
    limit = job.spec.backoff_limit
    if failed.reason == "BackoffLimitExceeded" and limit < MASTER_RESTARTS:
        how += (
            f". The master had set the backoffLimit of its Job to {MASTER_RESTARTS}, and somebody "
            f"has set it to {limit}, perhaps with a file of an earlier version of shoal"
        )
    return f"{how}. With --job-dir on a volume, shoal train --resume continues the job"


def _crash(pods: list[client.V1Pod]) -> str:
    """How the master's container ended, if Kubernetes lets it rest before it starts it again."""
    for pod in pods:
        if pod.metadata.labels.get(ROLE_LABEL) != "master":
            continue
        states = [status.state.waiting for status in pod.status.container_statuses or ()]
        loops = any(waiting and waiting.reason == CRASH_LOOP for waiting in states)
        if loops and (crash := crash_of(pod)) is not None:
            return f"{crash[1]} (restart {crash[0]})"
    return ""


def pods_table(
    pods: list[client.V1Pod], warnings: Callable[[client.V1Pod], list[str]] = lambda _: []
) -> Table:
    """Pods and what they wait for. warnings: what the cluster complains of about a pod."""
    table = Table()
    for title in ("pod", "phase", "restart", "node", "note"):
        # Names stay whole for grep.
        table.add_column(title, overflow="fold", no_wrap=title in ("pod", "phase", "restart"))
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
        table.add_row(
            pod.metadata.name,
            "Ending" if pod.metadata.deletion_timestamp else state.phase,
            labels.get(manifests.INCARNATION_LABEL, ""),
            pod.spec.node_name or "",
            "; ".join(filter(None, notes)),
        )
    return table


def stop(handle: JobHandle) -> None:
    """Ask a running job to stop. Raises UserError."""
    with master_of(handle) as master:
        master.call(methods.STOP_JOB, pb.StopJobRequest(reason="shoal stop"))


def scale(handle: JobHandle, workers: int | None, servers: int | None = None) -> None:
    """Change how many workers or servers a running job wants. Raises UserError."""
    with master_of(handle) as master:
        have(master, workers, servers)


def rebalance(handle: JobHandle) -> bool:
    """Have the servers do equal shares; whether rows move for it. Raises UserError."""
    with master_of(handle) as master:
        return rebalanced(master)


def audit(handle: JobHandle) -> str:
    """What became of every record of a job, JSON: of its end, or up to now.

    Raises UserError if the job is not there, or its master has left none.
    """
    handle.job()
    if (kept := handle.audit()) is not None:
        return kept
    with master_of(handle) as master:
        request = pb.AuditJobRequest()
        return master.call(methods.AUDIT_JOB, request, deadline=AUDIT_SECONDS).audit


def stacks(handle: JobHandle, role: str, index: int) -> list[pb.ProcessStacks]:
    """Where the threads of a running job stand; role and index as the master takes them.

    Raises UserError.
    """
    with master_of(handle) as master:
        return stacks_of(master, role, index)


def find_id(handle: JobHandle, table: str, key: int) -> pb.FoundId:
    """What the servers of a running job have of an id of a table. Raises UserError."""
    with master_of(handle) as master:
        return ask_master(master, table, key)


def log_lines(handle: JobHandle, role: str, index: int, *, follow: bool) -> Iterator[str]:
    """What a pod of the job has written, line by line. Raises UserError."""
    handle.job()
    wanted = handle.name + ("-master" if role == "master" else f"-{role}-{index}")
    if role == "master":
        pod = handle.master_pod()
    else:
        pod = next((p for p in handle.pods(role) if p.metadata.name == wanted), None)
    if pod is None:
        there = ", ".join(
            sorted(p.metadata.name.removeprefix(f"{handle.name}-") for p in handle.pods())
        )
        raise UserError(f"job {handle.name} has no pod {wanted}; there are: {there or 'none'}")
    yield from handle.follow_log(pod) if follow else handle.log(pod).splitlines()
