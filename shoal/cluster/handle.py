"""One job in a cluster, from outside: its objects, its pods, its master, its result.

Each method is one request to the API server or to the master. What to do with the
answers is remote.py's and jobs.py's.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from shoal.cluster import explain, manifests
from shoal.cluster.api import (
    CALL_SECONDS,
    GRPC_PROBES_SINCE,
    UNREACHABLE,
    message_of,
    version_of,
)
from shoal.cluster.manifests import JOB_LABEL, ROLE_LABEL, Manifest
from shoal.cluster.portforward import PortForward
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto.rpc import Connection
from shoal.proto.transport import peer_name

DELETE_SECONDS = 60.0
"""For the cluster to remove a job: its pods' grace, and some."""

NEVER_STARTED_SECONDS = 5.0
POLL_SECONDS = 0.25

LAST_LINES = 5
"""Of the end of a container's log, which Kubernetes has kept."""

DRY_RUN = "All"
NO_UID = "00000000-0000-0000-0000-000000000000"


def is_over(condition: client.V1JobCondition) -> bool:
    """Whether a Job with this condition has ended."""
    return condition.type in ("Failed", "Complete") and condition.status == "True"


def crash_of(pod: client.V1Pod) -> tuple[int, str] | None:
    """How often the pod's own container was started again, and how it ended the last time.

    None if it was not, or if there was no error.
    """
    for status in pod.status.container_statuses or ():
        ended = status.last_state.terminated if status.last_state else None
        if status.name == pod.metadata.labels[ROLE_LABEL] and ended and ended.exit_code:
            last = "\n".join((ended.message or "").strip().splitlines()[-LAST_LINES:])
            how = f"exit code {ended.exit_code}" + (f": {last}" if last else "")
            return int(status.restart_count), how
    return None


class JobHandle:
    """The job `name` in `namespace`.

    Methods raise UserError where the API refuses or does not answer, unless they say
    something else.
    """

    def __init__(self, api: client.ApiClient, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name
        self._api = api
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self._options = {"_request_timeout": CALL_SECONDS}

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except ApiException as error:
            raise explain.refused(error, self.namespace, self.name, doing) from error
        except UNREACHABLE as error:
            raise explain.unreachable(error) from error

    # ------------------------------------------------------------ making and removing

    def check(self, config: JobConfig, templates: dict[str, Manifest]) -> None:
        """Have the cluster judge what the job would create, without creating it."""
        grpc_probes = self.grpc_probes()
        create_job = self._batch.create_namespaced_job
        with self._explained("create the job"):
            job = manifests.master_job(config, templates, grpc_probes=grpc_probes)
            create_job(self.namespace, job, dry_run=DRY_RUN, **self._options)
        for role in ("ps", "worker"):
            pod = manifests.process_pod(
                config,
                templates,
                role,
                0,
                0,
                namespace=self.namespace,
                owners=manifests.owners_of_pod(config.job_name, NO_UID, NO_UID),
                grpc_probes=grpc_probes,
                workers=config.num_workers,
            )
            try:
                self._core.create_namespaced_pod(
                    self.namespace, pod, dry_run=DRY_RUN, **self._options
                )
            except ApiException as error:
                # Who may not create pods leaves that to the master; a full quota is a wait.
                said = message_of(error)
                passing = "cannot create resource" in said or "exceeded quota" in said
                if error.status != 409 and not passing:
                    raise explain.refused(
                        error, self.namespace, self.name, f"create a {role} pod"
                    ) from error
            except UNREACHABLE as error:
                raise explain.unreachable(error) from error

    def grpc_probes(self) -> bool:
        """Whether the cluster knows gRPC probes."""
        with self._explained("ask for its version"):
            return version_of(self._api) >= GRPC_PROBES_SINCE

    def create(
        self, config: JobConfig, templates: dict[str, Manifest], *, resume: str = ""
    ) -> None:
        """Create the master's Job and what belongs to it; all or nothing.

        resume: names a resumption of the job.
        """
        probes = self.grpc_probes()
        job = manifests.master_job(config, templates, grpc_probes=probes, resume=resume)
        # Without a pod at first: what the pod mounts is to belong to the Job, and be there.
        job["spec"]["parallelism"] = 0
        with self._explained("create the job"):
            created = self._batch.create_namespaced_job(self.namespace, job, **self._options)
        owned = {"ownerReferences": manifests.owner(self.name, created.metadata.uid)}
        config_map = manifests.config_map(config, templates)
        service = manifests.service(self.name)
        for manifest in (config_map, service):
            manifest["metadata"] |= owned
        try:
            with self._explained("create the job's ConfigMap and Service"):
                self._core.create_namespaced_config_map(self.namespace, config_map, **self._options)
                self._core.create_namespaced_service(self.namespace, service, **self._options)
            with self._explained("start the job"):
                self._batch.patch_namespaced_job(
                    job["metadata"]["name"],
                    self.namespace,
                    {"spec": {"parallelism": 1}},
                    **self._options,
                )
        except BaseException:
            self.delete()
            raise

    def delete(self) -> None:
        """Delete the job and wait until nothing of it is left.

        Raises UserError if there is none, or if something stays.
        """
        with self._explained("delete the job"):
            self._batch.delete_namespaced_job(
                manifests.master_name(self.name),
                self.namespace,
                propagation_policy="Foreground",
                **self._options,
            )
            give_up = time.monotonic() + DELETE_SECONDS
            while left := self._left():
                if time.monotonic() > give_up:
                    raise UserError(
                        f"job {self.name} is being deleted, but after {DELETE_SECONDS:.0f} s "
                        f"there is still {', '.join(left)}"
                    )
                if time.monotonic() > give_up - DELETE_SECONDS + NEVER_STARTED_SECONDS:
                    self._force_never_started()
                time.sleep(POLL_SECONDS)

    def _force_never_started(self) -> None:
        """Remove pods whose containers never ran: a kubelet may take minutes over them."""
        for pod in self.pods():
            if pod.status.phase == "Pending" and pod.metadata.deletion_timestamp:
                with contextlib.suppress(ApiException):
                    self._core.delete_namespaced_pod(
                        pod.metadata.name, self.namespace, grace_period_seconds=0, **self._options
                    )

    def _left(self) -> list[str]:
        """Names of the job's objects that there still are."""
        select = {"label_selector": f"{JOB_LABEL}={self.name}", **self._options}
        kinds = (
            self._batch.list_namespaced_job,
            self._core.list_namespaced_pod,
            self._core.list_namespaced_config_map,
            self._core.list_namespaced_service,
        )
        return [
            found.metadata.name for kind in kinds for found in kind(self.namespace, **select).items
        ]

    # ------------------------------------------------------------ looking

    def job(self) -> client.V1Job:
        """The master's Job."""
        with self._explained("read the job"):
            return self._batch.read_namespaced_job(
                manifests.master_name(self.name), self.namespace, **self._options
            )

    def pods(self, role: str = "") -> list[client.V1Pod]:
        """The job's pods, or those of a role."""
        selector = f"{JOB_LABEL}={self.name}" + (f",{ROLE_LABEL}={role}" if role else "")
        with self._explained("list pods"):
            listed = self._core.list_namespaced_pod(
                self.namespace, label_selector=selector, **self._options
            )
        return list(listed.items)

    def master_pod(self) -> client.V1Pod | None:
        """The pod of the master, the newest if there are several; None if there is none."""
        pods = self.pods("master")
        return max(pods, key=lambda pod: pod.metadata.creation_timestamp) if pods else None

    def over(self) -> bool:
        """Whether no master runs any more, nor will: the Job has ended, or is not there."""
        if not self.exists():
            return True
        return any(is_over(condition) for condition in self.job().status.conditions or ())

    def warnings(self) -> list[str]:
        """What the cluster complains of about the master's Job; empty if we may not know."""
        with contextlib.suppress(ApiException, *UNREACHABLE):
            uid = self.job().metadata.uid
            events = self._core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.uid={uid},type=Warning",
                **self._options,
            )
            return [event.message for event in events.items]
        return []

    def _data(self) -> dict[str, str]:
        with self._explained("read the job's ConfigMap"):
            found = self._core.read_namespaced_config_map(
                self.name, self.namespace, **self._options
            )
        return dict(found.data or {})

    def result(self) -> str | None:
        """result.json as the master left it; None while there is none."""
        return self._data().get(manifests.RESULT_FILE)

    def audit(self) -> str | None:
        """What is to be said of every record, JSON, as the master left it; None without."""
        return self._data().get(manifests.AUDIT_FILE)

    def configuration(self) -> tuple[JobConfig, dict[str, Manifest]]:
        """The job's configuration and Pod templates."""
        data = self._data()
        config = JobConfig.from_json(data[manifests.CONFIG_FILE])
        return config, json.loads(data[manifests.TEMPLATES_FILE])

    def exists(self) -> bool:
        """Whether the cluster has the master's Job, running or not."""
        try:
            self._batch.read_namespaced_job(
                manifests.master_name(self.name), self.namespace, **self._options
            )
        except ApiException as error:
            if error.status == 404:
                return False
            raise explain.refused(error, self.namespace, self.name, "read the job") from error
        except UNREACHABLE as error:
            raise explain.unreachable(error) from error
        return True

    def token(self) -> str:
        """The token of the job's processes."""
        # Not by JobConfig: it would refuse the file of another version of shoal.
        return str(json.loads(self._data()[manifests.CONFIG_FILE]).get("token", ""))

    def log(self, pod: client.V1Pod, **options: Any) -> str:
        """What a pod has written."""
        with self._explained("read logs"):
            return str(
                self._core.read_namespaced_pod_log(
                    pod.metadata.name,
                    self.namespace,
                    container=pod.metadata.labels[ROLE_LABEL],
                    **self._options,
                    **options,
                )
            )

    def follow_log(self, pod: client.V1Pod) -> Iterator[str]:
        """What a pod writes, line by line, until it ends."""
        with self._explained("read logs"):
            yield from watch.Watch().stream(
                self._core.read_namespaced_pod_log,
                pod.metadata.name,
                self.namespace,
                container=pod.metadata.labels[ROLE_LABEL],
            )

    # ------------------------------------------------------------ the master

    @contextmanager
    def master(
        self, pod: str, token: str, deadline: float, patience: float = 0.0
    ) -> Iterator[Connection]:
        """A connection to the master in `pod`.

        token: of the job's configuration. patience: seconds that a call tries to reach it.
        """
        forward = PortForward(self._api, self.namespace, pod, manifests.MASTER_PORT)
        connection = Connection(
            forward.address, deadline=deadline, patience=patience, peer=peer_name(token, "master")
        )
        try:
            yield connection
        finally:
            connection.close()
            forward.close()
