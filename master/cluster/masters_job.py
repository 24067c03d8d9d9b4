"""The Job and the pod that a master is: how often it may be started, and what it shows of the job.

Kubernetes counts the restarts of a pod over its whole life, and those of a Job's pods over the
Job's. A master that is killed now and then in weeks is no failure, so the limit of Kubernetes is
out of reach once the master has begun, and the master counts its own starts in a window of time.
They are in an annotation of the Job, which a `kubectl apply` of the job's file leaves alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes import client

from shoal.base.words import counted, duration, one_line
from shoal.cluster.api import CALL_SECONDS, LONGEST_MESSAGE
from shoal.cluster.manifests import (
    AUTHORITY_ANNOTATION,
    DEADLINE_GRACE_SECONDS,
    MASTER_RESTARTS,
    START_RESTARTS,
    STARTS_ANNOTATION,
    STATE_LABEL,
    master_name,
)
from shoal.errors import UserError
from shoal.proto.identity import MASTER

WINDOW_SECONDS, WINDOW_STARTS = 2 * 3600.0, 20
"""A master that has begun may be started so often within this time. One that crashes at once is
started about 28 times in it, as Kubernetes waits up to five minutes before the next time."""

LAST_SECONDS = 5
"""For the end of a pod whose container was started again before: of a Job whose retries are over,
Kubernetes would remove it with its log."""


def starts_within(noted: str, now: datetime.datetime) -> list[datetime.datetime]:
    """The times of an annotation that are within the window before `now`; those of none: empty."""
    found = []
    for word in noted.split():
        try:
            at = datetime.datetime.fromisoformat(word)
        except ValueError:  # somebody has changed it
            continue
        if at.tzinfo is not None and 0 <= (now - at).total_seconds() < WINDOW_SECONDS:
            found.append(at)
    return found


class MastersJob:
    """The Job and the pod that this master is. Methods raise what the client raises."""

    def __init__(self, api: client.ApiClient, namespace: str, job_name: str, pod: str) -> None:
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self._namespace, self._name, self._pod = namespace, master_name(job_name), pod
        self._options = {"_request_timeout": CALL_SECONDS}
        self._shown: dict[str, str | None] = {}

    def _patch(self, **changes: Mapping[str, Any]) -> client.V1Job:
        """Change the Job; without changes it is read."""
        return self._batch.patch_namespaced_job(
            self._name, self._namespace, changes, **self._options
        )

    def started(self, now: datetime.datetime) -> None:
        """Note a start of the master, which holds the Lease.

        Raises UserError if there were too many of late, or without one that has begun.
        """
        found = self._patch().metadata
        starts = [*starts_within((found.annotations or {}).get(STARTS_ANNOTATION, ""), now), now]
        text = " ".join(at.isoformat(timespec="seconds") for at in starts)
        self._patch(metadata={"annotations": {STARTS_ANNOTATION: text}})
        begun = STATE_LABEL in (found.labels or {})
        if len(starts) > (WINDOW_STARTS if begun else START_RESTARTS + 1):
            within = f"{counted(len(starts), 'time')} within {duration(WINDOW_SECONDS)}"
            never, last = "" if begun else " and could never begin", self._last_end()
            raise UserError(
                f"the job's master was started {within}{never}"
                + (f"; the last one ended with {last}" if last else "")
                + (". With --job-dir on a volume, shoal train --resume continues it" * begun)
            )

    def begun(self, deadline: int, authority: str) -> None:
        """Allow the restarts of a master that runs; of one that cannot begin there are few.

        deadline: seconds after which the master ends the job, from now at the latest; 0: never.
        Kubernetes counts from the Job's start, in which the master may have waited for room: it is
        to end a master only that has not done so. authority: names that of the certificate for
        commands, which look for it here.
        """
        # A limit that there is holds for its start: --start-timeout of a job that nobody follows.
        job = self._patch(
            metadata={
                "annotations": {AUTHORITY_ANNOTATION: authority or None},
                "labels": {STATE_LABEL: "starting"},
            },
            spec={"backoffLimit": MASTER_RESTARTS, "activeDeadlineSeconds": None},
        )
        if deadline:
            seconds = _seconds_since(job) + deadline + DEADLINE_GRACE_SECONDS
            self._patch(spec={"activeDeadlineSeconds": seconds})

    def show(self, labels: Mapping[str, str | None]) -> None:
        """Set these labels on the Job unless it shows them already. None removes a label."""
        if labels != self._shown:
            self._patch(metadata={"labels": labels})
            self._shown = dict(labels)

    def suspended(self) -> bool:
        """True if the Job is suspended, and so is to have no pod for now."""
        return bool(self._patch().spec.suspend)

    def fail(self) -> None:
        """Make this pod fail now, and the Job as soon as the pod has."""
        if not sum(status.restart_count for status in self._containers()):
            self._patch(spec={"backoffLimit": 0})
        else:
            seconds = max(1, _seconds_since(self._patch()) + LAST_SECONDS)
            self._patch(spec={"activeDeadlineSeconds": seconds})
        body = {"spec": {"activeDeadlineSeconds": 1}}
        self._core.patch_namespaced_pod(self._pod, self._namespace, body, **self._options)

    def _containers(self) -> Sequence[client.V1ContainerStatus]:
        """The states of this pod's containers."""
        found = self._core.list_namespaced_pod(
            self._namespace, field_selector=f"metadata.name={self._pod}", **self._options
        )
        return [status for pod in found.items for status in pod.status.container_statuses or ()]

    def _last_end(self) -> str:
        """The exit of the master's container before this start; empty in a new pod."""
        for status in self._containers():
            ended = status.last_state.terminated if status.last_state else None
            if status.name == MASTER and ended is not None:
                said = one_line(ended.message or "", LONGEST_MESSAGE)
                reason = "" if ended.reason == "Error" else f" ({ended.reason})"
                return f"exit code {ended.exit_code}{reason}" + (f": {said}" if said else "")
        return ""


def _seconds_since(job: client.V1Job) -> int:
    """Since Kubernetes began to count the time of this Job."""
    return int((datetime.datetime.now(datetime.UTC) - job.status.start_time).total_seconds())
