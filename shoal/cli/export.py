"""`shoal export`: any export of a checkpoint, without a job.

Owns finding the checkpoint and the configuration, and starting the process that has
TensorFlow (worker/inspect/export_saved.py).
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from pathlib import Path
from typing import Any

from shoal.base.disk.job_folder import JobFolder, meant_folder
from shoal.base.modules.engines import AUTO
from shoal.base.words import near
from shoal.checkpoints.outputs import check_output, try_output
from shoal.cli.checkpoints import find_checkpoints, newest_checkpoint
from shoal.client.run.checks import check_model
from shoal.client.run.model_process import model_process, run
from shoal.config.job import JobConfig
from shoal.errors import UserError


def run_export(source: str, number: int | None, given: dict[str, Any]) -> int:
    """Export a checkpoint; returns the exit code.

    source: folder of a job, of checkpoints or of one checkpoint, or a URL of the latter two.
    number: which checkpoint; None for the newest that is whole. given: values of EXPORT_FLAGS; the
    others are those of the job, where there is one.
    Raises UserError for what is found without TensorFlow.
    """
    if "://" not in source and not os.path.exists(source):
        folder, name = os.path.split(source.rstrip("/"))
        known = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
        meant = meant_folder(source) or near(name, known)
        raise UserError(f"there is no folder {source}{meant}")
    root, numbers = find_checkpoints(source, number)
    found = newest_checkpoint(root, numbers)
    config = _config(source, given)
    check_model(config)
    check_output(config)
    try_output(config)
    with model_process("export_saved", config) as (command, _):
        command += ["--root", root.location, "--number", str(found.number)]
        return run(command).returncode


def _config(source: str, given: dict[str, Any]) -> JobConfig:
    """The configuration of the job whose checkpoint it is, as far as an export takes it."""
    job = job_of(source)
    if job is None:
        if not given.get("model_def"):
            raise UserError(
                f"--model-def is required: there is no job.json beside {source} that "
                "names the model"
            )
        config = JobConfig(command="check", **given)
    else:
        # Not as a job on Kubernetes, nor as this job itself, whose own output may be there.
        kept: dict[str, Any] = {"command": "check", "image": ""}
        kept |= {"restore_from": "", "overwrite": False}
        kept |= {"engine": AUTO} if given.get("model_def") else {}
        config = dataclasses.replace(JobConfig.load(job.config), **(kept | given))
    return dataclasses.replace(config, token=secrets.token_hex(8)).resolved()


def job_of(source: str) -> JobFolder | None:
    """The folder of the job whose checkpoints `source` names, if it is on this machine."""
    if "://" in source:
        return None
    path = Path(source).absolute()
    for folder in (path, path.parent, path.parent.parent):
        if (job := JobFolder(folder)).config.is_file():
            return job
    return None
