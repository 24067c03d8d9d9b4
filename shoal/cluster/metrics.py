"""The additions to the pods of a job with --serve-metrics: a token, a port, annotations.

The token is in a Secret of the namespace, which is not the job's: Prometheus reads the metrics of
all jobs of a namespace with one token.
"""

from __future__ import annotations

from typing import Any

from shoal.cluster.ports import METRICS_PORT

Manifest = dict[str, Any]

SECRET = "shoal-metrics"
"""Of each namespace with jobs that serve metrics."""

TOKEN_FOLDER = "/etc/shoal-metrics"
TOKEN_KEY = "token"
"""In the Secret, and the name of the file in a pod."""

TOKEN_FILE = f"{TOKEN_FOLDER}/{TOKEN_KEY}"

PORT_NAME = "metrics"
"""Of the container's port, by which a PodMonitor finds it."""

ANNOTATIONS = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(METRICS_PORT),
    "prometheus.io/path": "/metrics",
}
"""By which configurations of Prometheus without its operator find pods."""

READABLE_BY_GROUP = 0o440
"""Mode of the file, whose group is the pod's fsGroup."""


def mounted() -> tuple[Manifest, Manifest]:
    """(volume, mount) of the token."""
    source = {
        "secretName": SECRET,
        "items": [{"key": TOKEN_KEY, "path": TOKEN_KEY}],
        "defaultMode": READABLE_BY_GROUP,
    }
    mount = {"name": SECRET, "mountPath": TOKEN_FOLDER, "readOnly": True}
    return {"name": SECRET, "secret": source}, mount


def port() -> Manifest:
    """The container's port."""
    return {"name": PORT_NAME, "containerPort": METRICS_PORT}


def how_to_make(namespace: str) -> str:
    """The command that makes the Secret."""
    return (
        f"kubectl create secret generic {SECRET} --namespace {namespace} "
        f"--from-literal {TOKEN_KEY}=$(openssl rand -hex 32)"
    )
