"""The way to the Kubernetes API: credentials, and errors as the user reads them."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from shoal.base.words import one_line
from shoal.cluster.configured import NoClusterError

CALL_SECONDS = 20.0
"""For one call: an API server that is upgraded hangs, and another try finds the new one."""

UNREACHABLE = (HTTPError, OSError)

LONGEST_MESSAGE = 1000
"""Characters of a message of the API server that are shown. It may list every field of a pod that
is invalid; a refusal by quota, the longest that is looked into for its reason, has it far ahead."""

GRPC_PROBES_SINCE = (1, 24)
POLICY_V1_SINCE = (1, 21)
"""Versions of Kubernetes with probes by gRPC's health service, and with policy/v1."""


def connect_from_outside() -> tuple[client.ApiClient, str]:
    """A client by the present kubectl context, and the context's namespace.

    Raises NoClusterError if there is none that can be used.
    """
    try:
        _, context = config.list_kube_config_contexts()
        api = config.new_client_from_config()
    except config.ConfigException as error:
        raise NoClusterError(str(error)) from error
    return api, context["context"].get("namespace") or "default"


def connect_from_pod() -> client.ApiClient:
    """A client by the service account of the pod that this runs in."""
    config.load_incluster_config()
    return client.ApiClient()


def message_of(error: Exception) -> str:
    """Tell why a call of the API failed, in one line of at most `LONGEST_MESSAGE` characters.

    error: an ApiException, which has the server's message, or one of `UNREACHABLE`. If the body is
    no message of the API, such as a proxy's page, only the status is told.
    """
    said = str(error)
    if isinstance(error, ApiException):
        try:
            said = str(json.loads(error.body)["message"])
        except (TypeError, ValueError, KeyError):
            said = f"{error.status} {error.reason}"
    return one_line(said, LONGEST_MESSAGE)


def is_final(error: ApiException) -> bool:
    """True if the API server would refuse the same call again.

    False after a conflict or too many requests, which pass, and after an error of its own.
    """
    passing = (HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)
    return 400 <= error.status < 500 and error.status not in passing


def plain(api: client.ApiClient, value: Any) -> Any:
    """An object of the client library as the dict that the API sent."""
    return api.sanitize_for_serialization(value)


def log_of(api: client.ApiClient, namespace: str, pod: str, container: str, **options: Any) -> str:
    """Return the log of a container, which may hold any bytes. Raises the client's errors."""
    # The client itself raises on bytes that are no UTF-8, which any program may write.
    answer = client.CoreV1Api(api).read_namespaced_pod_log(
        pod, namespace, container=container, _preload_content=False, **options
    )
    return bytes(answer.data).decode(errors="replace")


def version_of(api: client.ApiClient) -> tuple[int, int]:
    """The version of the cluster's API server, such as (1, 20)."""
    version = client.VersionApi(api).get_code(_request_timeout=CALL_SECONDS)
    major, minor = (
        int("".join(filter(str.isdigit, text)) or 0) for text in (version.major, version.minor)
    )
    return major, minor
