"""What a job's pods may do on their node: what Pod Security `restricted` allows, and less.

Their own file system is read-only, but for empty folders where processes write. A field that the
user's template sets in a securityContext is as it says there.
"""

from __future__ import annotations

from typing import Any

from shoal.config.job import JobConfig

Manifest = dict[str, Any]

USER = 10001
"""Of deploy/Dockerfile, and of all processes of a job."""

HOME = "/home/shoal"
"""Of that user; libraries keep their settings there."""

TEMPORARY = "/tmp"

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
    "readOnlyRootFilesystem": True,
}


def restrict(spec: Manifest, config: JobConfig) -> None:
    """Restrict a pod, in place. spec: with the user's template, ours being the first container."""
    container = spec["containers"][0]
    spec["securityContext"] = _POD | (spec.get("securityContext") or {})
    container["securityContext"] = _CONTAINER | (container.get("securityContext") or {})
    if not any(variable.get("name") == "HOME" for variable in container["env"]):
        container["env"].append({"name": "HOME", "value": HOME})
    for name, folder in (("tmp", TEMPORARY), ("home", HOME), ("job", config.job_dir)):
        mounted = [mount["mountPath"].rstrip("/") for mount in container["volumeMounts"]]
        # The job's folder may be in one of the others; those may be volumes of the user's.
        inside = name == "job" and any(f"{folder}/".startswith(f"{at}/") for at in mounted)
        if folder not in mounted and not inside:
            spec["volumes"].append({"name": f"shoal-{name}", "emptyDir": {}})
            container["volumeMounts"].append({"name": f"shoal-{name}", "mountPath": folder})
