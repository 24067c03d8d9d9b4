"""The search for the checkpoints that --restore-from and --continue-from name.

Raises UserError naming the flag before anything is started.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

from shoal.base.disk.job_folder import JOBS, JobFolder, shown_path
from shoal.base.words import near
from shoal.client.ask.local_jobs import LocalJob, find
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.result import COMPLETE

MANIFEST = "manifest.json"
"""Of an export."""


def with_beginning(config: JobConfig) -> JobConfig:
    """The same with what it begins with named in full: one export or one checkpoint.

    So that all processes take the same one, while a training job may be adding others.
    config: resolved. Raises UserError if there is none, or the job cannot begin with it.
    """
    if config.continue_from:
        return dataclasses.replace(config, continue_from=_continued(config))
    return _with_saved(config)


def _with_saved(config: JobConfig) -> JobConfig:
    """The same with one checkpoint as --restore-from, if that is a folder of them.

    So that all workers take the same one, while a training job may be adding others.
    Raises UserError if there is neither an export nor a whole checkpoint.
    """
    if not config.restore_from or (Path(config.restore_from) / MANIFEST).is_file():
        return config
    # Late, as only few jobs need it.
    from shoal.checkpoints.continued import last_checkpoint_at
    from shoal.checkpoints.formats.manifests import CheckpointError
    from shoal.files.storage import open_storage

    try:
        found = last_checkpoint_at(config.restore_from)
        url = found is None and "://" in config.restore_from
        if url and MANIFEST in open_storage(config.restore_from).names():
            return config  # an export there
    except (CheckpointError, OSError) as error:
        raise UserError(f"--restore-from: {error}{_instead(config.restore_from)}") from error
    if (
        found is None
        and "://" not in config.restore_from
        and not os.path.exists(config.restore_from)
    ):
        folder, name = os.path.split(config.restore_from)
        known = os.listdir(folder) if os.path.isdir(folder) else []
        raise UserError(
            f"--restore-from: there is no folder {config.restore_from}{near(name, known)}"
        )
    if found is None:
        raise UserError(
            f"--restore-from: {config.restore_from} is not the output of a training job: it "
            f"has no {MANIFEST}, and holds no checkpoint"
        )
    return dataclasses.replace(config, restore_from=found.folder.location)


def _continued(config: JobConfig) -> str:
    """The folder of the checkpoint that --continue-from names. Raises UserError."""
    from shoal.checkpoints.continued import forerunner_checkpoint
    from shoal.checkpoints.formats.manifests import CheckpointError

    location, result = config.continue_from, None
    if "://" not in location:
        # A link, such as latest, may name another folder while this job runs.
        location = os.path.realpath(location)
        if (folder := _job_at(config.continue_from)) is not None:
            location, result = _checkpoints_of(folder, config), LocalJob(folder).result()
        elif not os.path.exists(location):
            raise UserError(f"--continue-from: {_missing(config.continue_from)}")
    try:
        found = forerunner_checkpoint(location)
        last = result.last_checkpoint if result is not None else None
        if last not in (None, (found.number, found.nonce)):
            raise CheckpointError(f"the job ended with checkpoint {last[0]}, which is missing")
        return found.folder.location
    except CheckpointError as error:
        raise UserError(f"--continue-from: {error}{_instead(location)}") from error


def _instead(location: str) -> str:
    """The remedy if the newest checkpoint at a path or URL is not good.

    Empty if the path or URL names one checkpoint, not a folder of several.
    """
    from shoal.checkpoints.folders import names_one

    if names_one(location):
        return ""
    return (
        ". Put back its files from a copy, or name the folder of one checkpoint: an older one "
        "lacks what was trained since"
    )


def _job_at(path: str) -> JobFolder | None:
    """The folder of the job of this machine at an absolute path, or of this name in JOBS."""
    return find(os.path.realpath(path)) or find(os.path.relpath(path))


def _missing(path: str) -> str:
    """The message that an absolute path has neither a job nor a checkpoint."""
    shown = os.path.relpath(path)
    folder, name = os.path.split(path)
    known = os.listdir(folder) if os.path.isdir(folder) else []
    known += [each.name for each in JOBS.iterdir()] if JOBS.is_dir() else []
    return f"there is no job {shown} in {JOBS}, and no folder {shown}{near(name, known)}"


def _checkpoints_of(folder: JobFolder, config: JobConfig) -> str:
    """The folder of a job's checkpoints. Raises UserError if nobody can go on from the job."""
    shown = shown_path(folder.path)
    if folder.path.resolve() == Path(config.job_dir).resolve():
        raise UserError(
            f"--continue-from: {shown} is the folder of this job itself: give this job another "
            "--job-name or --job-dir, or go on with that one by --resume"
        )
    job = JobConfig.load(folder.config)
    if job.command != "train":
        raise UserError(f"--continue-from: {shown} is a job of shoal {job.command}, not of train")
    state = LocalJob(folder).state()
    if state == "running":
        raise UserError(
            f"--continue-from: job {job.job_name} is running: wait for its end, or name one of its "
            f"checkpoints, in {shown_path(job.checkpoint_dir)}"
        )
    if state not in COMPLETE:
        raise UserError(
            f"--continue-from: job {job.job_name} has not succeeded ({state}): end it first with "
            f"shoal train --resume {shlex.quote(shown)}, or name one of its checkpoints, in "
            f"{shown_path(job.checkpoint_dir)}"
        )
    return job.checkpoint_dir
