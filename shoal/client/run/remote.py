"""Running a job on Kubernetes from this process: create it, have it followed, take its result.

The counterpart of local.py, with the same display: the logs of the pods and the result
are kept in a job folder here, and what was made in the cluster is deleted at the end.
remote_following.py has the loop between its creation and its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json, write_text
from shoal.client.found.claim import claimed, keep_given
from shoal.client.found.following import Interruptions
from shoal.client.remote_following import Following
from shoal.client.show.display import Display
from shoal.cluster import explain, given_model
from shoal.cluster.data_loss import loss_warnings
from shoal.cluster.handle import JobHandle, handle_of
from shoal.cluster.manifests import INDEX_LABEL, ROLE_LABEL, Manifest
from shoal.cluster.templates import read_templates
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.result import JobFailedError, JobResult
from shoal.security.identities import INSECURE

Answer = TypeVar("Answer")

PATIENCE_SECONDS, AGAIN_SECONDS = 300.0, 5.0
"""For an API server that is away when the job has ended."""

LOG_LINES = 20
"""Of a master that ended without a result."""


def run_remote_job(
    config: JobConfig,
    display: Display,
    interruptions: Interruptions | None = None,
    written: Path | None = None,
) -> JobResult:
    """Run the job on Kubernetes to its end and return its result, whatever its state.

    Leaves nothing in the cluster, unless it is killed with SIGKILL, or fails itself while the job
    may be running. Signals, interruptions and written as in run_job.

    Raises UserError if the job cannot be created, JobFailedError if its master dies
    without a result.
    """
    config = config.resolved()
    templates = read_templates(config.pod_template)
    handle = handle_of(config.job_name, config.namespace)
    handle.check(config, templates)
    # Paths of the configuration are those in the pods; claiming must not look for them here.
    here = dataclasses.replace(
        config, output="", job_dir=os.path.abspath(os.path.join("shoal-jobs", config.job_name))
    )
    with claimed(here) as folder:
        if written is not None:
            keep_given(written, folder)
        return follow_job(handle, config, templates, folder, display, interruptions)


def follow_job(
    handle: JobHandle,
    config: JobConfig,
    templates: dict[str, Manifest],
    folder: JobFolder,
    display: Display,
    interruptions: Interruptions | None = None,
    resume: str = "",
) -> JobResult:
    """Create a job, follow it to its end and remove it; see run_remote_job.

    folder: of this machine, claimed. resume: names a resumption.
    """
    write_text(folder.config, config.to_json())
    write_text(folder.templates, json.dumps(templates))
    model = folder.given if given_model.is_given(config) else None
    handle.create(config, templates, model=model, resume=resume)
    interruptions = interruptions or Interruptions()
    following = Following(handle, config, folder, display, interruptions)
    try:
        with display, interruptions:
            display.started(config, folder)
            for text in warnings_of(config):
                display.event(text)
            following.follow()
            return _result(following, folder, interrupted=interruptions.count > 0)
    finally:
        try:
            _collect_logs(handle, folder, display)
        finally:
            _leave(following)


def _leave(following: Following) -> None:
    """Remove the job, or leave it alone if it may be running."""
    handle, display = following.handle, following.display
    try:
        if not following.unknown and (following.over or handle.over()):
            handle.delete()
        else:
            where = f"{handle.name} --namespace {handle.namespace}"
            display.event(
                f"the job is left in the cluster, where it may go on: see shoal status {where}, or "
                f"end it: shoal delete {where}"
            )
    except UserError as error:
        display.event(str(error))  # must not hide what ended the job


def warnings_of(config: JobConfig) -> list[str]:
    """The warnings about a job, for its user before it runs."""
    return [*loss_warnings(config), *([f"warning: {INSECURE}"] if config.insecure else [])]


def submit(config: JobConfig) -> tuple[JobHandle, list[str]]:
    """Create the job on Kubernetes and leave it to itself; also returns warnings.

    Raises UserError.
    """
    config = config.resolved()
    templates = read_templates(config.pod_template)
    handle = handle_of(config.job_name, config.namespace)
    handle.check(config, templates)
    handle.create(config, templates, followed=False)
    return handle, warnings_of(config)


def _result(following: Following, folder: JobFolder, *, interrupted: bool) -> JobResult:
    """The job's own result, or one for a job that was given up on request.

    Raises JobFailedError with the master's last words if it died, UnreachableError if the API
    server does not say how it ended.
    """
    try:
        return _asked_result(following, folder, interrupted=interrupted)
    except explain.UnreachableError as error:
        following.unknown = True
        handle = following.handle
        raise explain.UnreachableError(
            f"{error}\nThe job has ended, and how is not known. Its result is kept in the cluster: "
            f"shoal status {handle.name} --namespace {handle.namespace}"
        ) from error


def _asked_result(following: Following, folder: JobFolder, *, interrupted: bool) -> JobResult:
    """Ask the cluster for the result that `_result` returns. Raises as it does."""
    handle, display, config = following.handle, following.display, following.config
    with _unless_unreachable():
        if (text := _patiently(handle.result, display)) is not None:
            write_json(folder.result, json.loads(text), allow_nan=True)
            if (audit := _patiently(handle.audit, display)) is not None:
                write_text(folder.audit, audit)
                if not json.loads(audit)["clean"]:
                    display.event(
                        f"warning: records are UNACCOUNTED FOR: shoal audit {folder.path}"
                    )
            if (metrics := _patiently(handle.metrics, display)) is not None:
                write_text(folder.metrics, metrics)
            return JobResult.read(folder.result)
    if interrupted:
        return JobResult(config.job_name, config.command, "stopped", folder.path)
    said = following.last_words or "its pod is gone"
    with _unless_unreachable():
        # Its last lines are the cause only where nothing else is known of it.
        if not following.last_words and (pod := handle.master_pod()) is not None:
            said = f"the end of its log:\n{handle.log(pod, tail_lines=LOG_LINES) or '(empty)'}"
    raise JobFailedError(f"the job's master ended without a result: {said}")


@contextlib.contextmanager
def _unless_unreachable() -> Iterator[None]:
    """Pass over a refusal of the API server, but not over its silence."""
    try:
        yield
    except explain.UnreachableError:
        raise
    except UserError:
        pass


def _patiently(ask: Callable[[], Answer], display: Display) -> Answer:
    """Ask the API server, which may be away for some minutes. Raises UserError."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except explain.UnreachableError as error:
            if time.monotonic() > give_up:
                raise
            display.event(str(error))
            time.sleep(AGAIN_SECONDS)


def _kept_path(folder: JobFolder, role: str, index: int) -> Path:
    return folder.logs / ("master.log" if role == "master" else f"{role}-{index}.log")


def kept_log(folder: JobFolder, role: str, index: int) -> str:
    """The log of a pod of a job that has ended, as kept here. Raises UserError if none is."""
    try:
        return _kept_path(folder, role, index).read_text(errors="replace")
    except OSError as error:
        there = ", ".join(sorted(path.stem for path in folder.logs.glob("*.log"))) or "none"
        raise UserError(f"no log of {role} {index} was kept; there are: {there}") from error


def _collect_logs(handle: JobHandle, folder: JobFolder, display: Display) -> None:
    """Keep what the pods that are still there have written."""
    with contextlib.suppress(UserError):
        for pod in handle.pods():
            role = pod.metadata.labels[ROLE_LABEL]
            path = _kept_path(folder, role, int(pod.metadata.labels.get(INDEX_LABEL, 0)))
            try:
                with contextlib.suppress(UserError):
                    path.write_text(handle.log(pod))
            except OSError as error:
                display.event(f"the pods' logs cannot be kept in {folder.logs}: {error.strerror}")
                return
