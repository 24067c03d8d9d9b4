"""One job in a cluster, from outside: its objects, its pods, its master, its result.

Each method is one request to the API server or to the master. What to do with the
answers is remote.py's and jobs.py's.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from shoal.cluster import certificates, explain, given_model, manifests
from shoal.cluster.api import UNREACHABLE, connect_from_outside, log_of
from shoal.cluster.lifetime import JobLifetime
from shoal.cluster.manifests import JOB_LABEL, ROLE_LABEL, Manifest
from shoal.cluster.portforward import PortForward
from shoal.cluster.ports import MASTER_PORT
from shoal.config.job import JobConfig, job_id_of
from shoal.errors import EXIT_JOB_FAILED, EXIT_USER_ERROR, UserError
from shoal.proto.channels.rpc import Connection
from shoal.proto.identity import CLIENT, Caller, Identity
from shoal.proto.wire.transport import peer_name

OUT_OF_MEMORY = "OOMKilled"
NO_NODE = "FailedScheduling"

LAST_LINES = 5
"""Of the end of a container's log, which Kubernetes has kept."""


def is_over(condition: client.V1JobCondition) -> bool:
    """True if a Job with this condition has ended."""
    return condition.type in ("Failed", "Complete") and condition.status == "True"


def crash_of(pod: client.V1Pod) -> tuple[int, str] | None:
    """The number of restarts of the pod's own container, and how it ended the last time.

    None if it was not restarted, or ended without an error.
    """
    for status in pod.status.container_statuses or ():
        ended = status.last_state.terminated if status.last_state else None
        if status.name == pod.metadata.labels[ROLE_LABEL] and ended and ended.exit_code:
            return int(status.restart_count), _end_of(ended, pod.metadata.labels[ROLE_LABEL])
    return None


def _end_of(ended: client.V1ContainerStateTerminated, role: str) -> str:
    """Tell how a container ended, reason first; its last lines only if it exited by itself."""
    if ended.reason == OUT_OF_MEMORY:
        return (
            f"exit code {ended.exit_code}, as it ran out of memory ({OUT_OF_MEMORY}): give it more "
            f"by --{role}-resources"
        )
    # Of a process that was killed they are lines of its log, which have nothing to do with that.
    own = ended.exit_code in (EXIT_JOB_FAILED, EXIT_USER_ERROR)
    last = "\n".join((ended.message or "").strip().splitlines()[-LAST_LINES:]) if own else ""
    reason = "" if ended.reason in (None, "", "Error") else f" ({ended.reason})"
    return f"exit code {ended.exit_code}{reason}" + (f": {last}" if last else "")


class NotBegunError(UserError):
    """The master has not begun, and no command can talk to it yet."""


def handle_of(name: str, namespace: str) -> JobHandle:
    """The job `name` in the namespace, or in that of the kubectl context. Raises UserError."""
    api, default = connect_from_outside()
    return JobHandle(api, namespace or default, name)


class JobHandle(JobLifetime):
    """The job `name` in `namespace`.

    Methods raise UserError where the API refuses or does not answer, unless they say
    something else.
    """

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
        """True if no master runs any more, nor will: the Job has ended, or does not exist."""
        if not self.exists():
            return True
        return any(is_over(condition) for condition in self.job().status.conditions or ())

    def warnings(self, pod: client.V1Pod | None = None) -> list[str]:
        """The cluster's warnings about a pod, or the master's Job; empty if they cannot be read.

        The newest is last. A pod's leave out that no node took it, which its conditions say.
        """
        with contextlib.suppress(ApiException, *UNREACHABLE):
            uid = (pod or self.job()).metadata.uid
            events = self._core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.uid={uid},type=Warning",
                **self._options,
            )
            found = [each for each in events.items if not pod or each.reason != NO_NODE]
            found.sort(key=lambda each: str(each.last_timestamp or each.event_time or ""))
            return [each.message for each in found]
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
        """The audit of every record as the master left it, JSON; None without one."""
        return self._data().get(manifests.AUDIT_FILE)

    def metrics(self) -> str | None:
        """metrics.csv, of a long job not all rows, as the master left it; None without."""
        return self._data().get(manifests.METRICS_FILE)

    def configuration(self) -> tuple[JobConfig, dict[str, Manifest]]:
        """The job's configuration and Pod templates."""
        data = self._data()
        config = JobConfig.from_json(data[manifests.CONFIG_FILE])
        return config, json.loads(data[manifests.TEMPLATES_FILE])

    def given_model(self) -> dict[str, str]:
        """The files of the model that was given by value, in base64, by name."""
        name = given_model.config_map_name(self.name)
        with self._explained("read the ConfigMap with the model"):
            found = self._core.read_namespaced_config_map(name, self.namespace, **self._options)
        return dict(found.binary_data or {})

    def exists(self) -> bool:
        """True if the cluster has the master's Job, running or not."""
        try:
            self._batch.read_namespaced_job(
                manifests.master_name(self.name), self.namespace, **self._options
            )
        except ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise explain.refused(error, self.namespace, self.name, "read the job") from error
        except UNREACHABLE as error:
            raise explain.unreachable(error) from error
        return True

    def credentials(self) -> tuple[str, Identity | None]:
        """The token of the job's processes, and the client's identity; None with --tls=never."""
        # Not by JobConfig: it would refuse another version's file.
        said = json.loads(self._data()[manifests.CONFIG_FILE])
        token = str(said.get("token", ""))
        return token, None if said.get("tls", "never") == "never" else self.identity(
            job_id_of(token)
        )

    def identity(self, job_id: str) -> Identity:
        """The client's identity, which the Role shoal-user may read; the job has no --tls=never.

        Raises NotBegunError before there is one.
        """
        authority = (self.job().metadata.annotations or {}).get(manifests.AUTHORITY_ANNOTATION)
        if authority is None:
            raise NotBegunError(
                f"the master of job {self.name} has not begun: it has made no certificates yet"
            )
        name = certificates.secret_name(self.name, CLIENT, authority)
        doing = "read the Secret with the certificate for commands"
        with self._explained(doing):
            found = self._core.read_namespaced_secret(name, self.namespace, **self._options)
        data = {key: base64.b64decode(value) for key, value in (found.data or {}).items()}
        try:
            files = [data[key] for key in certificates.secret_keys().values()]
        except KeyError as error:
            raise UserError(
                f"the Secret {found.metadata.name} has no {error}: somebody has replaced it. Stop "
                f"the job with kubectl delete job {manifests.master_name(self.name)}, and continue "
                "it with shoal train --resume, which makes new certificates"
            ) from error
        return Identity(Caller(job_id, CLIENT, 0), *files)

    def log(self, pod: client.V1Pod, **options: Any) -> str:
        """Return the log of a pod."""
        with self._explained("read logs"):
            role = pod.metadata.labels[ROLE_LABEL]
            name = pod.metadata.name
            return log_of(self._api, self.namespace, name, role, **self._options, **options)

    def follow_log(self, pod: client.V1Pod) -> Iterator[str]:
        """Yield the log of a pod line by line, until the pod ends."""
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
        self,
        pod: str,
        token: str,
        identity: Identity | None,
        deadline: float,
        patience: float = 0.0,
    ) -> Iterator[Connection]:
        """A connection to the master in `pod`.

        token: of the job's configuration. identity: of the client; None for a job with --tls=never.
        patience: seconds that a call tries to reach it.
        """
        forward = PortForward(self._api, self.namespace, pod, MASTER_PORT)
        with contextlib.closing(forward):
            connection = Connection(
                forward.address,
                deadline=deadline,
                patience=patience,
                peer=peer_name(token, "master"),
                identity=identity,
            )
            with contextlib.closing(connection):
                yield connection
