"""Certificates of a job's pods: the Secrets that hold them, and the volume of a pod's own.

A Secret is of one role. A pod mounts two entries of it, its own certificate and key, so a worker
has not the key of another. Pods without a token of the API cannot read a Secret; the master's Role
does not let it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shoal.config.job import JobConfig
from shoal.proto.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    POD_FOLDER,
    Identity,
)

Manifest = dict[str, Any]

SECRET_CERTIFICATES = 400
"""In one Secret, which holds a MiB."""

LEAST_WORKERS, MORE_WORKERS = 64, 4
"""The workers that have certificates: at least so many, and so many times those that the job begins
with; and all of --workers."""

LEAST_SERVERS, MORE_SERVERS = 16, 4
"""The same of servers, and of --servers."""

READABLE_BY_GROUP = 0o440
"""Mode of the files. Their group is the pod's fsGroup; nobody may write."""


def certified_workers(config: JobConfig) -> int | None:
    """How many workers of a job have certificates; None: its workers need none made beforehand.

    The key that makes certificates never enters the cluster, so the job gets no further ones.
    """
    if config.insecure or not config.image:
        return None
    return max(LEAST_WORKERS, MORE_WORKERS * config.num_workers, config.worker_range[1])


def certified_servers(config: JobConfig) -> int | None:
    """How many servers of a job have certificates; None as of `certified_workers`."""
    if config.insecure or not config.image:
        return None
    return max(LEAST_SERVERS, MORE_SERVERS * config.num_servers, config.server_range[1])


def secret_name(job_name: str, role: str, index: int = 0) -> str:
    """Name of the Secret that has the certificate of a process."""
    return f"{job_name}-{role}-tls-{index // SECRET_CERTIFICATES}"


def secret_keys(index: int = 0) -> dict[str, str]:
    """File of an identity -> its key in the Secret."""
    return {
        AUTHORITY_FILE: AUTHORITY_FILE,
        CERTIFICATE_FILE: f"{index}.crt",
        KEY_FILE: f"{index}.key",
    }


def secrets(
    job_name: str, identities: Iterable[Identity], labels: Mapping[str, str]
) -> list[Manifest]:
    """The Secrets of a job's certificates."""
    made: dict[str, Manifest] = {}
    for identity in identities:
        role, index = identity.caller.role, identity.caller.index
        name, keys = secret_name(job_name, role, index), secret_keys(index)
        found = made.setdefault(
            name,
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "labels": dict(labels)},
                "immutable": True,
                "stringData": {},
            },
        )
        found["stringData"] |= {
            keys[AUTHORITY_FILE]: identity.authority.decode(),
            keys[CERTIFICATE_FILE]: identity.certificate.decode(),
            keys[KEY_FILE]: identity.key.decode(),
        }
    return list(made.values())


def mounted(job_name: str, role: str, index: int) -> tuple[Manifest, Manifest]:
    """(volume, mount) of the identity of a pod."""
    items = [{"key": key, "path": path} for path, key in secret_keys(index).items()]
    secret = {
        "secretName": secret_name(job_name, role, index),
        "items": items,
        "defaultMode": READABLE_BY_GROUP,
    }
    mount = {"name": "shoal-identity", "mountPath": POD_FOLDER, "readOnly": True}
    return {"name": "shoal-identity", "secret": secret}, mount
