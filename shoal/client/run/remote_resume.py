"""`shoal train --resume` of a job on Kubernetes: a new master on the same volume.

Owns finding out which job that is, and that it can go on; how one is followed is remote.py's.
The journal itself is on the job's volume, so what is in it only the master can tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from pathlib import Path
from typing import Any

from shoal.base.disk.job_folder import JobFolder
from shoal.client.found.claim import reopened
from shoal.client.run.remote import follow_job
from shoal.client.show.display import Display
from shoal.cluster import given_model
from shoal.cluster.handle import JobHandle, handle_of
from shoal.cluster.manifests import Manifest
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.result import JobResult


def resume_from_folder(job_dir: str, changes: dict[str, Any], display: Display) -> JobResult:
    """Go on with the job that was followed from this folder; as run_remote_job otherwise.

    changes: of the configuration.
    """
    folder = JobFolder(Path(job_dir).absolute())
    config = JobConfig.load(folder.config)
    templates = json.loads(folder.templates.read_text())
    with contextlib.suppress(OSError, ValueError):
        _refuse_succeeded(JobResult.read(folder.result).state, config)
    handle = handle_of(config.job_name, config.namespace)
    return _resume(handle, config, templates, changes, folder, display)


def resume_by_name(
    name: str, namespace: str, changes: dict[str, Any], display: Display
) -> JobResult:
    """Go on with a job that has ended and is still in the cluster."""
    handle = handle_of(name, namespace)
    handle.job()  # says so if there is none
    config, templates = handle.configuration()
    folder = JobFolder(Path("shoal-jobs", name).absolute())
    return _resume(handle, config, templates, changes, folder, display)


def _resume(
    handle: JobHandle,
    config: JobConfig,
    templates: dict[str, Manifest],
    changes: dict[str, Any],
    folder: JobFolder,
    display: Display,
) -> JobResult:
    config = dataclasses.replace(config, **changes)
    if config.command != "train":
        raise UserError(
            f"--resume: {config.job_name} is a job of shoal {config.command}; run it again"
        )
    if not config.shared(config.job_dir):
        raise UserError(
            f"--resume: the journal of {config.job_name} was in its master's pod, and is gone: "
            "only a job whose --job-dir is on a --volume (pvc= or hostPath=) can go on"
        )
    there = handle.exists()
    if there:
        _refuse_unless_ended(handle, config)
    with reopened(folder, config):
        if there and given_model.is_given(config):
            given_model.write(handle.given_model(), folder.given)
        if there:
            handle.delete()  # what counts is on the volume
        handle.check(config, templates)
        token = secrets.token_hex(8)
        return follow_job(handle, config, templates, folder, display, resume=token)


def _refuse_unless_ended(handle: JobHandle, config: JobConfig) -> None:
    text = handle.result()
    if text is not None:
        _refuse_succeeded(str(json.loads(text)["state"]), config)
    elif not any(c.type == "Failed" for c in handle.job().status.conditions or ()):
        where = f"{handle.name} --namespace {handle.namespace}"
        raise UserError(
            f"--resume: job {handle.name} is running in namespace {handle.namespace}; see shoal "
            f"status {where}, or end it: shoal stop {where}"
        )


def _refuse_succeeded(state: str, config: JobConfig) -> None:
    if state == "succeeded":
        raise UserError(f"--resume: job {config.job_name} has succeeded: nothing is left to do")
