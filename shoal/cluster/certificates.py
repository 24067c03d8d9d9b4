"""Certificates of a job's pods: the Secrets that hold them, and the volume of a pod's own.

A Secret is of one role. A pod mounts two entries of it, its own certificate and key, so a worker
has not the key of another. Pods without a token of the API cannot read a Secret; the master's Role
does not let it. The master of a new Job makes them (master/cluster/job_certificates.py): nobody who
writes down or applies the job's objects has a secret among them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from shoal.config.job import JobConfig
from shoal.proto.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    MASTER,
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

JOB_UID_FILE = "job-uid"
"""Of the master's Secret: the uid of the Job that it belongs to. One of an earlier Job of the same
name has the same name."""


def certified_workers(config: JobConfig) -> int | None:
    """The number of workers that have certificates; None: workers need none made beforehand.

    The key that makes certificates is forgotten, so the job gets no further ones.
    """
    if config.insecure or not config.image:
        return None
    return max(LEAST_WORKERS, MORE_WORKERS * config.num_workers, config.worker_range[1])


def certified_servers(config: JobConfig) -> int | None:
    """The number of servers that have certificates; None as for `certified_workers`."""
    if config.insecure or not config.image:
        return None
    return max(LEAST_SERVERS, MORE_SERVERS * config.num_servers, config.server_range[1])


def authority_name(identity: Identity) -> str:
    """Names the authority that has made a certificate, in the names of Secrets."""
    return hashlib.sha256(identity.authority).hexdigest()[:8]


def secret_name(job_name: str, role: str, authority: str = "", index: int = 0) -> str:
    """Name of the Secret that has the certificate of a process.

    authority: as `authority_name` gives it. The master's is mounted before there is one.
    """
    words = [job_name, role, "tls"] + ([] if role == MASTER else [authority])
    return "-".join([*words, str(index // SECRET_CERTIFICATES)])


def secret_keys(index: int = 0) -> dict[str, str]:
    """File of an identity -> its key in the Secret."""
    return {
        AUTHORITY_FILE: AUTHORITY_FILE,
        CERTIFICATE_FILE: f"{index}.crt",
        KEY_FILE: f"{index}.key",
    }


def secrets(job_name: str, identities: Iterable[Identity], metadata: Manifest) -> list[Manifest]:
    """The Secrets of a job's certificates, with these metadata beside their names."""
    made: dict[str, Manifest] = {}
    for identity in identities:
        role, index = identity.caller.role, identity.caller.index
        name = secret_name(job_name, role, authority_name(identity), index)
        keys = secret_keys(index)
        found = made.setdefault(
            name,
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": metadata | {"name": name},
                # The master's may be of an earlier Job: the kubelet is to look again.
                "immutable": role != MASTER,
                "stringData": {},
            },
        )
        found["stringData"] |= {
            keys[AUTHORITY_FILE]: identity.authority.decode(),
            keys[CERTIFICATE_FILE]: identity.certificate.decode(),
            keys[KEY_FILE]: identity.key.decode(),
        }
    return list(made.values())


def mounted(job_name: str, role: str, authority: str, index: int) -> tuple[Manifest, Manifest]:
    """(volume, mount) of the identity of a pod; that of the master may not be there yet."""
    keys = secret_keys(index) | ({JOB_UID_FILE: JOB_UID_FILE} if role == MASTER else {})
    secret: Manifest = {
        "secretName": secret_name(job_name, role, authority, index),
        "items": [{"key": key, "path": path} for path, key in keys.items()],
        "defaultMode": READABLE_BY_GROUP,
    }
    if role == MASTER:
        secret["optional"] = True
    mount = {"name": "shoal-identity", "mountPath": POD_FOLDER, "readOnly": True}
    return {"name": "shoal-identity", "secret": secret}, mount
