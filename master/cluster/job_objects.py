"""The objects of a job in its cluster, beside its pods: its master looks after them.

Owns that the ConfigMap, the Service and the servers' disruption budget are there, belong to the
job's Job, and are the controller of its pods; somebody may delete them by mistake. Makes the
requests; that a thread of the master's asks for them is in_cluster.py's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shoal.cluster import manifests
from shoal.cluster.api import CALL_SECONDS, POLICY_V1_SINCE, UNREACHABLE, message_of
from shoal.cluster.manifests import JOB_LABEL, ROLE_LABEL, Manifest
from shoal.config.job import JobConfig

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Between two looks: without the Service nobody finds a server that was started again."""

AGAIN = "the job's {} was deleted by somebody, and is made again"

_BUDGETS = "poddisruptionbudgets"


class JobObjects:
    """The objects of the job that `config` describes. Methods raise what the client raises.

    job_uid: of the master's Job.
    """

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        config: JobConfig,
        templates: dict[str, Manifest],
        job_uid: str,
    ) -> None:
        self._core, self._any = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._namespace, self._name = namespace, config.job_name
        self._config, self._templates, self._job_uid = config, templates, job_uid
        self._options = {"_request_timeout": CALL_SECONDS}
        self._data: dict[str, str] = {}
        self._config_map_uid = ""
        self._budgeted = False
        self._may_budget = True

    @property
    def owners_of_pods(self) -> list[Manifest]:
        """The owner references of a new pod."""
        return manifests.owners_of_pod(self._name, self._job_uid, self._config_map_uid)

    def keep(self) -> list[str]:
        """See to it that ConfigMap and Service are there; returns those that were made again."""
        made = []
        config_map = manifests.config_map(self._config, self._templates)
        config_map["data"] |= self._data
        found, again = self._keep_one("config_map", config_map)
        made += ["ConfigMap"] if again else []
        if found.metadata.uid != self._config_map_uid:
            before, self._config_map_uid = self._config_map_uid, found.metadata.uid
            try:
                self._own_pods()
            except BaseException:
                self._config_map_uid = before  # the next call tries again
                raise
        _, again = self._keep_one("service", manifests.service(self._name))
        return made + (["Service"] if again else [])

    def publish(self, data: dict[str, str]) -> None:
        """Add to the ConfigMap, which is made again if it is gone."""
        self._data = data
        try:
            self._core.patch_namespaced_config_map(
                self._name, self._namespace, {"data": data}, **self._options
            )
        except ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            self.keep()

    def budget(self, available: int, version: tuple[int, int]) -> bool:
        """Set the disruption budget: draining nodes leaves `available` servers running.

        Returns True if somebody has deleted an earlier budget.

        version: of the cluster.
        """
        if not self._may_budget:
            return False
        policy = "v1" if version >= POLICY_V1_SINCE else "v1beta1"
        where = ("policy", policy, self._namespace, _BUDGETS)
        body = manifests.disruption_budget(self._name, available)
        body["apiVersion"] = f"policy/{policy}"
        body["metadata"]["ownerReferences"] = manifests.owner(self._name, self._job_uid)
        again = False
        try:
            try:
                self._any.patch_namespaced_custom_object(*where, self._name, body, **self._options)
            except ApiException as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                self._any.create_namespaced_custom_object(*where, body, **self._options)
                again = self._budgeted
            self._budgeted = True
        except ApiException as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            self._may_budget = False  # the job does without
            logger.warning("no disruption budget for the servers: %s", message_of(error))
        return again

    def _keep_one(self, kind: str, manifest: Manifest) -> tuple[Any, bool]:
        """The object, which is the Job's now, and whether it had to be made again."""
        patch = getattr(self._core, f"patch_namespaced_{kind}")
        create = getattr(self._core, f"create_namespaced_{kind}")
        owned = {"ownerReferences": manifests.owner(self._name, self._job_uid)}
        try:
            return patch(self._name, self._namespace, {"metadata": owned}, **self._options), False
        except ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        manifest["metadata"] |= owned
        return create(self._namespace, manifest, **self._options), True

    def _own_pods(self) -> None:
        """Make this ConfigMap the controller of the pods of the job's servers and workers."""
        listed = self._core.list_namespaced_pod(
            self._namespace,
            label_selector=f"{JOB_LABEL}={self._name},{ROLE_LABEL} in (ps,worker)",
            **self._options,
        )
        for pod in listed.items:
            known = {owner.uid for owner in pod.metadata.owner_references or ()}
            if self._config_map_uid in known or pod.metadata.deletion_timestamp:
                continue
            change = {
                "op": "add",  # which replaces what is there
                "path": "/metadata/ownerReferences",
                "value": self.owners_of_pods,
            }
            try:
                self._core.patch_namespaced_pod(
                    pod.metadata.name, self._namespace, [change], **self._options
                )
            except ApiException as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise


def look_after(
    objects: JobObjects,
    available: Callable[[], int],
    version: tuple[int, int],
    tell: Callable[[str], None],
    show: Callable[[], None],
    ended: threading.Event,
) -> None:
    """Keep the objects until `ended`, on the caller's thread; `tell` is told what was missing.

    available, version: as JobObjects.budget takes them. show: shows on the Job how the job goes,
    by the same API.
    """
    told = ""
    while not ended.wait(LOOK_SECONDS):
        try:
            for kind in objects.keep():
                tell(AGAIN.format(kind))
            # The servers of now: more or fewer than the job began with, where it was scaled.
            if objects.budget(available(), version):
                tell(AGAIN.format("PodDisruptionBudget"))
            show()
            told = ""
        except (ApiException, *UNREACHABLE) as error:
            said = message_of(error)
            if said != told:
                logger.warning("the job's objects could not be looked after: %s", said)
            told = said
        except Exception:
            logger.exception("looking after the job's objects failed")  # and is tried again
