"""Jobs in a cluster that this process does not follow: what `shoal jobs` and its like do.

Asks the API server and the job's master; what is printed is made here, the flags are
cli/jobs.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client
from rich.text import Text

from shoal.client.ask.explaining import ask_master
from shoal.client.ask.scaling import have, rebalanced
from shoal.client.cluster_listing import (
    RUNNING,
    PodLine,
    master_crash,
    pod_lines,
    pods_table,
    state_of,
)
from shoal.client.show.drawn import block
from shoal.client.stacks import stacks_of
from shoal.cluster import explain
from shoal.cluster.api import connect_from_outside
from shoal.cluster.handle import JobHandle
from shoal.cluster.manifests import INCARNATION_LABEL, MASTER_RESTARTS, STATE_LABEL
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError, WireError
from shoal.proto.protocol import mismatch
from shoal.result import JobResult

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


def result_of(handle: JobHandle) -> JobResult | None:
    """The result of a job that has ended; None while it has not."""
    if (text := handle.result()) is None:
        return None
    # There if the job was followed from this folder.
    return JobResult.from_json(text, Path("shoal-jobs", handle.name).absolute())


def end_of(handle: JobHandle) -> str:
    """The way the job ended, in words; "" while it has not. Raises UserError."""
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
    return state_of(handle.job(), handle.pods()), None


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
    name = f"the master of job {handle.name}"
    try:
        token, identity = handle.credentials()
        with handle.master(pod.metadata.name, token, identity, deadline, patience) as connection:
            yield connection
    except WireError as error:
        raise UserError(f"{name} refuses: {error.message}") from error
    except CallError as error:
        raise UserError(f"{name} does not answer: {error}") from error


@dataclass(frozen=True)
class Seen:
    """The present view of a job that has no result.

    status: of its master; None if it gives none, and then problem says why. state: as `course_of`.
    """

    state: str
    status: pb.JobStatus | None
    problem: str
    pods: list[PodLine]


def look_at(handle: JobHandle) -> Seen:
    """Look at a job without a result: its master's status, and its pods. Raises UserError."""
    job, pods = handle.job(), handle.pods()
    status, problem = None, ""
    if any(condition.type == "Failed" for condition in job.status.conditions or ()):
        problem = _without_result(job)
    elif job.spec.suspend:
        problem = explain.suspended(handle.name, handle.namespace)
    elif crash := master_crash(pods):
        problem = f"its master does not come up: {crash}"
    else:
        try:
            with master_of(handle, STATUS_SECONDS, STATUS_SECONDS) as master:
                status = master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
        except UserError as error:
            problem = f"its master does not answer: {error}"
    if status is not None:
        name = f"the master of job {handle.name}"
        if why := mismatch("this command", name, status.protocol):
            raise UserError(why)
    lines = pod_lines(pods, handle.warnings)
    return Seen(state_of(job, pods), status, problem, lines)


def status(handle: JobHandle) -> Any:
    """The view of `look_at`, to be printed. Raises UserError."""
    seen = look_at(handle)
    head = Text(f"{handle.name}: {seen.problem}") if seen.status is None else block(seen.status)
    return head, pods_table(seen.pods)


def _without_result(job: client.V1Job) -> str:
    """Explain why a Job has failed without a result from its master."""
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


def stop(handle: JobHandle) -> None:
    """Ask a running job to stop. Raises UserError."""
    with master_of(handle) as master:
        master.call(methods.STOP_JOB, pb.StopJobRequest(reason="shoal stop"))


def scale(handle: JobHandle, workers: int | None, servers: int | None = None) -> None:
    """Change how many workers or servers a running job wants. Raises UserError."""
    with master_of(handle) as master:
        have(master, workers, servers)


def rebalance(handle: JobHandle) -> bool:
    """Even out the load of the servers; True if rows move for it. Raises UserError."""
    with master_of(handle) as master:
        return rebalanced(master)


def audit(handle: JobHandle) -> str:
    """The audit of every record of a job, as JSON: at its end, or up to now.

    Raises UserError if the job is not there, or has left no audit and its master does not answer.
    """
    handle.job()
    if (kept := handle.audit()) is not None:
        return kept
    with master_of(handle) as master:
        request = pb.AuditJobRequest()
        return master.call(methods.AUDIT_JOB, request, deadline=AUDIT_SECONDS).audit


def stacks(handle: JobHandle, role: str, index: int) -> list[pb.ProcessStacks]:
    """The stacks of the threads of a running job; role and index as the master takes them.

    Raises UserError.
    """
    with master_of(handle) as master:
        return stacks_of(master, role, index)


def find_id(handle: JobHandle, table: str, key: int) -> pb.FoundId:
    """Look up an id of a table at the servers of a running job. Raises UserError."""
    with master_of(handle) as master:
        return ask_master(master, table, key)


def log_lines(
    handle: JobHandle, role: str, index: int, restart: int | None = None, *, follow: bool
) -> Iterator[str]:
    """The lines that a pod of the job has written. Raises UserError.

    If the pod is gone, the master may have kept them. restart: its incarnation; None: the newest.
    """
    handle.job()
    wanted = handle.name + ("-master" if role == "master" else f"-{role}-{index}")
    if role == "master":
        pod = handle.master_pod()
    else:
        pod = next((p for p in handle.pods(role) if p.metadata.name == wanted), None)
        if pod is None or restart not in (None, int(pod.metadata.labels[INCARNATION_LABEL])):
            yield from _kept_log(handle, role, index, restart).splitlines()
            return
    if pod is None:
        raise UserError(f"job {handle.name} has no pod {wanted}; there are: {_pods_of(handle)}")
    yield from handle.follow_log(pod) if follow else handle.log(pod).splitlines()


def _kept_log(handle: JobHandle, role: str, index: int, restart: int | None) -> str:
    """The log of a pod that is gone. Raises UserError."""
    try:
        with master_of(handle) as master:
            request = pb.JobLogRequest(role=role, index=index, incarnation=restart)
            return master.call(methods.GET_JOB_LOG, request).text
    except UserError as error:
        raise UserError(
            f"job {handle.name} has no such pod {role}-{index}; there are: {_pods_of(handle)}. Of "
            f"pods that are gone the master keeps logs where --job-dir is on a volume: {error}"
        ) from error


def _pods_of(handle: JobHandle) -> str:
    names = sorted(str(p.metadata.name).removeprefix(f"{handle.name}-") for p in handle.pods())
    return ", ".join(names) or "none"
