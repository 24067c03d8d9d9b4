"""Create and delete the objects of a job in a cluster, from outside.

The client makes the master's Job and the objects that its pod mounts; the master makes the rest.
All objects belong to the Job, so that they are deleted with it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shoal.cluster import explain, given_model, manifests, metrics
from shoal.cluster.api import (
    CALL_SECONDS,
    GRPC_PROBES_SINCE,
    UNREACHABLE,
    message_of,
    version_of,
)
from shoal.cluster.manifests import JOB_LABEL, Manifest
from shoal.config.job import JobConfig
from shoal.errors import UserError

DELETE_SECONDS = 60.0
"""For the cluster to remove a job, beside the time that its pods have to end."""

NEVER_STARTED_SECONDS = 5.0
POLL_SECONDS = 0.25

DRY_RUN = "All"
NO_UID, NO_AUTHORITY = "00000000-0000-0000-0000-000000000000", "00000000"


class JobLifetime:
    """Creates and deletes the job `name` in `namespace`. Methods raise as those of JobHandle."""

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

    def check(self, config: JobConfig, templates: dict[str, Manifest]) -> None:
        """Let the cluster judge the objects that the job would create, without creating them."""
        if config.serve_metrics:
            self._check_token()
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
                servers=config.num_servers,
                authority=NO_AUTHORITY,
            )
            try:
                self._core.create_namespaced_pod(
                    self.namespace, pod, dry_run=DRY_RUN, **self._options
                )
            except ApiException as error:
                # Who may not create pods leaves that to the master; a full quota is a wait.
                said = message_of(error)
                passing = "cannot create resource" in said or "exceeded quota" in said
                if error.status != HTTPStatus.CONFLICT and not passing:
                    raise explain.refused(
                        error, self.namespace, self.name, f"create a {role} pod"
                    ) from error
            except UNREACHABLE as error:
                raise explain.unreachable(error) from error

    def _check_token(self) -> None:
        """See that there is a token for the readers of the pods' metrics.

        Without it the pods would wait for their volume. Who may not look leaves that to them.
        """
        why, secret = "", metrics.SECRET
        try:
            found = self._core.read_namespaced_secret(secret, self.namespace, **self._options)
        except ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                why = f"namespace {self.namespace} has no Secret {secret}"
        except UNREACHABLE as error:
            raise explain.unreachable(error) from error
        else:
            if not (found.data or {}).get(metrics.TOKEN_KEY):
                why = f"the Secret {secret} of namespace {self.namespace} has no token"
        if why:
            how = metrics.how_to_make(self.namespace)
            raise UserError(f"--serve-metrics: {why}. Make it: {how}")

    def grpc_probes(self) -> bool:
        """True if the cluster knows gRPC probes."""
        with self._explained("ask for its version"):
            return version_of(self._api) >= GRPC_PROBES_SINCE

    def create(
        self,
        config: JobConfig,
        templates: dict[str, Manifest],
        *,
        model: Path | None = None,
        resume: str = "",
        followed: bool = True,
    ) -> None:
        """Create the master's Job and what belongs to it; all or nothing.

        model: the folder of one that was given by value. resume: names a resumption of the job.
        followed: otherwise Kubernetes holds --start-timeout.
        """
        config_maps = [manifests.config_map(config, templates)]
        if model is not None:
            of_model = manifests.labels(self.name, "model")
            config_maps.append(given_model.config_map(self.name, model, of_model))
        probes = self.grpc_probes()
        job = manifests.master_job(config, templates, grpc_probes=probes, resume=resume)
        if config.start_timeout and not followed:
            # Until the master has begun, which takes this away.
            seconds = math.ceil(config.start_timeout) + manifests.DEADLINE_GRACE_SECONDS
            job["spec"]["activeDeadlineSeconds"] = seconds
        # Without a pod at first: what the pod mounts is to belong to the Job, and be there. Kueue
        # would admit a Job of no pods, and end it once it has one: its pod waits for the mounts.
        held = not config.kueue_queue
        if held:
            job["spec"]["parallelism"] = 0
        with self._explained("create the job"):
            created = self._batch.create_namespaced_job(self.namespace, job, **self._options)
        owned = {"ownerReferences": manifests.owner(self.name, created.metadata.uid)}
        service = manifests.service(self.name)
        for manifest in (*config_maps, service):
            manifest["metadata"] |= owned
        try:
            with self._explained("create the job's ConfigMaps and Service"):
                for each in config_maps:
                    self._core.create_namespaced_config_map(self.namespace, each, **self._options)
                self._core.create_namespaced_service(self.namespace, service, **self._options)
            if held:
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
            patience = self._grace() + DELETE_SECONDS
            self._batch.delete_namespaced_job(
                manifests.master_name(self.name),
                self.namespace,
                propagation_policy="Foreground",
                **self._options,
            )
            begun = time.monotonic()
            while left := self._left():
                passed = time.monotonic() - begun
                if passed > patience:
                    raise UserError(
                        f"job {self.name} is being deleted, but after {patience:.0f} s "
                        f"there is still {', '.join(left)}"
                    )
                if passed > NEVER_STARTED_SECONDS:
                    self._force_never_started()
                time.sleep(POLL_SECONDS)

    def _pods(self) -> list[Any]:
        """The pods of the job."""
        selector = f"{JOB_LABEL}={self.name}"
        listed = self._core.list_namespaced_pod(
            self.namespace, label_selector=selector, **self._options
        )
        return list(listed.items)

    def _grace(self) -> float:
        """The longest time that a pod of the job has to end, in seconds."""
        given = (pod.spec.termination_grace_period_seconds or 0 for pod in self._pods())
        return max(given, default=0)

    def _force_never_started(self) -> None:
        """Remove pods whose containers never ran: a kubelet may take minutes over them."""
        for pod in self._pods():
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
