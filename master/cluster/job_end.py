"""The end of a master in its pod: what Kubernetes, and who watches its Job, is to make of it.

The Job is Complete if the job has come to its end as it should, and Failed if not: workflow
engines look at nothing else. A container that ends with an error is started again by its
kubelet, as a master that is killed has to be; so a job that failed also has its pod end.
"""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
import threading
from typing import Any, NoReturn

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shoal.base.signals import on_signal
from shoal.cluster.api import CALL_SECONDS, UNREACHABLE, message_of
from shoal.cluster.manifests import DEADLINE_GRACE_SECONDS, MASTER_RESTARTS, master_name
from shoal.errors import EXIT_SUCCESS, UserError
from shoal.master.cluster.insisting import insist

logger = logging.getLogger(__name__)

TOLD_SECONDS = 20.0
"""For the kubelet to end the pod, before this process ends by itself."""

LAST_SECONDS = 5
"""For that of a pod whose container was started again before: of a Job whose retries are over,
Kubernetes would remove it with its log."""


class MastersJob:
    """The Job and the pod that this master is. Methods raise what the client raises."""

    def __init__(self, api: client.ApiClient, namespace: str, job_name: str, pod: str) -> None:
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self._namespace, self._name, self._pod = namespace, master_name(job_name), pod
        self._options = {"_request_timeout": CALL_SECONDS}

    def _patch(self, spec: dict[str, Any]) -> client.V1Job:
        return self._batch.patch_namespaced_job(
            self._name, self._namespace, {"spec": spec} if spec else {}, **self._options
        )

    def begun(self, deadline: int) -> None:
        """Allow the restarts of a master that runs; of one that cannot begin there are few.

        deadline: seconds after which the master ends the job, from now at the latest; 0: never.
        Kubernetes counts from the Job's start, in which the master may have waited for room: it is
        to end a master only that has not done so.
        """
        # A limit that there is holds for its start: --start-timeout of a job that nobody follows.
        job = self._patch({"backoffLimit": MASTER_RESTARTS, "activeDeadlineSeconds": None})
        if deadline:
            seconds = _seconds_since(job) + deadline + DEADLINE_GRACE_SECONDS
            self._patch({"activeDeadlineSeconds": seconds})

    def fail(self) -> None:
        """Have the Job be Failed as soon as this pod has, which it is to be now."""
        if not self._restarts():
            self._patch({"backoffLimit": 0})
        else:
            seconds = max(1, _seconds_since(self._patch({})) + LAST_SECONDS)
            self._patch({"activeDeadlineSeconds": seconds})
        body = {"spec": {"activeDeadlineSeconds": 1}}
        self._core.patch_namespaced_pod(self._pod, self._namespace, body, **self._options)

    def _restarts(self) -> int:
        found = self._core.list_namespaced_pod(
            self._namespace, field_selector=f"metadata.name={self._pod}", **self._options
        )
        statuses = [s for pod in found.items for s in pod.status.container_statuses or ()]
        return sum(status.restart_count for status in statuses)


def _seconds_since(job: client.V1Job) -> int:
    """Since Kubernetes began to count the time of this Job."""
    return int((datetime.datetime.now(datetime.UTC) - job.status.start_time).total_seconds())


def allow_restarts(job: MastersJob, deadline: int) -> None:
    """As MastersJob.begun; without the right to, the job goes on with few restarts."""
    try:
        insist(job.begun, deadline)
    except (UserError, OSError) as error:
        logger.warning("this master may be restarted few times only: %s", error)


def end(job: MastersJob, code: int) -> NoReturn:
    """End this process for good, with the job's exit code.

    With 0 if the Job cannot be told of a failure: another code would begin the job again.
    """
    if code == EXIT_SUCCESS:
        sys.exit(code)
    told = threading.Event()
    on_signal(signal.SIGTERM, told.set)
    try:
        job.fail()
    except (ApiException, *UNREACHABLE) as error:
        said = message_of(error)
        logger.warning("the Job cannot be marked as failed, and will be Complete: %s", said)
        os._exit(EXIT_SUCCESS)
    told.wait(TOLD_SECONDS)
    os._exit(code)
