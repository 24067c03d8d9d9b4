"""What a job's pods may do on their node: what Pod Security `restricted` allows.

The files of the image belong to root, so processes write to their home and to /tmp only. These are
no emptyDir, with which the file system itself could be read-only: `kubectl drain` refuses pods that
have one. A field that the user's template sets in a securityContext is as it says there.
"""

from __future__ import annotations

from typing import Any

from shoal.config.job import JobConfig

Manifest = dict[str, Any]

USER = 10001
"""Of deploy/Dockerfile, and of all processes of a job."""

HOME = "/home/shoal"
"""Of that user; libraries keep their settings there."""

_POD: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    # Volumes of claims, and Secrets, are the group's to read and write.
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def restrict(spec: Manifest, config: JobConfig) -> None:
    """Restrict a pod, in place. spec: with the user's template, ours being the first container."""
    container = spec["containers"][0]
    spec["securityContext"] = _POD | (spec.get("securityContext") or {})
    container["securityContext"] = _CONTAINER | (container.get("securityContext") or {})
    if not any(variable.get("name") == "HOME" for variable in container["env"]):
        container["env"].append({"name": "HOME", "value": HOME})
    writable = [mount["mountPath"].rstrip("/") for mount in container["volumeMounts"]]
    writable += [HOME, "/tmp"]
    if not any(f"{config.job_dir}/".startswith(f"{folder}/") for folder in writable):
        spec["volumes"].append({"name": "shoal-job", "emptyDir": {}})
        container["volumeMounts"].append({"name": "shoal-job", "mountPath": config.job_dir})
