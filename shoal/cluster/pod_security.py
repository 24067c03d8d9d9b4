"""The rights of a job's pods on their node: those that Pod Security `restricted` allows.

The file system of servers and masters is read-only. By default pods have no emptyDir for their
files, as `kubectl drain` refuses pods that have one: they write to volumes of the job. Temporary
files go to /dev/shm, which the container runtime makes for each pod, with 64 MiB. A --job-dir that
is neither on a volume nor below /tmp or the home is an emptyDir. /dev/shm is too little for
workers, where TensorFlow, the export and the user's code write: they have the container's own disk,
and the files of the image belong to root. So it is with a master, or a server, whose folder is on
no volume. A field that the user's template sets in a securityContext is as it says there.
"""

from __future__ import annotations

from typing import Any

from shoal.config.job import JobConfig

Manifest = dict[str, Any]

USER = 10001
"""Of deploy/Dockerfile, and of all processes of a job."""

HOME = "/home/shoal"
"""Of that user; libraries keep their settings there."""

MEMORY_FOLDER = "/dev/shm"
"""Can be written in every pod, whose memory it takes; programs cannot be run from there."""

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


def restrict(role: str, spec: Manifest, config: JobConfig) -> None:
    """Restrict a pod, in place. spec: with the user's template, ours being the first container."""
    container = spec["containers"][0]
    _mount_job_folder(spec, config)
    own = dict(_CONTAINER)
    _set_variable(container, "HOME", HOME)
    if not _writes_to_own_disk(role, container, config):
        own["readOnlyRootFilesystem"] = True
        _set_variable(container, "TMPDIR", MEMORY_FOLDER)
    spec["securityContext"] = _POD | (spec.get("securityContext") or {})
    container["securityContext"] = own | (container.get("securityContext") or {})


def _mount_job_folder(spec: Manifest, config: JobConfig) -> None:
    """Mount an emptyDir at --job-dir unless that folder is writable already."""
    container = spec["containers"][0]
    writable = [mount["mountPath"] for mount in container["volumeMounts"]] + [HOME, "/tmp"]
    if not _below(config.job_dir, writable):
        spec["volumes"].append({"name": "shoal-job", "emptyDir": {}})
        container["volumeMounts"].append({"name": "shoal-job", "mountPath": config.job_dir})


def _writes_to_own_disk(role: str, container: Manifest, config: JobConfig) -> bool:
    """True if a container writes to places that are on none of its volumes."""
    if role == "worker":
        return True
    places = list(filter(None, (config.checkpoint_dir, config.publish)))
    if role == "master" or (config.keeps_log and config.log_in_files):
        places.append(config.job_dir)
    volumes = [mount["mountPath"] for mount in container["volumeMounts"]]
    return any("://" not in place and not _below(place, volumes) for place in places)


def _below(path: str, folders: list[str]) -> bool:
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _set_variable(container: Manifest, name: str, value: str) -> None:
    """Set a variable of the environment, unless the template has."""
    if not any(variable.get("name") == name for variable in container["env"]):
        container["env"].append({"name": name, "value": value})
