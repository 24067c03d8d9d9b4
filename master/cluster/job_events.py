"""Kubernetes Events on a master's Job: what `kubectl describe job` shows of the job's course.

Owns which changes are told, and how. Telling fails silently but for the log: the job does not
depend on it.
"""

from __future__ import annotations

import datetime
import logging
import secrets
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shoal.cluster.api import CALL_SECONDS, UNREACHABLE, message_of
from shoal.cluster.manifests import labels, master_name
from shoal.master.job.job import Job
from shoal.master.shared_job import SharedJob
from shoal.master.work.phases import Phase

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
LONGEST_MESSAGE = 1000
"""The API server takes 1024 characters."""

_ENDS = {
    "succeeded": ("Normal", "Succeeded"),
    "degraded": ("Warning", "Degraded"),
    "failed": ("Warning", "Failed"),
    "stopped": ("Warning", "Stopped"),
}


@dataclass(frozen=True)
class Told:
    """The text of an Event. kind: Normal or Warning."""

    kind: str
    reason: str
    message: str


@dataclass(frozen=True)
class Seen:
    """The state of a job that leads to Events. starts: by server, the incarnations started.

    unprotected: servers whose updates no log protects.
    """

    begun: bool = False
    starts: dict[str, int] = field(default_factory=dict)
    unprotected: frozenset[str] = frozenset()

    @classmethod
    def of(cls, job: Job, _now: float) -> Seen:
        """The state of a job, as it leads to Events."""
        members = job.members.servers.values()
        return cls(
            job.phases.phase not in (Phase.STARTING, Phase.DESCRIBING),
            {str(member.id): member.starts for member in members},
            frozenset(str(member.id) for member in members if member.unprotected),
        )


def news(before: Seen, now: Seen) -> list[Told]:
    """The Events for the change from `before` to `now`."""
    found = []
    if now.begun and not before.begun:
        found.append(Told("Normal", "Started", "all servers run, and the work has begun"))
    for server, starts in now.starts.items():
        if before.starts.get(server) and starts > before.starts[server]:
            found.append(Told("Warning", "ServerRestarted", f"{server} ended and is started again"))
    for server in sorted(now.unprotected - before.unprotected):
        found.append(Told("Warning", "Unprotected", f"no log protects the updates of {server}"))
    return found


def end_of(result: dict[str, Any]) -> Told:
    """The Event for a job's result."""
    kind, reason = _ENDS[result["state"]]
    failure = result.get("failure") or {}
    return Told(kind, reason, failure.get("message") or f"the job has {result['state']}")


class JobEvents:
    """Makes Events on the master's Job."""

    def __init__(self, api: client.ApiClient, namespace: str, job_name: str, uid: str) -> None:
        self._core, self._namespace = client.CoreV1Api(api), namespace
        self._job_name, self._uid = job_name, uid
        self._refused = False

    def tell(self, told: Told) -> None:
        """Make an Event of it."""
        if self._refused:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        job = master_name(self._job_name)
        # Labels that the selection of the job's objects does not take: Events go by themselves.
        body = {
            "metadata": {
                "name": f"{job}.{secrets.token_hex(8)}",
                "labels": {"app.kubernetes.io/name": labels(job, "")["app.kubernetes.io/name"]},
            },
            "involvedObject": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": job,
                "namespace": self._namespace,
                "uid": self._uid,
            },
            "type": told.kind,
            "reason": told.reason,
            "message": told.message[:LONGEST_MESSAGE],
            "source": {"component": "shoal"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._core.create_namespaced_event(self._namespace, body, _request_timeout=CALL_SECONDS)
        except (ApiException, *UNREACHABLE) as error:
            self._refused = isinstance(error, ApiException) and error.status == HTTPStatus.FORBIDDEN
            logger.warning("no Event on the Job: %s", message_of(error))

    def follow(self, job: SharedJob, ended: threading.Event) -> None:
        """Tell of what happens to the job until `ended`, on the caller's thread."""
        before = job.look(Seen.of)
        while not ended.wait(LOOK_SECONDS):
            now = job.look(Seen.of)
            for told in news(before, now):
                self.tell(told)
            before = now
