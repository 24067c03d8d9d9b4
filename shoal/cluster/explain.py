"""Refusals of the Kubernetes API as the user reads them: the flag, and what to do."""

from __future__ import annotations

from http import HTTPStatus

from kubernetes.client.exceptions import ApiException

from shoal.base.words import one_line
from shoal.cluster.api import LONGEST_MESSAGE, message_of
from shoal.errors import UserError

NO_IMAGE = ("ErrImageNeverPull", "InvalidImageName", "ErrImagePull", "ImagePullBackOff")
MAY_START = frozenset({"ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"})
"""Reasons that may pass, and are said meanwhile: a registry that is away, a secret that
is about to be made."""

CREATING = "ContainerCreating"
"""Not yet started: its volumes and Secrets come first."""

NO_START = (*NO_IMAGE, "CreateContainerConfigError", "CreateContainerError", "RunContainerError")


class UnreachableError(UserError):
    """The API server does not answer."""


def unreachable(error: Exception) -> UnreachableError:
    """The API server does not answer."""
    return UnreachableError(
        f"the Kubernetes API server does not answer: {message_of(error)}. Check the context with "
        "`kubectl get pods`"
    )


def refused(error: ApiException, namespace: str, job_name: str, doing: str) -> UserError:
    """The API server refuses. doing: what was tried, such as "create the job".

    namespace: empty where it was tried in all of them.
    """
    said = message_of(error)
    if error.status == HTTPStatus.CONFLICT:
        return UserError(
            f"--job-name: there is a job {job_name} in namespace {namespace} already; choose "
            f"another name, or delete it: shoal delete {job_name} --namespace {namespace}"
        )
    if error.status == HTTPStatus.NOT_FOUND and "namespaces" in said:
        return UserError(
            f"--namespace: there is no namespace {namespace}; create it, with what deploy/base has "
            "for it, or choose another"
        )
    if error.status == HTTPStatus.FORBIDDEN and "exceeded quota" in said:
        return UserError(
            f"--namespace: the quota of {namespace} leaves no room: {said}. Request less "
            "(--worker-resources, --ps-resources, --master-resources), "
            "or ask for a larger quota"
        )
    if "PriorityClass" in said:
        return UserError(
            f"--priority: {said}. `kubectl get priorityclasses` shows those "
            "that there are; deploy/base/priorities.yaml has shoal's"
        )
    if error.status == HTTPStatus.FORBIDDEN and not namespace:
        return UserError(
            f"--all-namespaces: you may not {doing} in the whole cluster: {said}. Give "
            "--namespace, or ask for the right to list jobs, pods and configmaps in all namespaces"
        )
    if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return UserError(
            f"you may not {doing} in namespace {namespace}: {said}. Ask for the Role "
            "shoal-user of deploy/base"
        )
    if error.status == HTTPStatus.NOT_FOUND:
        return UserError(
            f"there is no job {job_name} in namespace {namespace}; `shoal jobs` shows those "
            "that there are"
        )
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and "/containerLogs/" in said:
        return UserError(
            "the node of this pod does not answer, so its log cannot be read now; `kubectl get "
            f"nodes` shows which are ready. The API server says: {said}"
        )
    return UserError(f"the cluster refuses to {doing}: {said}")


def suspended(job_name: str, namespace: str) -> str:
    """The master's Job is suspended: what this means, and how the job goes on."""
    job, change = f"{job_name}-master --namespace {namespace}", '{"spec": {"suspend": false}}'
    return (
        "the job is suspended, and has no pods until somebody, or Kueue, resumes it: kubectl patch "
        f"job {job} -p '{change}'"
    )


def cannot_start(image: str, reason: str, message: str) -> UserError:
    """A container waits for something that will not come. message: the kubelet's."""
    message = one_line(message, LONGEST_MESSAGE)
    if reason in NO_IMAGE:
        return UserError(
            f"--image: the cluster has no image {image}: {message or reason}. Push it to a "
            "registry that the cluster can read, or set imagePullPolicy in a --pod-template"
        )
    return UserError(f"the master's pod cannot start: {reason}: {message}")
