"""Jobs on Kubernetes that this process does not follow: what `shoal status` and its like ask.

Asks the API server and, through a port-forward, the job's master.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from kubernetes import client

from shoal.client.ask.asking import checked, status_of
from shoal.client.ask.running_job import LOG_LINES, RunningJob, Seen, log_order
from shoal.client.cluster_listing import RUNNING, master_crash, pod_lines, pods_table, state_of
from shoal.cluster import explain
from shoal.cluster.handle import JobHandle, handle_of
from shoal.cluster.manifests import INCARNATION_LABEL, MASTER_RESTARTS, STATE_LABEL
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError, WireError
from shoal.result import JobResult

STATUS_SECONDS = 5.0
"""To reach a master for `shoal status`, which says all else without it."""

AUDIT_SECONDS = 600.0
"""For a master to read its whole journal."""


def cluster_job(name: str, namespace: str) -> ClusterJob:
    """The job `name` in the namespace, or in that of the kubectl context."""
    return ClusterJob(handle_of(name, namespace))


class ClusterJob(RunningJob):
    """A job in a cluster."""

    def __init__(self, handle: JobHandle) -> None:
        super().__init__()
        self.name, self.namespace, self.handle = handle.name, handle.namespace, handle
        self.place = f"on Kubernetes, in namespace {handle.namespace}"

    def state(self) -> str:
        """See RunningJob."""
        if not self.handle.exists():
            return "deleted"
        result = self.result()
        return result.state if result else state_of(self.handle.job(), self.handle.pods())

    def result(self) -> JobResult | None:
        """See RunningJob."""
        if (text := self.handle.result()) is None:
            return None
        # There if the job was followed from this folder.
        return JobResult.from_json(text, Path("shoal-jobs", self.name).absolute())

    def over(self) -> str:
        """See RunningJob."""
        return "the job's master has ended without a result" if self.handle.over() else ""

    def seen(self) -> Seen:
        """See RunningJob."""
        handle = self.handle
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
                with self.master(STATUS_SECONDS, STATUS_SECONDS) as master:
                    status = status_of(master)
            except UserError as error:
                problem = f"its master does not answer: {error}"
        if status is not None:
            checked(self, status)
        lines = pod_lines(pods, handle.warnings)
        listed = [line.to_json() for line in lines]
        return Seen(status, pods_table(lines), listed, problem, state_of(job, pods))

    def audit(self) -> str:
        """The audit of every record, as JSON: at its end, or up to now.

        Raises UserError if the job is not there, or has left no audit and its master does not
        answer.
        """
        self.handle.job()
        if (kept := self.handle.audit()) is not None:
            return kept
        with self.master() as master:
            request = pb.AuditJobRequest()
            return master.call(methods.AUDIT_JOB, request, deadline=AUDIT_SECONDS).audit

    def delete(self) -> None:
        """See RunningJob."""
        self.handle.delete()

    # ------------------------------------------------------------ its master

    def _connected(self, deadline: float, patience: float) -> AbstractContextManager[Connection]:
        pod = self.handle.master_pod()
        if pod is None or pod.status.phase != RUNNING:
            self.handle.job()  # says so if there is no such job
            raise UserError(
                f"job {self.name} has no running master"
                + (f": its pod is {pod.status.phase}" if pod is not None else "")
                + f"; see shoal status {self.name}"
            )
        token, identity = self.handle.credentials()
        return self.handle.master(pod.metadata.name, token, identity, deadline, patience)

    def _silence(self, error: CallError) -> str:
        if isinstance(error, WireError):
            return f"refuses: {error.message}"
        return f"does not answer: {error}"

    # ------------------------------------------------------------ its processes and their files

    def process(self, role: str, index: int) -> int:
        """See RunningJob."""
        pod = self.name + ("-master-..." if role == "master" else f"-{role}-{index}")
        raise UserError(
            "shoal profile looks at processes of this machine, and the job is on Kubernetes: run "
            "py-spy in the pod, whose image must have it and whose --pod-template must allow "
            f"SYS_PTRACE: kubectl exec {pod} -- py-spy dump --pid 1"
        )

    def logs(self) -> list[str]:
        """See RunningJob."""
        names = [str(pod.metadata.name) for pod in self.handle.pods()]
        return sorted(names, key=lambda name: log_order(name.removeprefix(f"{self.name}-")))

    def log(self, name: str) -> list[str]:
        """See RunningJob."""
        for pod in self.handle.pods():
            if pod.metadata.name == name:
                return self.handle.log(pod, tail_lines=LOG_LINES).splitlines()
        raise UserError(f"job {self.name} has no pod {name}")

    def log_lines(
        self, role: str, index: int, restart: int | None = None, *, follow: bool
    ) -> Iterator[str]:
        """See RunningJob. If the pod is gone, the master may have kept them."""
        handle = self.handle
        handle.job()
        wanted = self.name + ("-master" if role == "master" else f"-{role}-{index}")
        if role == "master":
            pod = handle.master_pod()
        else:
            pod = next((p for p in handle.pods(role) if p.metadata.name == wanted), None)
            if pod is None or restart not in (None, int(pod.metadata.labels[INCARNATION_LABEL])):
                yield from self._kept_log(role, index, restart).splitlines()
                return
        if pod is None:
            raise UserError(f"job {self.name} has no pod {wanted}; there are: {self._pods()}")
        yield from handle.follow_log(pod) if follow else handle.log(pod).splitlines()

    def _kept_log(self, role: str, index: int, restart: int | None) -> str:
        """The log of a pod that is gone. Raises UserError."""
        try:
            with self.master() as master:
                request = pb.JobLogRequest(role=role, index=index, incarnation=restart)
                return master.call(methods.GET_JOB_LOG, request).text
        except UserError as error:
            raise UserError(
                f"job {self.name} has no such pod {role}-{index}; there are: {self._pods()}. Of "
                "pods that are gone the master keeps logs where --job-dir is on a volume: "
                f"{error}"
            ) from error

    def _pods(self) -> str:
        names = sorted(
            str(p.metadata.name).removeprefix(f"{self.name}-") for p in self.handle.pods()
        )
        return ", ".join(names) or "none"

    def losses(self) -> list[str]:
        """See RunningJob."""
        with contextlib.suppress(UserError, CallError):
            if self._connection is None:  # at its end the master has left it
                return (self.handle.metrics() or "").splitlines()
            found = self._connection.call(methods.GET_JOB_METRICS, pb.JobMetricsRequest())
            return found.csv.splitlines()
        return []


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
