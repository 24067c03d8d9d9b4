"""The files of another job, or its own pods, that a master finds in its cluster as it starts.

Owns their handling before the job begins. in_cluster.py runs the job.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_text
from shoal.cluster.api import CALL_SECONDS
from shoal.cluster.manifests import JOB_LABEL, ROLE_LABEL
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.master.__main__ import RunningError
from shoal.master.work.ids import ServerId, WorkerId

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5


def take_folder(
    folder: JobFolder, config: JobConfig, *, resume: bool, runs: Callable[[str], bool]
) -> None:
    """Take over the job folder for this job, and write its configuration there.

    The folder is on a volume that outlives jobs: the files of an earlier job are replaced
    with --overwrite only.

    runs: whether a job of another name has a master.

    Raises UserError if another job owns the folder or runs there, or there is no job to resume.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    if resume and not folder.journal.is_dir():
        raise UserError(f"--resume: there is no job with a journal in {folder.path}")
    token = _of(folder, "token")
    if token not in (config.token, None):
        if not config.overwrite:
            raise UserError(
                f"--job-dir: a job has run before in {folder.path}; choose another, replace it "
                "with --overwrite, or go on with it by --resume"
            )
        other = _of(folder, "job_name")
        # One of this job's name has none: this master holds its Lease.
        if other and other != config.job_name and runs(other):
            raise RunningError(f"--job-dir: job {other} is running in {folder.path}")
        folder.empty()
    elif token is None and any(folder.path.iterdir()):
        raise UserError(
            f"--job-dir: {folder.path} is not empty and not the folder of a job; choose another"
        )
    write_text(folder.config, config.to_json())


def _of(folder: JobFolder, name: str) -> str | None:
    """The value of `name` in the folder's job.json; None if no job.json can be read there."""
    try:
        # Not by JobConfig: it would refuse the file of another version of shoal.
        return str(json.loads(folder.config.read_text()).get(name, ""))
    except (OSError, ValueError, AttributeError):
        return None


def remove_pods(core: client.CoreV1Api, namespace: str, job_name: str) -> None:
    """Remove the pods of an earlier master of this job, whose journal is gone with it.

    They belong to a course of the job that nobody knows any more. Raises ApiException.
    """
    asked: set[str] = set()
    while found := _pods(core, namespace, job_name):
        for name in sorted(found - asked):
            logger.warning("%s is of a master whose journal is gone: removed", name)
            _delete(core, namespace, name, grace_period_seconds=0)
            asked.add(name)
        time.sleep(POLL_SECONDS)


def end_pods(core: client.CoreV1Api, namespace: str, job_name: str) -> None:
    """Tell the pods of servers and workers to end; each gets its grace. Raises ApiException."""
    for name in sorted(_pods(core, namespace, job_name)):
        _delete(core, namespace, name)


def _pods(core: client.CoreV1Api, namespace: str, job_name: str) -> set[str]:
    """Names of the job's servers' and workers' pods."""
    roles = f"{ROLE_LABEL} in ({ServerId.role},{WorkerId.role})"
    found = core.list_namespaced_pod(
        namespace, label_selector=f"{JOB_LABEL}={job_name},{roles}", _request_timeout=CALL_SECONDS
    )
    return {pod.metadata.name for pod in found.items}


def _delete(core: client.CoreV1Api, namespace: str, name: str, **options: Any) -> None:
    try:
        core.delete_namespaced_pod(name, namespace, _request_timeout=CALL_SECONDS, **options)
    except ApiException as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
